"""One run of some work at a time, for everybody who asked before it began.

However many ask at once, whoever is asked in turn (a router, a provider) sees no more than one question under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rollbook.projections.ending import end

T = TypeVar("T")


class Shared(Generic[T]):
    """Runs `work` on demand. Who asks while it runs gets the next run's result, never one that began before."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def fresh(self) -> T:
        """The result of a run that begins after this call; raises what the run raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(_retrieved)
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[T] | None) -> T:
        if running is not None and not running.done():
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await self._work()

    async def close(self) -> None:
        """End what is under way."""
        await end(*(task for task in (self._running, self._next) if task is not None))


def _retrieved(task: asyncio.Task[T]) -> None:
    """Whoever waited may be gone; an error nobody waits for is not an error."""
    if not task.cancelled():
        task.exception()
