"""What is asked of a controller and what it answers: JSON, the same structs on both sides.

A verb is a name, and the types of its request, its progress (if it takes long) and its reply.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec

from rollbook.events import validate_name
from rollbook.projections.looking.preview import Preview
from rollbook.projections.looking.saved import SavedPlan
from rollbook.projections.looking.status import FleetStatus
from rollbook.projections.looking.verification import Verification

SUBJECT_PREFIX: Final = "rollbook-rpc"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all requests."""

    deadline_seconds: float = 30.0
    """After which nobody waits for the reply any more, and work on it ends."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of those replies and progress messages that are not shared with other parts of Rollbook."""


class InfoRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Ask who leads."""

    digest: bool = False
    """Whether its state's digest is wanted too, which takes it some milliseconds."""


class Info(Reply, frozen=True, kw_only=True):
    """Who leads the fleet."""

    fleet: str
    owner: str
    epoch: int
    sequence: int
    """Of the log: what it has folded."""
    version: str
    since: str
    """RFC 3339, by its own clock: when its lanes began to act."""
    uptime_seconds: float
    proxies: dict[str, tuple[str, ...]]
    """By name, the pools that each serves."""
    digest: str | None = None
    """SHA-256 of the state at `sequence`, hexadecimal; None if it was not asked for."""


class PlanRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Preview a pass."""

    proxy: str | None = None
    """None: at all of them."""


class ReconcileRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A pass now."""

    by: str
    """Who asks, for the log."""
    proxy: str | None = None
    force: bool = False
    """Whether the removal budget may be exceeded [I12]."""
    plan: SavedPlan | None = None
    """Refuse unless this is exactly what is to be done."""


class VerifyRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Read proxies back, and send requests through them."""

    proxy: str | None = None
    """None: all of them."""
    requests: int | None = None
    """Through each; None: three for each listed worker, at least 8; 0: the read-back only."""
    path: str | None = None
    """None: what fits the kind."""
    model: str | None = None
    """None: the pool's, or the first that the proxy names."""


class Step(Reply, frozen=True, kw_only=True):
    """What happened to one entry: the outcome of an admin call, as the log has it."""

    outcome: Literal["registered", "deregistered", "failed"]
    proxy: str
    worker: str | None
    """None for an entry of others, at an exclusive proxy."""
    incarnation: int | None
    url: str
    sequence: int
    reason: str = ""
    """Of a failure: which call, and what was said."""


class Reconciled(Reply, frozen=True, kw_only=True):
    """What a pass did, and what it left."""

    finished: bool
    """False if time ran out first; the controller goes on all the same."""
    steps: tuple[Step, ...]
    """In the order of the log."""
    left: Preview
    """What would be done now, or is withheld, and why."""


class Problem(msgspec.Struct, frozen=True):
    """Why there is no reply."""

    kind: Literal["usage", "overtaken", "failed", "late", "defect"]
    """`usage`: the request cannot be; `overtaken`: a saved plan does not fit; `late`: the deadline was over first."""
    message: str
    """Sentences for a person."""


Asked = TypeVar("Asked", bound=Request)
Update = TypeVar("Update")
Answer = TypeVar("Answer")


class Verb(msgspec.Struct, Generic[Asked, Update, Answer], frozen=True):
    """One thing that can be asked."""

    name: str
    request: type[Asked]
    progress: type[Update]
    """`Reply` where there is none."""
    reply: type[Answer]
    acts: bool = False
    """Whether it does more than look: then nothing is begun for somebody who has gone."""

    def subject(self, fleet: str) -> str:
        """Where it is asked."""
        return f"{SUBJECT_PREFIX}.{validate_name('fleet', fleet)}.{self.name}"


INFO: Final = Verb("info", InfoRequest, Reply, Info)
STATUS: Final = Verb("status", Request, Reply, FleetStatus)
PLAN: Final = Verb("plan", PlanRequest, Reply, Preview)
RECONCILE: Final = Verb("reconcile", ReconcileRequest, Step, Reconciled, acts=True)
VERIFY: Final = Verb("verify", VerifyRequest, Reply, Verification, acts=True)
