"""From answers to verdicts: how often a worker must fail, and in which way, before anybody is told.

Dead, slow, busy and unhealthy are counted apart, since the last good answer: a connection that is refused says more
than an answer that is late, and a server that says "busy" is well. Whichever reaches its threshold first is the
evidence. Pure: time is an argument, and what the log says of the worker is too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rollbook.events import Evidence
from rollbook.projections.policy import HealthPolicy
from rollbook.projections.state.worker import Phase, Worker


class Outcome(StrEnum):
    """What came of one probe."""

    OK = "ok"
    GONE = "gone"
    """Its actor is dead, by the cluster's word."""
    REFUSED = "refused"
    """Nobody listens at its address."""
    SLOW = "slow"
    """No answer in time, or no way to it: it may be well."""
    BUSY = "busy"
    """It answers, and has too much to do."""
    UNHEALTHY = "unhealthy"
    """It answers that it is not well, or not as it should."""
    UNKNOWN = "unknown"
    """It could not be asked. Says nothing about the worker, and counts for nothing."""


class Finding(msgspec.Struct, frozen=True, gc=False):
    """One probe's outcome, in words for people too."""

    outcome: Outcome
    reason: str = ""


OK: Final = Finding(Outcome.OK)


class Suspect(msgspec.Struct, frozen=True, gc=False):
    """The first failure: somebody may want to know."""

    reason: str


class Down(msgspec.Struct, frozen=True, gc=False):
    """It failed as often as it may."""

    evidence: Evidence
    reason: str


class Up(msgspec.Struct, frozen=True, gc=False):
    """It answers again, or for the first time."""


Verdict = Suspect | Down | Up

_EVIDENCE: Final[dict[Outcome, Evidence]] = {
    Outcome.GONE: "actor_dead",
    Outcome.REFUSED: "refused",
    Outcome.SLOW: "timeout",
    Outcome.BUSY: "unhealthy",
    Outcome.UNHEALTHY: "unhealthy",
}

_MAY_RETURN: Final = frozenset({"refused", "timeout", "unhealthy", "lease_expired", "not_observed"})
"""Evidence of a Down that a good answer of the same life disproves. Who exited or was stopped is not asked again."""


class Tally(msgspec.Struct, gc=False):
    """The answers of one life so far."""

    incarnation: int
    since: float
    """Monotonic: when this life was first seen here."""
    answered: bool = False
    """Whether it ever gave a good answer here."""
    probes: int = 0
    """How often it was asked."""
    deep_failed: bool = False
    """Whether the last deep probe failed: then the next is deep too, so that no health page talks the failure away."""
    successes: int = 0
    """In a row, until now."""
    failures: dict[Outcome, int] = {}
    """Since the last good answer."""
    resets: int = 0
    """How often it was counted anew: an answer to a question from before counts for nothing."""

    def reset(self) -> None:
        """Count anew: something happened to the worker that the counting did not know."""
        self.resets += 1
        self.successes = 0
        self.failures.clear()


def watched(worker: Worker, policy: HealthPolicy) -> bool:
    """Whether this worker is asked at all while its cell is awake, as it stands in the log now."""
    if policy.probe == "off" or worker.suspension is not None or not (worker.entrypoint or policy.every_rank):
        return False
    if worker.phase is Phase.DOWN:
        return worker.evidence in _MAY_RETURN
    return worker.phase in {Phase.STARTING, Phase.SERVING, Phase.DRAINING}


def judge(
    tally: Tally, policy: HealthPolicy, worker: Worker, finding: Finding, *, now: float, trusted: bool
) -> Verdict | None:
    """Count `finding` in, and say what it amounts to with all before it; None for nothing new.

    `worker` is as the log has it now, and of the life that `tally` counts. `trusted` says that somebody of the pool
    gave a good answer once, so the pool is not just looked for at the wrong place.
    """
    outcome = finding.outcome
    if outcome is Outcome.UNKNOWN:
        return None
    if outcome is Outcome.OK:
        return _succeeded(tally, policy, worker)
    tally.successes = 0
    if _too_early(tally, policy, worker, outcome, now=now, trusted=trusted):
        return None
    count = tally.failures[outcome] = tally.failures.get(outcome, 0) + 1
    if worker.phase is Phase.DOWN:
        return None
    if 0 < threshold(policy, outcome) <= count:
        times = f" ({count} times)" if count > 1 else ""
        return Down(_EVIDENCE[outcome], f"{finding.reason}{times}")
    return Suspect(finding.reason) if worker.suspicion is None else None


def _succeeded(tally: Tally, policy: HealthPolicy, worker: Worker) -> Verdict | None:
    tally.answered = True
    tally.failures.clear()
    tally.successes += 1
    news = worker.phase in {Phase.STARTING, Phase.DOWN} or (
        worker.phase is Phase.SERVING and worker.suspicion is not None
    )
    return Up() if news and tally.successes >= policy.success_threshold else None


def _too_early(
    tally: Tally, policy: HealthPolicy, worker: Worker, outcome: Outcome, *, now: float, trusted: bool
) -> bool:
    """Whether a failure says nothing yet, because this life may still compile or load."""
    if tally.answered or outcome is Outcome.GONE or now - tally.since >= policy.first_wait:
        return False
    return outcome is not Outcome.REFUSED or worker.phase is Phase.STARTING or not trusted


def threshold(policy: HealthPolicy, outcome: Outcome) -> int:
    """How many failures of this kind are too many; 0 if none are."""
    match outcome:
        case Outcome.GONE:
            return 1
        case Outcome.REFUSED:
            return policy.dead_threshold
        case Outcome.SLOW:
            return policy.slow_threshold
        case Outcome.BUSY:
            return policy.busy_threshold
        case _:
            return policy.unhealthy_threshold
