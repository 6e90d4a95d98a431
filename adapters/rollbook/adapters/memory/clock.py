"""A clock that follows the running event loop: on a `VirtualLoop` it is as virtual as the loop's time."""

from __future__ import annotations

import asyncio
from typing import Final

EPOCH: Final = 1_800_000_000.0
"""The wall clock's reading when a virtual loop's time is 0."""


class LoopClock:
    """Time as the running loop has it. Usable from within a loop only."""

    def __init__(self, epoch: float = EPOCH) -> None:
        self._epoch = epoch

    def now(self) -> float:
        """Wall clock, seconds since the epoch: for people."""
        return self._epoch + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """The loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after at least `seconds` of `monotonic`."""
        await asyncio.sleep(seconds)
