"""Reading a proxy back, shared by all who wait for something to be seen there.

At most one listing is under way at a time. `fresh` answers with one that began after it was called, so nobody decides
on what was true before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from rollbook.projections.ports import Clock, Listing, Proxy, ProxyUnavailable

FIRST_PAUSE: Final = 0.002
MOST_PAUSE: Final = 0.25
"""Seconds between two looks while waiting for a change to be seen: doubling from the first to the most."""

T = TypeVar("T")


async def bounded(call: Awaitable[T], seconds: float, what: str) -> T:
    """An outside call with its deadline. Whatever goes wrong in it becomes `ProxyUnavailable`."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as exc:
        msg = f"{what}: no answer within {seconds:g} s"
        raise ProxyUnavailable(msg) from exc
    except ProxyUnavailable:
        raise
    except Exception as exc:
        msg = f"{what}: {type(exc).__name__}: {exc}"
        raise ProxyUnavailable(msg) from exc


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A listing and when it began, on the lane's own count."""

    began: int
    listing: Listing


class Reader:
    """Lists one proxy on demand."""

    def __init__(self, proxy: Proxy, clock: Clock, seconds: float) -> None:
        self._proxy = proxy
        self._clock = clock
        self._seconds = seconds
        self._count = itertools.count(1)
        self._running: asyncio.Task[Seen] | None = None
        self._next: asyncio.Task[Seen] | None = None

    def tick(self) -> int:
        """The present moment on the count that `Seen.began` uses."""
        return next(self._count)

    async def fresh(self) -> Seen:
        """A listing that begins after this call. Raises `ProxyUnavailable`."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(_retrieved)
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[Seen] | None) -> Seen:
        if running is not None and not running.done():
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        began = self.tick()
        return Seen(began, await bounded(self._proxy.list(), self._seconds, f"{self._proxy.name}: list"))

    async def until(
        self, seen: Callable[[Listing], bool], give_up: Callable[[], Awaitable[str | None]], seconds: float
    ) -> str | None:
        """Look again and again until `seen` is true (returns None) or there is a reason to stop (returned).

        `give_up` is asked after every look that did not show it. A look that fails is a look that did not show it.
        """
        deadline = self._clock.monotonic() + seconds
        pause = FIRST_PAUSE
        while True:
            try:
                if seen((await self.fresh()).listing):
                    return None
            except ProxyUnavailable as exc:
                last = str(exc)
            else:
                last = f"not seen within {seconds:g} s"
            reason = await give_up()
            if reason is not None:
                return reason
            if self._clock.monotonic() >= deadline:
                return last
            await self._clock.sleep(pause)
            pause = min(pause * 2, MOST_PAUSE)

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = [task for task in (self._running, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _retrieved(task: asyncio.Task[Seen]) -> None:
    """Whoever waited may be gone; an error nobody waits for is not an error."""
    if not task.cancelled():
        task.exception()
