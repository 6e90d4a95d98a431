"""Ending tasks for sure, and cleaning up behind them.

Before Python 3.13 one cancellation can be lost in a library's `asyncio.wait_for`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS: Final = 15.0
"""For a cancelled task to end; its cleanup is not cut short before."""


async def end(*tasks: asyncio.Future[Any], patience: float = PATIENCE_SECONDS) -> None:
    """Cancel the tasks, and again every `patience` seconds, until all have ended. What they raise is dropped.

    Whoever is cancelled while it waits here waits on, and is cancelled afterwards: what comes after the end of the
    tasks (leadership is given back, a store is closed) must not come before it.
    """
    left = set(tasks)
    to_cancel = left
    interrupted: asyncio.CancelledError | None = None
    while left:
        for task in to_cancel:
            task.cancel()
        try:
            _, left = await asyncio.wait(left, timeout=patience)
            to_cancel = left
        except asyncio.CancelledError as exc:
            interrupted = exc
            left, to_cancel = {task for task in left if not task.done()}, set()
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if interrupted is not None:
        raise interrupted


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, as a task of its own: for what cleans up within a deadline.

    Before Python 3.11.3 a deadline (`asyncio.timeout`) that passes in a task that has been cancelled already ends in
    another cancellation in place of `TimeoutError`, and what was to come after it is left out.
    """
    return await asyncio.create_task(work)


async def in_turn(*endings: Callable[[], Awaitable[None]]) -> None:
    """Await one after the other, each whatever came of those before it: also if this is cancelled meanwhile.

    A plain sequence of `await end(...)` leaves out what comes after the one in which its caller was cancelled.
    """
    async with contextlib.AsyncExitStack() as stack:
        for ending in reversed(endings):
            stack.push_async_callback(ending)
