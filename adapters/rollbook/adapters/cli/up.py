"""`rollbook up`: the controller in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from rollbook.adapters.cli.common import ConfigFile, load_config, run
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.settings import Config, RayProvider

EXAMPLE = """\
Example:

    rollbook up -c rollbook.toml

SIGTERM and Ctrl-C stop it cleanly: a snapshot is taken, the lease is released, exit 0."""


def up(*, config: ConfigFile = None) -> Exit:
    """Run the controller: fold the facts and keep every proxy true to them."""
    from rollbook.adapters import logs

    found = load_config(config)
    logs.configure(environ=os.environ, format=found.settings.logs.format, level=found.settings.logs.level)
    return run(_up(found))


async def _up(config: Config) -> Exit:
    from rollbook.adapters.bootstrap import build

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        opening = asyncio.ensure_future(
            stack.enter_async_context(build(config.settings, config.directory, environ=os.environ))
        )
        built = await _unless(opening, stop)
        if built is None:
            return Exit.DONE
        if isinstance(config.settings.provider, RayProvider) and config.settings.nats.url is None:
            from rollbook.adapters.ray.cluster import refuse_embedded_nats

            await refuse_embedded_nats()
        controlling = asyncio.create_task(built.controller.run(), name="controller")
        await _unless(controlling, stop)
    return Exit.DONE
