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

from rollbook.adapters.proxies.base import HttpProxy
from rollbook.adapters.proxies.http import Reply
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.proxies.workers_api import WorkersReader, listed_url, refused
from rollbook.projections.ports import Answer, Capabilities, Done, Entry, Failed, Listing, Target, Unsupported

_OTHER_API: Final = "this is not the vllm-router API; is admin_url right, and the kind?"


class _Worker(msgspec.Struct):
    """Only what cannot be missing has a type; an oddity must not hide an entry."""

    url: str
    is_healthy: Any = None


class _Did(msgspec.Struct):
    success: bool
    message: str = ""


class VllmProxy(HttpProxy):
    """One vllm-router."""

    kind = "vllm"
    capabilities = Capabilities(
        list=True, remove=True, tag=False, drain=False, async_add=False, probes_on_add=True, adds_in_flight=4
    )
    """Adds wait for the worker to answer, each in its own request; one that nobody waits for is given up."""
    no_drain = "vllm-router has no draining; a removed worker finishes what it is working on"

    def __init__(self, config: ProxyConfig) -> None:
        super().__init__(config)
        self._reader = WorkersReader(config.name)

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

    async def remove(self, entry: Entry) -> Answer:
        """Remove whatever has the entry's URL, which is all that the router knows of it; `Done` also if nothing has."""
        return _did(await self._http.call("DELETE", f"/workers/{quote(entry.handle, safe='')}"))


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


KIND: Final = ProxyKind(name=VllmProxy.kind, make=VllmProxy, example="http://127.0.0.1:30000")
