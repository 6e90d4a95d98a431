"""Leadership in memory: one seat, and the contenders for it."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from rollbook.events.times import rfc3339
from rollbook.projections.ending import end
from rollbook.projections.ports import AlreadyLed, Clock, LogUnavailable

RENEWALS: Final = 5
"""Within one lease."""


class Seat:
    """What the contenders of one fleet share.

    `lease` (seconds) is how long a claim lasts that nobody renews. By default it lasts for ever: the seat of a killed
    holder stays taken until `vacate`.
    """

    def __init__(self, fleet: str, lease: float = math.inf) -> None:
        self.fleet = fleet
        self.lease = lease
        self.available = True
        """False: nothing can be asked, taken, renewed or given back."""
        self.epoch = 0
        """Counts owners; never goes back."""
        self.owner: str | None = None
        self.since = ""
        self.until = math.inf
        """When the claim runs out, on the contenders' monotonic clock."""
        self.lost: asyncio.Future[str] | None = None
        self.changed = asyncio.Event()

    def vacate(self, reason: str) -> None:
        """Take the seat from its owner, who learns it from `lost`."""
        self.owner = None
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(reason)
        self.tell()

    def tell(self) -> None:
        """Wake who waits for a change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class MemoryLeadership:
    """One contender for a seat."""

    def __init__(self, seat: Seat, clock: Clock) -> None:
        self._seat = seat
        self._clock = clock
        self._epoch = 0
        self._until = 0.0
        self._lost: asyncio.Future[str] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def _taken(self) -> bool:
        return self._seat.owner is not None and self._clock.monotonic() < self._seat.until

    async def acquire(self, owner: str) -> int:
        """Take the seat and return the epoch.

        Raises `AlreadyLed`, also if it is this contender who has it, or `LogUnavailable`.
        """
        seat = self._seat
        self._check()
        if seat.owner is not None and self._taken():
            raise AlreadyLed(seat.fleet, seat.owner, seat.since)
        seat.owner, seat.since = owner, rfc3339(self._clock.now())
        seat.epoch += 1
        seat.until = self._until = self._clock.monotonic() + seat.lease
        if self._lost is None or self._lost.done():
            self._lost = asyncio.get_running_loop().create_future()
        seat.lost = self._lost
        self._epoch = seat.epoch
        if math.isfinite(seat.lease):
            self._keeper = asyncio.create_task(self._keep(), name=f"leadership of {owner}")
        return seat.epoch

    def _check(self) -> None:
        if not self._seat.available:
            msg = "the seat in memory is unavailable; try again"
            raise LogUnavailable(msg)

    async def _keep(self) -> None:
        """Renew the claim until it is lost."""
        seat = self._seat
        while True:
            await self._clock.sleep(seat.lease / RENEWALS)
            if self.left() <= 0:
                self._lose(f"it could not be renewed within {seat.lease:g} s")
                return
            if not seat.available:
                continue
            if not self._taken() or seat.epoch != self._epoch:
                self._lose("the claim was removed or taken")
                return
            seat.until = self._until = self._clock.monotonic() + seat.lease

    def _lose(self, reason: str) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    def left(self) -> float:
        """Seconds for which it is certainly still held; 0 or less if it is not."""
        if self._epoch == 0 or self._lost is None or self._lost.done():
            return 0.0
        return self._until - self._clock.monotonic()

    async def free(self) -> None:
        """Wait until the seat is given back or its claim has run out."""
        seat = self._seat
        while self._taken():
            left = seat.until - self._clock.monotonic()
            changed = seat.changed
            try:
                async with asyncio.timeout(left if math.isfinite(left) else None):
                    await changed.wait()
            except TimeoutError:
                continue

    async def lost(self) -> str:
        """Wait until the seat is taken away; return why. Waits for ever if it is not held."""
        if self._lost is None:
            self._lost = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._lost)

    async def release(self) -> bool:
        """Give it back; return whether it was held and is free now."""
        seat, epoch = self._seat, self._epoch
        self._epoch = 0
        if self._keeper is not None:
            await end(self._keeper)
            self._keeper = None
        self._lost = None
        if not epoch or not seat.available or seat.epoch != epoch or not self._taken():
            return False
        seat.owner = None
        seat.tell()
        return True
