"""A planned stop from a program that is not a recoverer: it follows the log for as long as the stop takes."""

from __future__ import annotations

import asyncio
from typing import Final

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.health.monitoring import monitor_name
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.recovery.recovering import following
from rollbook.events import validate_name
from rollbook.projections.ending import end
from rollbook.projections.recovery.planned import Stopped, stop_as_planned
from rollbook.projections.recovery.ports import WorkerManager

DEADLINE: Final = 60.0


async def planned_stop(
    worker: str,
    *,
    fleet: str,
    connection: Connection | str,
    manager: WorkerManager,
    reason: str,
    deadline: float = DEADLINE,
    name: str | None = None,
) -> Stopped:
    """Stop the cell of `worker` in order: draining, deregistered everywhere or `deadline` seconds, then its processes.

    It stays down until somebody starts it. `name` is who says so in the log. Raises `NothingToStop`, `ManagerError` or
    `LogError`.
    """
    author = validate_name("publisher", name or monitor_name("stop"))
    connection = Connection(url=connection) if isinstance(connection, str) else connection
    async with following(validate_name("fleet", fleet), connection, author) as (projector, verdicts):
        folding = asyncio.create_task(projector.run(), name="projector")
        stopping = asyncio.create_task(
            stop_as_planned(
                validate_name("worker", worker),
                reason=reason,
                deadline=deadline,
                projector=projector,
                verdicts=verdicts,
                manager=manager,
                clock=SystemClock(),
            ),
            name="stop",
        )
        try:
            await asyncio.wait([folding, stopping], return_when=asyncio.FIRST_COMPLETED)
            if folding.done() and not stopping.done():
                folding.result()
            return await stopping
        finally:
            await end(stopping, folding)
