"""When a key is tried again: exponential backoff with full jitter, each key on a schedule of its own."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Final

from rollbook.projections.policy import ReconcilePolicy
from rollbook.projections.ports import Clock

MOST_DOUBLINGS: Final = 20


class Retries:
    """The failures in a row of every key, and when each is due."""

    def __init__(self, paces: ReconcilePolicy, clock: Clock, rng: random.Random) -> None:
        self._paces = paces
        self._clock = clock
        self._rng = rng
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def __contains__(self, key: str) -> bool:
        """Whether `key` waits to be tried again."""
        return key in self._due

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._due)

    def failed_before(self, key: str) -> bool:
        """Whether its last try failed."""
        return key in self._failures

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row before the last one."""
        paces = self._paces
        most = min(paces.backoff_most, paces.backoff_first * 2.0 ** min(failures, MOST_DOUBLINGS))
        return self._rng.uniform(0, most)

    def failed(self, key: str) -> float:
        """It failed once more: it is due after the seconds returned."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = self.pause(failures - 1)
        self._due[key] = self._clock.monotonic() + pause
        return pause

    def succeeded(self, key: str) -> None:
        """Its next failure is a first one. When it is due stays as it is."""
        self._failures.pop(key, None)

    def started(self, key: str) -> None:
        """It is tried now."""
        self._due.pop(key, None)

    def hurry(self) -> None:
        """Whoever waits need not: everybody is looked at now."""
        self._due.clear()

    def take_due(self) -> list[str]:
        """The keys whose time has come; they wait no longer."""
        now = self._clock.monotonic()
        due = [key for key, moment in self._due.items() if moment <= now]
        for key in due:
            del self._due[key]
        return due

    def next_due(self, default: float) -> float:
        """When the first one is due, on the clock's `monotonic`; `default` if none is or it is sooner."""
        return min(default, min(self._due.values(), default=default))

    def forgive(self, looked_at: Iterable[str] | None, needing: Collection[str]) -> None:
        """Who needs nothing any more has not failed: its next life is not to wait for what its last one did.

        `looked_at` None stands for everybody.
        """
        for key in list(self._failures if looked_at is None else looked_at):
            if key not in needing:
                self._failures.pop(key, None)
