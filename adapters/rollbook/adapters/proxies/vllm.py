"""vllm-router 0.1 (`/workers`): adds are done or refused when they are answered, and nothing can be tagged.

Measured on 0.1.17; docs/proxies/vllm.md says how the router behaves. In short: it knows a URL and nothing else of a
worker, so whose an entry is stands in the log alone; a removal is answered with 200 whatever it removed; a restart
forgets everything.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from rollbook.adapters.proxies.http import AdminHttp, Reply
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.adapters.proxies.workers_api import WorkersReader, listed_url, refused
from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Listing,
    Pending,
    Target,
    Unsupported,
)

_CAPABILITIES: Final = Capabilities(
    list=True, remove=True, tag=False, drain=False, async_add=False, probes_on_add=True, adds_in_flight=4
)
_OTHER_API: Final = "this is not the vllm-router API; is admin_url right, and the kind?"


class _Worker(msgspec.Struct):
    """Only what cannot be missing has a type; an oddity must not hide an entry."""

    url: str
    is_healthy: Any = None


class _Did(msgspec.Struct):
    success: bool
    message: str = ""


class VllmProxy:
    """One vllm-router."""

    def __init__(self, config: ProxyConfig) -> None:
        self._name = config.name
        self._http = AdminHttp(config)
        self._reader = WorkersReader(config.name)

    def __repr__(self) -> str:
        return f"VllmProxy({self._name!r}, {self._http!r})"

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self._name

    @property
    def kind(self) -> str:
        """`vllm`."""
        return KIND.name

    @property
    def capabilities(self) -> Capabilities:
        """Adds wait for the worker to answer, each in its own request; one that nobody waits for is given up."""
        return _CAPABILITIES

    def canonical_url(self, url: str) -> str:
        """The router lists a URL as it was added; so it is added, and read, in its canonical spelling."""
        return canonical_url(url)

    async def list(self) -> Listing:
        """All of `GET /workers`, which has no pages. The router does not tell its version."""
        reply = await self._http.call("GET", "/workers")
        if reply.status == HTTPStatus.NOT_FOUND:
            raise reply.unusable(_OTHER_API)
        return Listing(self._reader.entries(reply, _Worker, _entry))

    async def add(self, target: Target) -> Answer:
        """Add it and wait until the worker answers. "Already exists" is `Failed`: whose it is, the log must say.

        `Unsupported` for one half of a disaggregated pair: the router takes these on its command line only.
        """
        if target.role != "regular":
            return Unsupported(f"vllm-router takes {target.role} workers on its command line only, not later")
        return _did(await self._http.call("POST", "/workers", {"url": target.url}))

    async def drain(self, entry: Entry) -> Answer:
        """Not offered: requests in flight finish after a removal anyway."""
        return Unsupported("vllm-router has no draining; a removed worker finishes what it is working on")

    async def remove(self, entry: Entry) -> Answer:
        """Remove whatever has the entry's URL, which is all that the router knows of it; `Done` also if nothing has."""
        return _did(await self._http.call("DELETE", f"/workers/{quote(entry.handle, safe='')}"))

    async def outcome(self, pending: Pending) -> Answer:
        """Nothing is ever pending here."""
        return pending

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()


def _did(reply: Reply) -> Answer:
    if reply.status != HTTPStatus.OK:
        return refused(reply, _OTHER_API)
    did = reply.decode(_Did)
    return Done() if did.success else Failed(did.message or "the router refused without a reason")


def _entry(worker: _Worker) -> Entry:
    return Entry(
        url=listed_url(worker.url),
        handle=worker.url,
        healthy=worker.is_healthy if isinstance(worker.is_healthy, bool) else None,
    )


KIND: Final = ProxyKind(name="vllm", make=VllmProxy, example="http://127.0.0.1:30000")
