"""The story of one worker as data: its lives, who said what, what was decided and what the proxies answered."""

from __future__ import annotations

from typing import Literal

import msgspec

from rollbook.events import Fact


class GateAnswer(msgspec.Struct, frozen=True):
    """One gate, asked of the worker at one moment."""

    gate: str
    passed: bool
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What the gates say of the worker at one proxy. After the first that fails, none is asked."""

    proxy: str
    gates: tuple[GateAnswer, ...]

    @property
    def wanted(self) -> bool:
        """Whether it passes all that the log answers."""
        return all(gate.passed for gate in self.gates)

    @property
    def failed(self) -> GateAnswer | None:
        """The gate that keeps it out."""
        return next((gate for gate in self.gates if not gate.passed), None)


class Step(msgspec.Struct, frozen=True):
    """What a fact about a registration is in the chain of cause and effect."""

    cause: int
    """The sequence that the fact names: the worker's last fact for an intent, the intent for an outcome."""
    because: int
    """The sequence after which the lane acted: the newest that changed something here, at or after `cause`."""
    seconds: float | None
    """Since `because` was stored; None where that is not known."""
    slowest: bool = False
    """The longest of all delays that are told."""


class Event(msgspec.Struct, frozen=True):
    """One fact of the story."""

    sequence: int
    stored_at: float
    """Seconds since the epoch by the log's clock."""
    type: str
    about: str
    """The worker or proxy; empty for the fleet."""
    source: str
    fact: Fact
    effects: tuple[str, ...] = ()
    """What became another for the worker."""
    ignored: str | None = None
    superseded_by: int | None = None
    """Of an ignored fact: the sequence that it came too late for."""
    verdicts: tuple[Verdict, ...] = ()
    """Of the proxies where it is another than before."""
    step: Step | None = None


class Life(msgspec.Struct, frozen=True):
    """From the first fact of an incarnation to the first of the next."""

    incarnation: int
    """0 before the first."""
    events: tuple[Event, ...]


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """One change at a proxy, from what led to it to its outcome."""

    proxy: str
    incarnation: int
    action: Literal["register", "deregister"]
    cause: int
    """As the intent names it: the worker's last fact then."""
    because: int
    """What the lane acted after: the newest that changed something here, at or after `cause`."""
    decided: int | None = None
    """Sequence of the intent; None for what was only read back."""
    answered: int | None = None
    """Sequence of the outcome; None if the log has none."""
    result: Literal["confirmed", "failed", "unanswered", "read back"]
    to_decide: float | None = None
    """Seconds from `because` to the intent."""
    to_answer: float | None = None
    """Seconds from the intent to the outcome."""
    in_all: float | None = None
    """Seconds from `cause` to the outcome."""


class StandsNow(msgspec.Struct, frozen=True):
    """How it stands at one proxy at the end of the story."""

    verdict: Verdict
    told: str | None
    """The last word on its current life there; None if there is none."""
    url: str | None
    reason: str
    since: int
    """Sequence of that word, 0 for none."""
    held: str | None
    """Who holds back all admin calls there, and why."""


class Narrative(msgspec.Struct, frozen=True):
    """The whole story of one worker."""

    fleet: str
    worker: str
    sequence: int
    """Told up to here."""
    phase: str
    incarnation: int
    lives: tuple[Life, ...]
    passages: tuple[Passage, ...]
    now: tuple[StandsNow, ...]
    notes: tuple[str, ...] = ()
