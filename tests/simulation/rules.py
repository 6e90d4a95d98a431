"""The fleet's rules in the simulation's own words: it asks neither gates nor plan nor evidence of the code under test.

They are read off `semantics`: who belongs in a router (section 4), what a removal stands on (section 3 and I12).
"""

from typing import Final

from rollbook.projections.policy import Policy
from rollbook.projections.state.roster import Roster

DIRECT: Final = {"exited", "actor_dead", "refused", "operator", "planned"}
"""Evidence that somebody saw with his own eyes; everything else was inferred."""


def _mates(roster: Roster, worker) -> list:
    """All of the same life of its cell, itself included; nobody if it is of none."""
    return [
        other
        for other in roster.workers.values()
        if worker.cell_incarnation is not None
        and (other.pool, other.cell, other.cell_incarnation) == (worker.pool, worker.cell, worker.cell_incarnation)
    ]


def _asleep(roster: Roster, policy: Policy, worker) -> bool:
    """A rank that sleeps puts the whole life of its cell to sleep."""
    asleep = any(one.suspension is not None for one in [worker, *_mates(roster, worker)])
    return asleep and policy.pools[worker.pool].deregister_suspended


def _complete(roster: Roster, worker) -> bool:
    size, declared = worker.cell_size, roster.declared.get(f"{worker.pool}/{worker.cell}")
    if declared is not None and declared.cell_incarnation >= (worker.cell_incarnation or 0):
        size = declared.size
        if size > 1 and declared.cell_incarnation != worker.cell_incarnation:
            return False
    if size <= 1:
        return True
    ranks = {
        other.rank
        for other in roster.workers.values()
        if (other.pool, other.cell, other.cell_incarnation) == (worker.pool, worker.cell, worker.cell_incarnation)
        and other.phase == "serving"
    }
    return len(ranks) >= size


def current(roster: Roster, policy: Policy, worker) -> bool:
    """Whether its weights are good enough to be added: at the version published last, or ahead of it since."""
    bar, pool = roster.bars.get(worker.pool), policy.pools[worker.pool]
    if bar is None or not pool.require_weights:
        return True
    if worker.weights is None:
        return False
    if worker.weights > bar.version:
        return worker.weights_sequence > bar.sequence
    return worker.weights >= bar.version - pool.max_lag


def wanted(roster: Roster, policy: Policy, router: str, name: str) -> int | None:
    """The incarnation of `name` that belongs in `router`, by the standing gates; None if none does."""
    worker = roster.workers.get(name)
    if worker is None or roster.ended or name in roster.cordons or worker.pool not in policy.proxies[router].pools:
        return None
    if worker.phase != "serving" or _asleep(roster, policy, worker) or not worker.entrypoint:
        return None
    return worker.incarnation if _complete(roster, worker) else None


def paired(roster: Roster, policy: Policy, router: str, name: str) -> bool:
    """Whether it has no partner, or somebody of the partner's pool could take requests at `router`."""
    pool = roster.workers[name].pool
    partners = {one for one, said in policy.pools.items() if said.paired_with == pool} | {
        policy.pools[pool].paired_with
    }
    partners.discard(None)
    return not partners or any(
        _may_be_in(roster, policy, router, one) for one in roster.workers.values() if one.pool in partners
    )


def _may_be_in(roster: Roster, policy: Policy, router: str, worker) -> bool:
    if wanted(roster, policy, router, worker.name) is None:
        return False
    old = worker.pool in roster.bars and worker.began < roster.bars[worker.pool].sequence
    return current(roster, policy, worker) or (old and policy.pools[worker.pool].stale != "remove")


def leaves(state, policy: Policy, router: str, name: str) -> bool:
    """Whether a worker that belongs in `router` may be removed for its weights: as one of as many as were replaced.

    So many that hold the new version are registered there as have left with an older one, this one included.
    """
    roster, worker = state.roster, state.roster.workers[name]
    stale = policy.pools[worker.pool].stale
    if stale == "keep" or current(roster, policy, worker):
        return False
    if stale == "remove":
        return True
    record, new, left = state.ledger.look(router), 0, 1
    for other in roster.workers.values():
        if other.pool != worker.pool or wanted(roster, policy, router, other.name) is None:
            continue
        told = record.registrations.get(other.name, {}).get(other.incarnation)
        if current(roster, policy, other):
            new += told is not None and told.told == "registered"
        elif other.name != name:
            left += told is None or told.told == "registering"
    return left <= new


def planned(roster: Roster, policy: Policy, router: str, name: str, incarnation: int) -> bool:
    """Whether somebody meant this life to leave `router`, and nobody thinks that it is dead: it is drained first."""
    worker = roster.workers.get(name)
    if worker is None or worker.incarnation != incarnation or worker.evidence not in {None, "planned", "operator"}:
        return False
    return _meant(roster, policy, router, worker)


def inferred(roster: Roster, policy: Policy, router: str, name: str, incarnation: int) -> bool:
    """Whether this life is to leave `router` only because something did not answer or did not show it."""
    worker = roster.workers.get(name)
    if worker is None:
        return not roster.ended and incarnation > roster.tombstones.get(name, 0)
    if worker.incarnation != incarnation:
        return worker.incarnation < incarnation
    if _meant(roster, policy, router, worker):
        return False
    if worker.phase != "serving":
        return worker.evidence not in DIRECT
    declared = roster.declared.get(f"{worker.pool}/{worker.cell}")
    if declared is not None and declared.cell_incarnation > (worker.cell_incarnation or 0):
        return False
    mates = [other for other in roster.workers.values() if (other.pool, other.cell) == (worker.pool, worker.cell)]
    return not any(
        mate.evidence in DIRECT or (mate.cell_incarnation or 0) > (worker.cell_incarnation or 0) for mate in mates
    )


def _meant(roster: Roster, policy: Policy, router: str, worker) -> bool:
    return (
        roster.ended
        or worker.name in roster.cordons
        or any(one.phase in {"draining", "retired"} for one in [worker, *_mates(roster, worker)])
        or worker.evidence in {"planned", "operator"}
        or _asleep(roster, policy, worker)
        or worker.pool not in policy.proxies[router].pools
        or not worker.entrypoint
    )
