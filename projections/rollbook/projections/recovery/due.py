"""What a recoverer should do now, as a function of the roster, the policies and the moment. Pure.

Two recoverers that see the same roster decide the same; that only one of them acts is the business of the claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rollbook.events.times import parse_rfc3339
from rollbook.projections.policy import RecoveryPolicy
from rollbook.projections.state.claims import Claim, Restarts
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase, Worker


class Due(msgspec.Struct, frozen=True, gc=False):
    """A cell to be restarted now."""

    first: str
    """The worker on whose subject it is claimed."""
    incarnation: int
    names: tuple[str, ...]
    """All its workers, by rank."""
    pool: str
    attempt: int
    """Which one within the window, from 1."""


class Exhausted(msgspec.Struct, frozen=True, gc=False):
    """A cell that was restarted often enough."""

    first: str
    incarnation: int
    attempts: int
    reason: str


class Decisions(msgspec.Struct, frozen=True):
    """What is to be done now."""

    due: tuple[Due, ...] = ()
    """Longest down first, and no more than may be restarted at a time."""
    exhausted: tuple[Exhausted, ...] = ()
    wake_at: float | None = None
    """Seconds since the epoch: when the next one is due if nothing happens before; None if none is."""


def decide(roster: Roster, policies: Mapping[str, RecoveryPolicy], now: float) -> Decisions:
    """`now` is in seconds since the epoch, by the log's clock.

    A pool without a policy, or a run that has ended, is left alone.
    """
    if roster.ended:
        return Decisions()
    due: list[Due] = []
    exhausted: list[Exhausted] = []
    waiting: list[float] = []
    for ranks in _broken(roster):
        first = _carrier(ranks)
        policy = policies.get(first.pool or "")
        if policy is None or not policy.restart or any(rank.name in roster.cordons for rank in ranks):
            continue
        began = recent(ranks, policy, now)
        if len(began) >= policy.attempts:
            exhausted.append(Exhausted(first.name, first.incarnation, len(began), _loop(ranks, policy, len(began))))
            continue
        at = began[-1] + backoff(policy, len(began)) if began else now
        if at > now:
            waiting.append(at)
            continue
        names = tuple(rank.name for rank in ranks)
        due.append(Due(first.name, first.incarnation, names, first.pool or "", len(began) + 1))
    free = {name: policy.parallel for name, policy in policies.items()}
    for pool, count in Counter(worker.pool for worker in _claimed(roster)).items():
        free[pool or ""] = free.get(pool or "", 0) - count
    chosen: list[Due] = []
    for one in sorted(due, key=lambda one: max(roster.workers[name].since_sequence for name in one.names)):
        if free[one.pool] > 0:
            free[one.pool] -= 1
            chosen.append(one)
    return Decisions(tuple(chosen), tuple(exhausted), min(waiting, default=None))


def recent(cell: Iterable[Worker], policy: RecoveryPolicy, now: float) -> list[float]:
    """When the attempts within the window began, oldest first. A clock that is ahead counts as now."""
    found = [_seconds(text) for restarts in _restarts(cell) for text in restarts.attempts]
    return sorted(min(at, now) for at in found if at is not None and at > now - policy.window)


def backoff(policy: RecoveryPolicy, attempts: int) -> float:
    """Seconds between the beginning of the last of so many attempts and the next one."""
    return min(policy.backoff_most, policy.backoff_first * 2.0 ** min(attempts - 1, 30))


def shortest_window(policy: RecoveryPolicy) -> float:
    """Seconds in which all attempts can end, however each fails; in a shorter window they are never all counted.

    One that hangs lasts as long as its claim, and a little longer until somebody has said so and another one claims.
    """
    hanging = policy.claim * 1.1 + 2.0
    return hanging + sum(max(hanging, backoff(policy, number)) for number in range(1, policy.attempts))


def is_its_turn(roster: Roster, first: str, policy: RecoveryPolicy) -> bool:
    """Whether a claimed cell may be restarted now: fewer than `parallel` of its pool were claimed before and still are.

    Two recoverers may claim different cells at one moment; this keeps them within the limit together. They may also
    have claimed one cell, if its first worker was heard of in between; who claimed it before restarts it alone.
    """
    worker = roster.workers.get(first)
    claim = _claim(worker)
    if worker is None or claim is None:
        return False
    before = {
        min(roster.siblings(other))
        for other in _claimed(roster)
        if other.pool == worker.pool and (found := _claim(other)) is not None and found.sequence < claim.sequence
    }
    return len(before) < policy.parallel and min(roster.siblings(worker)) not in before


def claimed(roster: Roster) -> dict[str, Claim]:
    """All claims, by the worker on whose subject each was made."""
    return {worker.name: claim for worker in _claimed(roster) if (claim := _claim(worker)) is not None}


def cell_of(roster: Roster, worker: Worker) -> list[Worker]:
    """All workers of its cell that did not retire, by rank."""
    ranks = [roster.workers[name] for name in roster.siblings(worker)]
    return sorted((rank for rank in ranks if rank.phase is not Phase.RETIRED), key=lambda rank: (rank.rank, rank.name))


def _broken(roster: Roster) -> Iterable[Sequence[Worker]]:
    """Cells that are down and claimed by nobody. What was stopped as planned is not broken."""
    seen: set[str] = set()
    for worker in roster.workers.values():
        if worker.phase is not Phase.DOWN or worker.name in seen:
            continue
        ranks = cell_of(roster, worker)
        seen.update(rank.name for rank in ranks)
        restarts = _restarts(ranks)
        unfinished = any(one.unfinished for one in restarts)
        down = [rank for rank in ranks if rank.phase is Phase.DOWN]
        if any(one.claim is not None for one in restarts):
            continue
        if unfinished or any(rank.evidence != "planned" for rank in down):
            yield ranks


def _claimed(roster: Roster) -> Iterable[Worker]:
    return (worker for worker in roster.workers.values() if _claim(worker) is not None)


def _carrier(cell: Sequence[Worker]) -> Worker:
    """On whose subject it is claimed: on which it was before, so that one record tells all of it; else the first."""
    return next((rank for rank in cell if rank.restarts is not None), cell[0])


def _restarts(cell: Iterable[Worker]) -> list[Restarts]:
    return [rank.restarts for rank in cell if rank.restarts is not None]


def _claim(worker: Worker | None) -> Claim | None:
    return None if worker is None or worker.restarts is None else worker.restarts.claim


def _loop(ranks: Sequence[Worker], policy: RecoveryPolicy, count: int) -> str:
    down = [rank for rank in ranks if rank.phase is Phase.DOWN]
    culprit = next((rank for rank in down if rank.evidence != "planned"), down[0])
    failure = next((one.failure for one in _restarts(ranks) if one.failure), "")
    why = failure or f"{culprit.name} is down: {culprit.reason or culprit.evidence}"
    return f"crash loop: {count} restarts within {policy.window:g} s, and no end: {why}"


def _seconds(text: str) -> float | None:
    try:
        return parse_rfc3339(text)
    except ValueError:
        return None
