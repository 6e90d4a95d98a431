"""A proxy whose calls are timed: the same answers and errors, each noted with its verb, its result and its seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Listing,
    Pending,
    Proxy,
    Target,
    Unsupported,
)

T = TypeVar("T")

Note = Callable[[str, str, str, float], None]
"""Called after every call with proxy, verb (`list`, `add`, `drain`, `remove`, `outcome`), result and seconds."""

BROKEN_OFF: Final = "broken off"
"""Nobody waited for the answer any more: the caller's deadline was over, or the controller stops."""

RESULTS: Final = ("done", "pending", "failed", "unsupported", "unavailable", BROKEN_OFF)
"""Every result that there is. `unavailable` is no usable answer, and so is any other error."""


class MeasuredProxy:
    """Stands in for `proxy` everywhere."""

    def __init__(self, proxy: Proxy, note: Note) -> None:
        self._proxy = proxy
        self._note = note

    def __repr__(self) -> str:
        return repr(self._proxy)

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self._proxy.name

    @property
    def kind(self) -> str:
        """As of the proxy within."""
        return self._proxy.kind

    @property
    def capabilities(self) -> Capabilities:
        """As of the proxy within."""
        return self._proxy.capabilities

    def canonical_url(self, url: str) -> str:
        """As of the proxy within."""
        return self._proxy.canonical_url(url)

    async def list(self) -> Listing:
        """What it lists now. Raises `ProxyUnavailable`."""
        return await self._measured("list", self._proxy.list())

    async def add(self, target: Target) -> Answer:
        """Ask it to add `target`. Raises `ProxyUnavailable`."""
        return await self._measured("add", self._proxy.add(target))

    async def drain(self, entry: Entry) -> Answer:
        """Ask it to send `entry` nothing new. Raises `ProxyUnavailable`."""
        return await self._measured("drain", self._proxy.drain(entry))

    async def remove(self, entry: Entry) -> Answer:
        """Ask it to remove exactly `entry`. Raises `ProxyUnavailable`."""
        return await self._measured("remove", self._proxy.remove(entry))

    async def outcome(self, pending: Pending) -> Answer:
        """What became of a pending add. Raises `ProxyUnavailable`."""
        return await self._measured("outcome", self._proxy.outcome(pending))

    async def close(self) -> None:
        """Let go of connections."""
        await self._proxy.close()

    async def _measured(self, verb: str, call: Awaitable[T]) -> T:
        began = time.monotonic()
        result = "unavailable"
        try:
            answer = await call
            result = _result(answer)
        except asyncio.CancelledError:
            result = BROKEN_OFF
            raise
        finally:
            self._note(self._proxy.name, verb, result, time.monotonic() - began)
        return answer


def _result(answer: object) -> str:
    match answer:
        case Listing() | Done():
            return "done"
        case Pending():
            return "pending"
        case Failed():
            return "failed"
        case Unsupported():
            return "unsupported"
        case _:
            return "unavailable"
