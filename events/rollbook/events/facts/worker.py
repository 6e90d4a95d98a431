"""The worker family: what happens to one life of one worker.

Published by rollout workers, health checks, recovery threads and the Ray manager.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from rollbook.events.errors import InvalidFact
from rollbook.events.facts.base import Count, Fact, Incarnation, Integer, Name, Sequence

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

    worker: Name
    incarnation: Incarnation
    seen: Sequence = 0
    """The worker subject's last sequence that the author knew; 0 for none."""
    pool: Name | None = None
    cell: Name | None = None
    rank: Count | None = None
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

    node: str | None = None
    pid: Count | None = None


class WorkerUp(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It can serve."""


class WorkerDown(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """This life is over."""

    evidence: Evidence
    reason: str = ""


class WorkerSuspected(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A probe failed, not yet often enough to say that it is down."""

    reason: str = ""


class WorkerSuspended(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Asleep on purpose (weight update, offload): not dead, not to be probed."""

    reason: str = ""
    until: str | None = None
    """RFC 3339; the leader publishes WorkerResumed when its clock passes it. Left out: until resumed."""


class WorkerResumed(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The suspension is over, or a suspicion proved wrong."""

    reason: str = ""


class WorkerDraining(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It is about to stop: no new requests, the running ones may end."""

    reason: str = ""
    deadline_seconds: float | None = None


class WorkerRetired(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It left on purpose and this life does not come back."""

    reason: str = ""


class WeightsLoaded(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It now holds this version of the weights."""

    version: Integer


class RecoveryStarted(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Somebody began to replace this life by a new one."""

    attempt: Count = 1


class RecoveryFailed(WorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The attempt to replace this life failed."""

    attempt: Count = 1
    reason: str = ""
