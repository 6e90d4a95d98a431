"""`rollbook recover` restarts what is down, `stop` stops a cell in order, `start` begins it again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, asked_to_stop, load_config, parse_timeout, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import out, say
from rollbook.adapters.cli.people import publisher_name, who
from rollbook.adapters.settings import Config, RayProvider
from rollbook.events import validate_name

if TYPE_CHECKING:
    from rollbook.adapters.ray.cells import RayCells

EXAMPLE = """\
Example:

    rollbook recover -c rollbook.toml
    rollbook recover --name recoverer-b

Any number may run for one fleet: each cell is claimed by one of them, in the log. SIGTERM and Ctrl-C stop it, exit 0;
what it had claimed is free again when the claim's time is over, or at once if it is started again under its name."""

STOP_EXAMPLE = """\
Example:

    rollbook stop rollout-3-0 --reason "scale down"
    rollbook stop rollout-3-0 --reason "its node goes down" --deadline 120

Exit 3: it was stopped although some proxy still had it when the deadline was over."""

START_EXAMPLE = """\
Example:

    rollbook start rollout-3-0
    rollbook start rollout-3-0 --timeout 30m

It is up when its workers answer: `rollbook wait --worker rollout-3-0` waits for that."""

Name = Annotated[
    str | None,
    Parameter(help="Who claims, in the log; by default recoverer-HOST-PID. Give one that stays.", show_default=False),
]


def recover(*, config: ConfigFile = None, name: Name = None) -> Exit:
    """Restart the cells that are down, as each pool's `recovery` says, through the Ray manager.

    For workers launched with `restart="recoverer"`; all others are restarted by their manager.
    """
    from rollbook.adapters import logs

    found = load_config(config)
    logs.configure(environ=os.environ, format=found.settings.logs.format, level=found.settings.logs.level)
    return run(_recover(found, name))


def stop(
    worker: Annotated[str, Parameter(help="Its name, such as rollout-3-0; its whole cell is stopped.")],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why, for whoever reads the log.")],
    deadline: Annotated[
        float, Parameter(help="Seconds that the proxies have to let go of it.", validator=Number(gt=0))
    ] = 60.0,
    config: ConfigFile = None,
) -> Exit:
    """Stop a cell in order: no new requests, then deregistered everywhere or the deadline, then its processes end."""
    found = load_config(config)
    start_logs()
    return run(_stop(found, worker, reason, deadline))


def start(
    worker: Annotated[str, Parameter(help="Its name, such as rollout-3-0; its whole cell is started.")],
    /,
    *,
    timeout: Annotated[str, Parameter(help="For its processes to be made: they may wait for room.")] = "10m",
    config: ConfigFile = None,
) -> Exit:
    """Begin a life of a cell that was stopped, or given up; a cell that lives is left as it is."""
    found = load_config(config)
    start_logs()
    return run(_start(found, worker, parse_timeout(timeout)))


async def _recover(config: Config, name: str | None) -> Exit:
    from rollbook.adapters.bootstrap import nats_connection
    from rollbook.adapters.health.monitoring import run_until
    from rollbook.adapters.recovery import WorkerRecovery

    settings = config.settings
    connection = nats_connection(settings.nats, environ=os.environ, directory=config.directory)
    asked = asked_to_stop()  # before Ray is joined, which takes seconds
    async with _open_manager(config) as manager:
        recovery = WorkerRecovery(settings.fleet, connection, manager, settings.policy().pools, name=name)
        await run_until(recovery, asked)
    return Exit.DONE


async def _stop(config: Config, worker: str, reason: str, deadline: float) -> Exit:
    from rollbook.adapters.bootstrap import nats_connection
    from rollbook.adapters.recovery import planned_stop

    settings = config.settings
    connection = nats_connection(settings.nats, environ=os.environ, directory=config.directory)
    async with _open_manager(config) as manager:
        stopped = await planned_stop(
            worker,
            fleet=settings.fleet,
            connection=connection,
            manager=manager,
            reason=f"{reason} ({who()})",
            deadline=deadline,
            name=publisher_name(),
        )
    for name in stopped.workers:
        out(name)
    for name, why in stopped.left.items():
        say(f"rollbook: {name} was stopped before every proxy had let go of it: {why}")
    for name, how in stopped.ended_before.items():
        say(
            f"rollbook: {name} had ended before ({how}), so a recoverer may start its cell again; to keep it down: "
            f'rollbook cordon {name} --reason "..."'
        )
    return Exit.WAITED if stopped.left else Exit.DONE


async def _start(config: Config, worker: str, seconds: float) -> Exit:
    async with _open_manager(config) as manager:
        await manager.begin(validate_name("worker", worker), seconds)
    out(worker)
    return Exit.DONE


@contextlib.asynccontextmanager
async def _open_manager(config: Config) -> AsyncGenerator[RayCells]:
    """Who starts and ends the workers. Raises `UsageError` for a provider that cannot."""
    from rollbook.adapters.bootstrap import open_provider

    if not isinstance(config.settings.provider, RayProvider):
        kind = config.settings.provider.__struct_config__.tag
        raise UsageError(f'provider.kind is "{kind}": nobody here starts or stops its workers; this needs kind = "ray"')
    async with open_provider(config.settings, config.file.parent) as provider:
        from rollbook.adapters.ray.provider import RayWorkerProvider

        if not isinstance(provider, RayWorkerProvider):
            raise UsageError("this provider cannot start or stop workers")
        yield provider.cells()
