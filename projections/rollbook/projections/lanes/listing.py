"""Reading a proxy back, shared by all who wait for something to be seen there.

At most one listing is under way at a time. `fresh` answers with one that began after it was called, so nobody decides
on what was true before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, TypeVar

from rollbook.projections.deciding.observed import believed
from rollbook.projections.ports import Clock, Entry, Listing, Proxy, ProxyUnavailable
from rollbook.projections.shared import Shared
from rollbook.projections.state.ledger import ProxyRecord

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


async def listed_now(proxy: Proxy, record: ProxyRecord, seconds: float) -> Listing:
    """What it lists; of one that lists nothing, what the log believes. Raises `ProxyUnavailable`."""
    if not proxy.capabilities.list:
        return believed(record)
    return await bounded(proxy.list(), seconds, f"{proxy.name}: list")


class Seen:
    """A listing and when it began, on the lane's own count."""

    def __init__(self, began: int, listing: Listing) -> None:
        self.began = began
        self.listing = listing

    @cached_property
    def entries(self) -> dict[tuple[str, str], Entry]:
        """By handle and URL."""
        return {(entry.handle, entry.url): entry for entry in self.listing.entries}

    def running(self, entry: Entry) -> int | None:
        """On how many requests the proxy still works of what was listed as `entry`; None if it does not tell."""
        now = self.entries.get((entry.handle, entry.url))
        return 0 if now is None else now.running


class Reader:
    """Lists one proxy on demand."""

    def __init__(self, proxy: Proxy, clock: Clock, seconds: float) -> None:
        self.clock = clock
        self._proxy = proxy
        self._seconds = seconds
        self._count = itertools.count(1)
        self._shared = Shared(self._list)

    def tick(self) -> int:
        """The present moment on the count that `Seen.began` uses."""
        return next(self._count)

    async def fresh(self) -> Seen:
        """A listing that begins after this call. Raises `ProxyUnavailable`."""
        return await self._shared.fresh()

    async def _list(self) -> Seen:
        began = self.tick()
        return Seen(began, await bounded(self._proxy.list(), self._seconds, f"{self._proxy.name}: list"))

    async def until(
        self,
        seen: Callable[[Seen], bool],
        give_up: Callable[[], Awaitable[str | None]],
        seconds: float,
        *,
        most_pause: float = MOST_PAUSE,
    ) -> str | None:
        """Look again and again until `seen` is true (returns None) or there is a reason to stop (returned).

        `give_up` is asked after every look that did not show it. A look that fails is a look that did not show it.
        """
        deadline = self.clock.monotonic() + seconds
        pause = FIRST_PAUSE
        while True:
            try:
                if seen(await self.fresh()):
                    return None
            except ProxyUnavailable as exc:
                last = str(exc)
            else:
                last = f"not seen within {seconds:g} s"
            reason = await give_up()
            if reason is not None:
                return reason
            if self.clock.monotonic() >= deadline:
                return last
            await self.clock.sleep(pause)
            pause = min(pause * 2, most_pause)

    async def gone(self, entry: Entry, seconds: float) -> str | None:
        """None once `entry` is not listed any more; otherwise why that is not waited for any longer."""
        return await self.until(lambda seen: (entry.handle, entry.url) not in seen.entries, _never, seconds)

    async def close(self) -> None:
        """Stop what is under way."""
        await self._shared.close()


class Believer(Reader):
    """Stands where a reader does at a proxy that lists nothing: gives what the ledger believes of it now."""

    def __init__(self, proxy: Proxy, clock: Clock, seconds: float, record: Callable[[], ProxyRecord]) -> None:
        super().__init__(proxy, clock, seconds)
        self._record = record

    async def fresh(self) -> Seen:
        """What the proxy should hold by the log. Calls nobody."""
        return Seen(self.tick(), believed(self._record()))


async def _never() -> str | None:
    return None


def reader_of(proxy: Proxy, clock: Clock, seconds: float, record: Callable[[], ProxyRecord]) -> Reader:
    """What reads this proxy back, by what it can do."""
    return Reader(proxy, clock, seconds) if proxy.capabilities.list else Believer(proxy, clock, seconds, record)
