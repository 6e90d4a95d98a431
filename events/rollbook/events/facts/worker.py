"""The worker family: what happens to one life of one worker.

Published by rollout workers, health checks, recovery threads and the Ray manager.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from rollbook.events.errors import InvalidFact
from rollbook.events.facts.base import Count, Fact, Incarnation, Integer, Lease, Name, Sequence

Evidence = Literal[
    "exited",
    "actor_dead",
    "refused",
    "operator",
    "planned",
    "timeout",
    "unhealthy",
    "lease_expired",
    "not_observed",
]
"""How a death is known. The first five are direct; the others are inferred."""

DIRECT_EVIDENCE: frozenset[str] = frozenset({"exited", "actor_dead", "refused", "operator", "planned"})
"""Evidence that needs no second look before a removal."""


class WorkerFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the family.

    `pool`, `cell` and `rank` are needed only for free names; `<pool>-<cell>-<rank>` says them already.
    Raises `InvalidFact` for a multi-worker cell without `cell_incarnation`.
    """

    FAMILY: ClassVar[str] = "worker"
    PUBLISHED_BY: ClassVar[str] = "the worker, health checks, recovery threads, the Ray manager"

    worker: Name
    """Its name."""
    incarnation: Incarnation
    """Which life of it: 1 for the first, more for every later one."""
    seen: Sequence = 0
    """The log's last sequence up to which the author knew what it says of this worker; 0 for none."""
    pool: Name | None = None
    """The pool that it belongs to, where its name does not say it."""
    cell: Name | None = None
    """Its cell within the pool, where its name does not say it."""
    rank: Count | None = None
    """Its place in the cell, from 0, where its name does not say it."""
    cell_size: Count = 1
    """Workers that live and die together."""
    cell_incarnation: Incarnation | None = None
    """Set by whoever starts the cell; the same for all its ranks."""
    entrypoint: bool | None = None
    """Whether it takes requests. Left out: rank 0 does."""

    def __post_init__(self) -> None:
        if self.cell_size != 1 and (self.cell_size < 1 or self.cell_incarnation is None):
            msg = (
                f"{self.worker}: a fact about a cell of {self.cell_size} needs cell_size >= 1 and cell_incarnation; "
                "pass the number that whoever started the cell chose"
            )
            raise InvalidFact(msg)


class WorkerStarted(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A process began; it cannot serve yet (compiling, loading weights)."""

    PUBLISHED_BY: ClassVar[str] = "the worker, or whoever starts it: the Ray manager, a recovery thread"

    node: str | None = None
    """The machine it runs on, for people."""
    pid: Count | None = None
    """Its process there, for people."""


class WorkerUp(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It can serve."""

    PUBLISHED_BY: ClassVar[str] = (
        "the worker, health checks, recovery threads, the Ray manager; the leading controller when a worker "
        "whose lease was over is heard of again"
    )

    lease: Lease | None = None
    """Seconds, within which its publisher says again and again, outside the log, that it lives. After so much silence
    it is asked, and only then said to be down. Left out: what was said before holds, or nobody waits to hear."""


class WorkerDown(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """This life is over."""

    PUBLISHED_BY: ClassVar[str] = (
        "the worker, health checks, recovery threads, the Ray manager; the leading controller when a lease is over and "
        "the worker does not answer"
    )

    evidence: Evidence
    """How it is known. `exited`, `actor_dead`, `refused`, `operator` and `planned` were seen; the
    others are inferred."""
    reason: str = ""
    """For people."""


class WorkerSuspected(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A probe failed, not yet often enough to say that it is down."""

    PUBLISHED_BY: ClassVar[str] = "health checks"

    reason: str = ""
    """For people."""


class WorkerSuspended(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Asleep on purpose (weight update, offload): not dead, not to be probed."""

    PUBLISHED_BY: ClassVar[str] = "the worker or its trainer"

    reason: str = ""
    """For people."""
    until: str | None = None
    """RFC 3339; the leader publishes WorkerResumed when the log's clock passes it. Left out: until resumed."""
    ttl: float | None = None
    """Seconds from the moment at which the log stored this until the same end; it counts, and `until` is for people
    then. Left out: `until` counts."""


class WorkerResumed(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The suspension is over, or a suspicion proved wrong."""

    PUBLISHED_BY: ClassVar[str] = (
        "the worker or its trainer; health checks; the leading controller when `until` is over"
    )

    reason: str = ""
    """For people."""


class WorkerDraining(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It is about to stop: no new requests, the running ones may end."""

    PUBLISHED_BY: ClassVar[str] = "the worker, or whoever is about to stop it: `rollbook stop`"

    reason: str = ""
    """For people."""
    deadline_seconds: float | None = None
    """Seconds that running requests get. Left out: what the proxy's configuration says."""


class WorkerRetired(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It left on purpose and this life does not come back."""

    reason: str = ""
    """For people."""


class WeightsLoaded(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It now holds this version of the weights."""

    PUBLISHED_BY: ClassVar[str] = "the worker, or the trainer that loaded it"

    version: Integer
    """Of the weights."""


class RecoveryStarted(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Somebody began to replace this life by a new one. With `until` it claims the cell for its author alone."""

    PUBLISHED_BY: ClassVar[str] = "whoever restarts workers: the Ray manager, a recovery thread, `rollbook recover`"

    attempt: Count = 1
    """Which try it is, from 1."""
    at: str | None = None
    """RFC 3339, by the log's clock as its author knows it: attempts are counted by it. Left out: it does not count."""
    until: str | None = None
    """RFC 3339, by the same clock; the leader publishes RecoveryFailed when so much time as lies between the two has
    gone by since the log has stored this, and the worker is not up. Left out: it is no claim."""


class RecoveryFailed(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The attempt to replace this life failed. It ends the claim."""

    PUBLISHED_BY: ClassVar[str] = (
        "whoever restarts workers: the Ray manager, a recovery thread, `rollbook recover`; the leading controller when "
        "a claim is over"
    )

    attempt: Count = 1
    """Which try it was, from 1."""
    reason: str = ""
    """For people."""
    cordoned: bool = False
    """It was the last one: from now on the worker is cordoned for this reason, until an operator uncordons it."""
