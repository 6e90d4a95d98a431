"""What a publisher remembers of its own facts, so that it neither supersedes itself nor claims to know too much."""

from __future__ import annotations

from collections import deque
from typing import Final

from rollbook.adapters.publisher.entry import Entry
from rollbook.events import RecoveryStarted, WorkerDown, WorkerFact, WorkerUp

_REMEMBERED: Final = 16
"""Own ids kept per subject. A probe during which more facts of one's own were stored counts as superseded."""


class Memory:
    """Written by the loop. `known` is read by the callers' threads."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        """By worker: the last sequence on its subject that this publisher knows."""
        self.horizon = 0
        """The highest sequence of the stream that this publisher knows."""
        self._own: dict[str, deque[str]] = {}
        self._own_down: dict[str, int] = {}
        """By subject: the last fact of one's own that takes the worker down."""

    def stored(self, entry: Entry, sequence: int) -> None:
        """A fact of one's own stands in the log."""
        fact = entry.fact
        if isinstance(fact, WorkerFact) and sequence <= self.known.get(fact.worker, 0):
            self._forget()  # facts about one worker go one after the other: the log was made anew, or lost its end
        self.horizon = max(self.horizon, sequence)
        self._own.setdefault(entry.subject, deque(maxlen=_REMEMBERED)).append(entry.receipt.id)
        if isinstance(fact, WorkerFact):
            self.known[fact.worker] = sequence
            if isinstance(fact, WorkerDown | RecoveryStarted):
                self._own_down[entry.subject] = sequence

    def _forget(self) -> None:
        self.horizon = 0
        for known in (self.known, self._own, self._own_down):
            known.clear()

    def is_own(self, subject: str, fact_id: str) -> bool:
        """Whether this publisher wrote that fact, not long ago."""
        return fact_id in self._own.get(subject, ())

    def revives_own_down(self, entry: Entry) -> bool:
        """An Up that was called before this publisher's own Down was acknowledged, and stands after it.

        It must count although its author did not know that Down's sequence yet; but only as long as nobody else spoke
        in between, because then it would be a late Up that revives the dead.
        """
        return isinstance(entry.fact, WorkerUp) and entry.seen < self._own_down.get(entry.subject, 0)

    def is_first_up(self, entry: Entry) -> bool:
        """An Up of a numbered life, by a publisher that knows nothing of the worker: so it may not know of a Down."""
        fact = entry.fact
        if not isinstance(fact, WorkerUp) or entry.fence is not None or entry.recovered is not None:
            return False
        return bool(fact.incarnation) and not (fact.seen or entry.seen)
