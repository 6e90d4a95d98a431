"""What differs in every run, handed in so that a simulated run can be repeated: time and ids."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time for the loops. The fold has none."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch: for people."""
        ...

    def monotonic(self) -> float:
        """Seconds from some origin, never backwards: for deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after at least `seconds` of `monotonic`."""
        ...


class Ids(Protocol):
    """Ids of facts."""

    def new(self) -> str:
        """A UUIDv7 that was never returned before."""
        ...
