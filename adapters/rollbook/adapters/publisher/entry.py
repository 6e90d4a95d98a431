"""A fact on its way: what the caller's thread notes, and what the loop adds until it is in the log."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from rollbook.adapters.publisher.receipt import Receipt, Superseded, Unsent
from rollbook.events import Draft, Fact, RollbookError, subject_of
from rollbook.events.subjects import entity_of
from rollbook.events.times import rfc3339


class LifeNumber:
    """The incarnation of one life, 0 until the log has given it. Written by the loop only."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


class Fence(msgspec.Struct, frozen=True):
    """What a check knew when it began."""

    worker_sequence: int
    """The last on the worker's subject."""
    operator_sequence: int
    """The last on the operators' subject about that worker."""
    incarnation: int
    """The life that was checked; 0 if the log knows none."""


Arrival = tuple[Receipt[Any], Fact, float, int, LifeNumber | None, bool, Fence | None]
"""The first fields of `Entry`: a tuple, because the caller's thread makes it."""


class Attempt(msgspec.Struct, frozen=True):
    """A fenced publish that was sent and whose outcome may be unknown."""

    draft: Draft
    expected: int
    incarnation: int


class Entry(msgspec.Struct, eq=False):
    """One fact between `publish()` and its end. The first group is set by the caller's thread, the rest by the loop."""

    receipt: Receipt[Any]
    fact: Fact | None
    """None only for what an earlier process left behind."""
    called: float
    """Monotonic moment of the call."""
    seen: int = 0
    """The last sequence on the worker's subject that this publisher knew at the call."""
    life: LifeNumber | None = None
    """For a fact of a life that may not have its number yet."""
    ask: bool = False
    """Whether the log must be asked for the current incarnation, as of the call."""
    fence: Fence | None = None
    """For a probe's verdict."""

    key: int = 0
    """Rises in the order of acceptance."""
    subject: str = ""
    time: str = ""
    floor: int = 0
    """A sequence of the stream that was there before the first attempt: the fact cannot stand before it."""
    attempts: int = 0
    first_sent: float = 0.0
    """Monotonic moment of the first attempt."""
    asking: asyncio.Task[None] | None = None
    """The question to the log that was put at the moment of the call."""
    attempt: Attempt | None = None
    recovered: Draft | None = None
    """What an earlier process of the same durable outbox left behind."""
    label: str = ""
    outcome: int | Superseded | RollbookError | None = None

    def enter(self, key: int, fleet: str, called: float, floor: int) -> None:
        """The loop sees it for the first time. `called` is the wall clock at the call."""
        if self.fact is not None:
            self.subject = subject_of(self.fact, fleet)
        self.key, self.time, self.floor = key, rfc3339(called), floor

    def begin_attempt(self, now: float) -> None:
        """It is about to be sent."""
        self.attempts += 1
        self.first_sent = self.first_sent or now

    @property
    def incarnation_missing(self) -> bool:
        """Whether the fact cannot be sent yet because its life has no number."""
        return (self.life is not None and not self.life.value) or self.ask

    def unsent(self, reason: str, *, kept: bool = False) -> Unsent:
        """For a report."""
        return Unsent(self.receipt.id, self.what, self.fact, reason, kept)

    @property
    def what(self) -> str:
        """For people: `WorkerUp about rollout-3-0`."""
        if self.fact is None:
            return self.label
        return f"{type(self.fact).__name__} about {entity_of(self.fact) or 'the fleet'}"
