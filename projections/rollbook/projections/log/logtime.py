"""What time it is by the log's own clock: the one that all who read the log share, whatever their machines believe.

The log stamps every message and every answer about itself. Between two stamps a process counts on with its monotonic
clock, which nobody sets. Programs' wall clocks are for people only.
"""

from __future__ import annotations

from rollbook.projections.ports import Clock


class LogTime:
    """The log's clock as one process knows it: behind by the way of a stamp to it, and never set back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin: float | None = None
        """What to add to the monotonic clock."""

    def heard(self, stamp: float) -> None:
        """The log stood at `stamp` (seconds since the epoch) a moment ago, or long ago; 0 if it did not say."""
        origin = stamp - self._clock.monotonic()
        if stamp and (self._origin is None or origin > self._origin):
            self._origin = origin

    def now(self) -> float:
        """Seconds since the epoch; 0 as long as nothing was heard."""
        return 0.0 if self._origin is None else self._origin + self._clock.monotonic()
