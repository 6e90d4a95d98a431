"""The real clock behind the `Clock` port. The simulation has its own, on virtual time."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The machine's clocks and the running loop's sleep."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch: for people."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from some origin, never backwards: for deadlines."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after at least `seconds` of `monotonic`."""
        until = time.monotonic() + seconds
        await asyncio.sleep(seconds)
        left = until - time.monotonic()
        # The loop may wake up early, by up to its clock's resolution.
        while left > 0:
            await asyncio.sleep(left)
            left = until - time.monotonic()
