"""Leadership in memory: one seat, and the contenders for it."""

from __future__ import annotations

import asyncio

from rollbook.events.times import rfc3339
from rollbook.projections.ports import AlreadyLed, Clock


class Seat:
    """What the contenders of one fleet share. A killed holder keeps it until `vacate`: a claim outlives its process."""

    def __init__(self, fleet: str) -> None:
        self.fleet = fleet
        self.epoch = 0
        """Counts owners; never goes back."""
        self.owner: str | None = None
        self.since = ""
        self.lost: asyncio.Future[str] | None = None

    def vacate(self, reason: str) -> None:
        """Take the seat from its owner, who learns it from `lost`."""
        self.owner = None
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(reason)


class MemoryLeadership:
    """One contender for a seat."""

    def __init__(self, seat: Seat, clock: Clock) -> None:
        self._seat = seat
        self._clock = clock
        self._epoch = 0
        self._lost: asyncio.Future[str] | None = None

    @property
    def _held(self) -> bool:
        return self._epoch > 0 and self._seat.owner is not None and self._seat.epoch == self._epoch

    async def acquire(self, owner: str) -> int:
        """Take the seat and return the epoch. Raises `AlreadyLed`, also if it is this contender who has it."""
        seat = self._seat
        if seat.owner is not None:
            raise AlreadyLed(seat.fleet, seat.owner, seat.since)
        seat.owner, seat.since = owner, rfc3339(self._clock.now())
        seat.epoch += 1
        seat.lost = self._lost = asyncio.get_running_loop().create_future()
        self._epoch = seat.epoch
        return seat.epoch

    async def lost(self) -> str:
        """Wait until the seat is taken away; return why. Waits for ever if it is not held."""
        if self._lost is None:
            self._lost = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._lost)

    async def release(self) -> None:
        """Give it back. Does nothing if it is not held."""
        if self._held:
            self._seat.owner = None
            self._lost = None
