"""`rollbook monitor`: watches the workers, in the foreground."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, asked_to_stop, load_config, run
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.settings import Config, StaticProvider

EXAMPLE = """\
Example:

    rollbook monitor -c rollbook.toml
    rollbook monitor --name monitor-b

Any number may run for one fleet: a verdict counts only if nobody spoke about the worker since its probe began.
SIGTERM and Ctrl-C stop it cleanly, exit 0."""

Name = Annotated[
    str | None,
    Parameter(help="Who watches, in the log and in `status`; by default monitor-HOST-PID.", show_default=False),
]


def monitor(*, config: ConfigFile = None, name: Name = None) -> Exit:
    """Watch the workers of every pool as its `health` says, and publish who is suspected, down and up.

    It decides nothing about proxies: that is the controller's, which reads what it publishes.
    """
    from rollbook.adapters import logs

    found = load_config(config)
    logs.configure(environ=os.environ, format=found.settings.logs.format, level=found.settings.logs.level)
    return run(_monitor(found, name))


async def _monitor(config: Config, name: str | None) -> Exit:
    from rollbook.adapters.bootstrap import nats_connection, open_provider
    from rollbook.adapters.health import HealthMonitor
    from rollbook.adapters.health.monitoring import run_until

    settings = config.settings
    stop = asked_to_stop()  # before Ray is joined, which takes seconds
    connection = nats_connection(settings.nats, environ=os.environ, directory=config.directory)
    async with open_provider(settings, config.file.parent) as provider:
        namespace = None if isinstance(settings.provider, StaticProvider) else settings.provider.namespace
        pools = settings.policy().pools
        watching = HealthMonitor(settings.fleet, connection, provider, pools, name=name, namespace=namespace)
        await run_until(watching, stop)
    return Exit.DONE
