"""A blind proxy that does not answer: one call at a time is its probe, instead of one retry per worker.

A proxy that lists is probed by listing it. Where there is no listing, one of the calls that are to be made anyway must
serve; when it is answered, all the others follow at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollbook.projections.deciding.plan import Action, Add, Remove
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.lanes.retries import Retries
from rollbook.projections.ports import Clock


class Patience:
    """With one proxy."""

    def __init__(self, desk: Desk, retries: Retries, clock: Clock) -> None:
        self._desk = desk
        self._retries = retries
        self._clock = clock
        self._next = 0.0
        self._failures = 0
        self._turn = 0
        self._waiting = False

    @property
    def away(self) -> bool:
        """Whether it lists nothing and did not answer last."""
        return self._desk.blind and self._desk.record.reachable is False

    @property
    def next_at(self) -> float:
        """When it is probed again, on the clock's `monotonic`; never while nobody waits, or a call is under way."""
        return self._next if self._waiting and self.away else math.inf

    def rest(self) -> None:
        """Nothing may begin: nobody waits."""
        self._waiting = False

    def chosen(self, actions: Sequence[Action], *, busy: bool) -> Sequence[Action]:
        """Which of these may begin: all, or one call and what calls nobody. `busy`: another one is under way."""
        if not self.away:
            return actions
        calls = [action for action in actions if isinstance(action, Add | Remove)]
        words = [action for action in actions if not isinstance(action, Add | Remove)]
        self._waiting = bool(calls)
        if not calls or (self._clock.monotonic() < self._next and not busy):
            return words
        self._next = math.inf  # until a call that is under way has ended
        if busy:
            return words
        self._turn += 1
        return [*words, calls[self._turn % len(calls)]]

    def ended(self) -> bool:
        """A step has ended. True if the proxy is back, and all who waited are to be looked at now."""
        if self.away:
            pause = min(self._retries.pause(self._failures), self._desk.policy.reconcile.resync)
            self._failures += 1
            self._next = self._clock.monotonic() + pause
            return False
        waited, self._waiting, self._failures, self._next = self._waiting, False, 0, 0.0
        return waited
