"""The right to act for a fleet [I7]."""

from __future__ import annotations

from typing import Protocol

from rollbook.events import RollbookError


class AlreadyLed(RollbookError):
    """Another projector owns the fleet."""

    def __init__(self, fleet: str, owner: str, since: str) -> None:
        super().__init__(
            f"fleet {fleet!r} is led by {owner} since {since}. A fleet has one controller: stop that one first, or "
            "wait until its claim runs out if it is gone"
        )
        self.owner = owner


class Leadership(Protocol):
    """The right to act for a fleet, held by one process at a time."""

    async def acquire(self, owner: str) -> int:
        """Take it and return the epoch, higher than every earlier one. Raises `AlreadyLed` or `LogUnavailable`."""
        ...

    def left(self) -> float:
        """Seconds for which it is certainly still held [I7]; 0 or less if it is not."""
        ...

    async def free(self) -> None:
        """Wait until it may be had: given back or run out. Somebody else may still be faster. For standbys."""
        ...

    async def lost(self) -> str:
        """Wait until it is lost without having been released; return why."""
        ...

    async def release(self) -> bool:
        """Give it back; return whether it was held and is free now. Does nothing if it is not held. Never raises."""
        ...
