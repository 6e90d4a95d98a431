"""`rollbook up`: the controller in the foreground."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, asked_to_stop, load_config, run
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.settings import Config
from rollbook.projections.leading.controller import Controller

EXAMPLE = """\
Example:

    rollbook up -c rollbook.toml

SIGTERM and Ctrl-C stop it cleanly: a snapshot is taken, the lease is released, exit 0."""


Relist = Annotated[
    bool,
    Parameter(
        name="--relist",
        negative=(),
        show_default=False,
        help="Begin anew after facts were lost: with what the log still has and the provider's listing.",
    ),
]


def up(*, config: ConfigFile = None, relist: Relist = False) -> Exit:
    """Run the controller: fold the facts and keep every proxy true to them."""
    from rollbook.adapters import logs

    found = load_config(config)
    logs.configure(environ=os.environ, format=found.settings.logs.format, level=found.settings.logs.level)
    return run(_up(found, relist=relist))


async def _up(config: Config, *, relist: bool) -> Exit:
    from rollbook.adapters.bootstrap import build

    stop = asked_to_stop()
    async with build(config.settings, config.directory, environ=os.environ, relist=relist) as built:
        stopping = asyncio.create_task(_stop(stop, built.controller), name="signals")
        try:
            await built.run()
        finally:
            stopping.cancel()
    return Exit.DONE


async def _stop(asked: asyncio.Event, controller: Controller) -> None:
    await asked.wait()
    controller.stop()
