"""Why a listed life does not belong at a proxy any more: how sure that is, and whether somebody meant it.

Only what was inferred (a probe timed out, a lease ran out, nobody knows the worker) counts against the removal budget
[I12]. Only what somebody meant is drained first: who is dead has no requests left to end.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from rollbook.events.facts import DIRECT_EVIDENCE
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase, Worker


class Ground(StrEnum):
    """What a removal stands on."""

    PLANNED = "planned"
    """Somebody meant it: a drain, a cordon, a suspension, the run's end. It is there to end its requests."""
    DIRECT = "direct"
    """This life is over for certain: it exited, a newer one began, an operator struck it off."""
    INFERRED = "inferred"
    """It is thought to be over because something did not answer or did not show it."""


_MEANT: Final = frozenset({"planned", "operator"})
_LEAVING: Final = frozenset({Phase.DRAINING, Phase.RETIRED})


def ground(roster: Roster, policy: Policy, proxy: ProxyPolicy, name: str, incarnation: int) -> Ground:
    """What the removal of this life of `name` stands on. Only asked about lives that do not belong at `proxy`."""
    worker = roster.workers.get(name)
    if worker is None:
        struck_off = roster.ended or incarnation <= roster.tombstones.get(name, 0)
        return Ground.DIRECT if struck_off else Ground.INFERRED
    if worker.incarnation != incarnation:
        return Ground.DIRECT if worker.incarnation > incarnation else Ground.INFERRED
    if _meant(roster, policy, proxy, worker):
        return Ground.PLANNED if _lives(worker) else Ground.DIRECT
    if worker.phase is Phase.SERVING:
        return _of_cell(roster, worker)
    return Ground.DIRECT if worker.evidence in DIRECT_EVIDENCE else Ground.INFERRED


def _meant(roster: Roster, policy: Policy, proxy: ProxyPolicy, worker: Worker) -> bool:
    asleep = roster.sleep(worker) is not None and policy.pool(worker.pool).deregister_suspended
    elsewhere = worker.pool not in proxy.pools or not worker.entrypoint
    leaving = worker.phase in _LEAVING or worker.evidence in _MEANT or _cell_leaves(roster, worker)
    return roster.ended or worker.name in roster.cordons or asleep or elsewhere or leaving


def _cell_leaves(roster: Roster, worker: Worker) -> bool:
    """Whether another rank in the same life of its cell was meant to leave: nothing is left of a cell without it."""
    if worker.cell_incarnation is None:
        return False
    ranks = (roster.workers[name] for name in roster.siblings(worker))
    return any(rank.phase in _LEAVING and rank.cell_incarnation == worker.cell_incarnation for rank in ranks)


def _lives(worker: Worker) -> bool:
    """Whether it may have requests to end: nobody has seen it dead, and nobody thinks so."""
    return worker.evidence is None or worker.evidence in _MEANT


def _of_cell(roster: Roster, worker: Worker) -> Ground:
    """It serves, and its cell is not complete: as sure as the surest word on another rank."""
    declared = roster.declared.get(f"{worker.pool}/{worker.cell}")
    if declared is not None and declared.cell_incarnation > (worker.cell_incarnation or 0):
        return Ground.DIRECT
    for name in roster.siblings(worker):
        rank = roster.workers[name]
        if (rank.cell_incarnation or 0) > (worker.cell_incarnation or 0) or rank.evidence in DIRECT_EVIDENCE:
            return Ground.DIRECT
    return Ground.INFERRED
