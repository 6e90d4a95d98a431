"""The jobs of a router in memory: what it has accepted and carries out by itself, a few at a time.

They run outside the context of whoever asked for them: killing a simulated controller does not kill its routers.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Final

from rollbook.projections.ending import end

SLOTS: Final = 10
"""Jobs that are carried out at a time; an add of a worker that does not answer holds one."""


class Jobs:
    """Of one router, from one start of its process to the next. What jobs raise is put into `broken`."""

    def __init__(self, context: contextvars.Context, broken: list[BaseException]) -> None:
        self.slots = asyncio.Semaphore(SLOTS)
        self._context = context
        self._broken = broken
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry it out beside everything else."""
        task = asyncio.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None and exc not in self._broken:
            self._broken.append(exc)

    def cancel(self) -> None:
        """The process is gone, and its jobs with it."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End them, so that no task is left."""
        await end(*self._tasks)
