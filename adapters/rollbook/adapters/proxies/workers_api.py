"""What routers' admin APIs share: `/workers`, the older `/list_workers`, and how long a listing may be.

vllm-router began as a copy of sglang-router, and has its `/workers`; the routers of miles and slime have what it had
before.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
import structlog

from rollbook.adapters.proxies.http import AdminHttp, Reply
from rollbook.adapters.proxies.urls import UnusableURL, canonical_url
from rollbook.projections.ports import Entry, Failed

MOST_ENTRIES: Final = 50_000
"""Bound on a listing: reading that many holds up the loop, and so every other lane and the lease, by 0.4 s."""

_log = structlog.get_logger(__name__)

W = TypeVar("W")


class _Workers(msgspec.Struct):
    workers: list[msgspec.Raw]


class _Urls(msgspec.Struct):
    urls: list[str]


class Refusal(msgspec.Struct):
    """The router's own way to say no; a proxy in front of it or another program says it differently."""

    error: str
    code: str


class WorkersReader:
    """Reads the listings of one router.

    Keeps how many entries it could not read, to say so on change, and the entries of the last listing by their bytes:
    while many workers come back, the router is listed again and again, and nearly all that it lists is as before.
    """

    def __init__(self, proxy: str) -> None:
        self._proxy = proxy
        self._unreadable = 0
        self._last: dict[bytes, Entry] = {}

    def entries(self, reply: Reply, kind: type[W], entry: Callable[[W], Entry]) -> tuple[Entry, ...]:
        """All of a listing; each worker is decoded as `kind`. What cannot be read is counted and hides no other.

        Raises `ProxyUnavailable` for what is no listing.
        """
        if reply.status != HTTPStatus.OK:
            raise reply.unusable()
        workers = reply.decode(_Workers).workers
        require_readable(reply, len(workers))
        entries: list[Entry] = []
        read: dict[bytes, Entry] = {}
        unreadable = 0
        for raw in workers:
            text = bytes(raw)
            found = self._last.get(text)
            if found is None:
                try:
                    found = entry(msgspec.json.decode(text, type=kind))
                except (msgspec.DecodeError, RecursionError):
                    unreadable += 1
                    continue
            read[text] = found
            entries.append(found)
        self._last = read
        if unreadable != self._unreadable:
            self._unreadable = unreadable
            _log.warning("proxy.listing.unreadable_entries", proxy=self._proxy, entries=unreadable)
        return tuple(entries)


async def list_urls(http: AdminHttp, hint: str) -> tuple[Entry, ...]:
    """All of `GET /list_workers`. Raises `ProxyUnavailable`, with `hint` if there is no such page."""
    reply = await http.call("GET", "/list_workers")
    if reply.status != HTTPStatus.OK:
        raise reply.unusable(hint)
    urls = reply.decode(_Urls).urls
    require_readable(reply, len(urls))
    return tuple(Entry(url=listed_url(url), handle=url) for url in urls)


def require_readable(reply: Reply, entries: int) -> None:
    """Raise `ProxyUnavailable` for a listing of so many entries that reading them takes too long [I10]."""
    if entries > MOST_ENTRIES:
        raise reply.unusable(f"it lists {entries} workers, {MOST_ENTRIES} can be read; is admin_url right?")


def listed_url(url: str) -> str:
    """The canonical spelling of a listed URL, or the text itself: somebody else's, to be seen and removable."""
    try:
        return canonical_url(url)
    except UnusableURL:
        return url


def refused(reply: Reply, hint: str = "is admin_url right?") -> Failed:
    """A refusal in the router's own words, or `ProxyUnavailable` with `hint` if those are not its words."""
    refusal = reply.read(Refusal)
    if refusal is None:
        raise reply.unusable(hint)
    return Failed(refusal.error)
