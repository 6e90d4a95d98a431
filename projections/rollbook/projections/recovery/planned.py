"""A planned stop, in its order: draining, then deregistered everywhere or the deadline, then the end of the processes.

A worker that ends before the routers have let go of it fails the requests that they still send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from rollbook.events import RollbookError, WorkerDraining
from rollbook.events.facts import DIRECT_EVIDENCE
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.looking.waiting import Goal, look
from rollbook.projections.ports import Clock
from rollbook.projections.recovery.due import cell_of
from rollbook.projections.recovery.ports import WorkerManager
from rollbook.projections.state.worker import Phase, Worker

LOOK_SECONDS: Final = 0.1
_LASTING: Final = frozenset(DIRECT_EVIDENCE) - {"planned"}
"""Evidence that a later stop does not replace."""


class NothingToStop(RollbookError):
    """There is no such worker, its whole cell has retired, or its manager does not know it."""


class Stopped(msgspec.Struct, frozen=True):
    """What a planned stop did."""

    workers: tuple[str, ...]
    """The whole cell."""
    left: dict[str, str]
    """Those that some proxy had not let go of at the deadline, and why."""
    ended_before: dict[str, str] = {}
    """Those that had ended before their turn, and how: that was not planned, so a recoverer may restart the cell. So it
    may a cell of which a restart is under way, or half done."""


async def stop_as_planned(
    worker: str,
    *,
    reason: str,
    deadline: float,
    projector: Projector,
    verdicts: Verdicts,
    manager: WorkerManager,
    clock: Clock,
) -> Stopped:
    """Stop the cell of `worker`; `projector` must be running. `deadline` (seconds) bounds the wait for the proxies.

    It stays down: recoverers leave alone what was stopped as planned, unless some of it had ended before. The manager
    is asked first whether it has all of the cell. Raises `NothingToStop`, `ManagerError`, or `LogUnavailable`; where
    one of the last two comes later than that, it may be draining.
    """
    await projector.caught_up()
    found = projector.state.roster.workers.get(worker)
    if found is None:
        raise NothingToStop(f"the log knows no worker {worker!r}")
    cell = cell_of(projector.state.roster, found)
    if not cell:
        raise NothingToStop(f"worker {worker!r} has retired, and nothing of its cell is left")
    ranks = {one.name: one.incarnation for one in cell}
    await _require_managed(ranks, manager)
    for name in ranks:
        await _drain(name, reason, deadline, projector, verdicts)
    try:
        async with asyncio.timeout(deadline):
            while _left(ranks, projector):
                await clock.sleep(LOOK_SECONDS)
                for name in ranks:  # a recoverer may have begun a life of one that died meanwhile
                    await _drain(name, reason, deadline, projector, verdicts)
    except TimeoutError:
        pass
    left, ended = _left(ranks, projector), _ended(ranks, projector)
    await manager.stop_cell(tuple(ranks), reason)
    return Stopped(tuple(ranks), left, ended)


async def _require_managed(ranks: Iterable[str], manager: WorkerManager) -> None:
    """Raise before anything is said of a cell that could be drained and not ended: it would run on, out of reach."""
    managed = {one.name for one in await manager.list_workers()}
    for name in ranks:
        if name not in managed:
            raise NothingToStop(
                f"the manager has no worker {name!r}; end it where it was started, or `rollbook drain` it"
            )


def _ended(ranks: Iterable[str], projector: Projector) -> dict[str, str]:
    """Who has ended by now, not as planned, and how."""
    workers = projector.state.roster.workers
    found = [workers[name] for name in ranks if name in workers]
    ended = {one.name: "half a restart of its cell" for one in found if one.restarts and one.restarts.unfinished}
    return ended | {one.name: _how(one) for one in found if one.phase is Phase.DOWN and one.evidence in _LASTING}


def _how(worker: Worker) -> str:
    return ": ".join(part for part in (worker.evidence, worker.reason) if part)


async def _drain(name: str, reason: str, deadline: float, projector: Projector, verdicts: Verdicts) -> None:
    """Say so, unless it drains or is over already; again if anybody spoke about it meanwhile."""
    while True:
        as_of, worker = projector.state.sequence, projector.state.roster.workers.get(name)
        if worker is None or worker.phase not in {Phase.STARTING, Phase.SERVING}:
            return
        fact = WorkerDraining(
            worker=name, incarnation=worker.incarnation, reason=reason, deadline_seconds=max(deadline, 0.1)
        )
        sequence = await verdicts.write(fact, as_of=as_of)
        if sequence is None:
            await projector.caught_up()
        else:
            await projector.passed(sequence)


def _left(ranks: dict[str, int], projector: Projector) -> dict[str, str]:
    """Who is not gone from every proxy yet, by the log's last word, in any life up to the present one."""
    left: dict[str, str] = {}
    for name, incarnation in ranks.items():
        worker = projector.state.roster.workers.get(name)
        life = incarnation if worker is None else worker.incarnation
        left |= look(projector.state, Goal(state="gone", worker=name, incarnation=life), None).missing
    return left
