"""What a manager may say of whole pools: who lives, and, by leaving them out, who does not.

A `FleetObserved` says of everybody whom it omits that they are down. So a pool is listed only while its manager can
answer for every life in it that the log counts: it has the worker alive, or knows that this very life is over. Whoever
it cannot answer for (it has just begun and not found them yet; somebody else started them; the log has numbered a life
of which it has not heard; another manager took its place) is unknown, which is never dead: then it says nothing about
the pool at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rollbook.adapters.ray.spec import WorkerState
from rollbook.events import ObservedWorker
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase, Worker

_FOR_GOOD: Final = frozenset({"exited", "actor_dead", "operator", "planned"})
"""Evidence of a process that is gone. A life that was down for another reason may come back under its number."""


class Listing(msgspec.Struct, frozen=True):
    """A manager's word about its pools at one moment."""

    pools: tuple[str, ...] = ()
    """Those for whose every life it can answer."""
    workers: tuple[ObservedWorker, ...] = ()
    """Who lives in them."""
    withheld: tuple[tuple[str, str], ...] = ()
    """The other pools that its workers are in, each with the first life that it cannot answer for, for people."""

    @property
    def says(self) -> tuple[tuple[str, ...], tuple[ObservedWorker, ...]]:
        """What goes into the log."""
        return self.pools, self.workers


def listing(roster: Roster, states: Iterable[WorkerState]) -> Listing:
    """What a manager whose workers are in these `states` may say, with the log folded into `roster`.

    Both must be of one moment: whatever began after it stands in neither.
    """
    kept = {state.name: state for state in states}
    pools = sorted({worker.pool for name in kept if (worker := roster.workers.get(name)) and worker.pool is not None})
    lines: dict[str, list[ObservedWorker]] = {pool: [] for pool in pools}
    withheld: dict[str, str] = {}
    for worker in roster.workers.values():
        if worker.pool not in lines:
            continue
        state = kept.get(worker.name)
        if state is not None and state.alive and state.incarnation >= worker.incarnation:
            serving, cell = state.stage == "serving", state.cell_incarnation or None
            lines[worker.pool].append(
                ObservedWorker(worker.name, state.incarnation, serving, worker.cell_size, cell_incarnation=cell)
            )
        elif not _is_over(worker, state):
            withheld.setdefault(worker.pool, _why(worker, state))
    whole = tuple(pool for pool in pools if pool not in withheld)
    return Listing(whole, tuple(line for pool in whole for line in lines[pool]), tuple(sorted(withheld.items())))


def _is_over(worker: Worker, state: WorkerState | None) -> bool:
    """Whether the life that the log counts cannot come back, by the manager's knowledge or the log's."""
    if state is not None and state.over and state.incarnation >= worker.incarnation:
        return True
    return worker.phase is Phase.RETIRED or (worker.phase is Phase.DOWN and worker.evidence in _FOR_GOOD)


def _why(worker: Worker, state: WorkerState | None) -> str:
    log = f"incarnation {worker.incarnation} of {worker.name} is {worker.phase} by the log"
    if state is None:
        return f"{log}, and it is none of this manager's workers"
    return f"{log}, and this manager knows incarnation {state.incarnation}, which is {state.stage}"
