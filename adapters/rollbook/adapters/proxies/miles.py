"""The routers of miles and slime: workers can be added and listed, and that is all.

docs/proxies/miles.md says how they behave. In short: an add is blind and idempotent; there is no removal, and the call
that looks like one is passed on to some worker as if it were a request; a worker that the router once found dead gets
no requests any more, also after a new add of its URL.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec

from rollbook.adapters.proxies.http import AdminHttp
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.adapters.proxies.workers_api import listed_url
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
    list=True, remove=False, tag=False, drain=False, async_add=False, probes_on_add=False
)
_OTHER_API: Final = "this is not the API of a miles or slime router; is admin_url right, and the kind?"
_NO_REMOVAL: Final = "miles and slime routers have no removal; a worker that is dead gets no requests, but stays listed"


class _Urls(msgspec.Struct):
    urls: list[str]


class _Added(msgspec.Struct):
    status: str


class MilesProxy:
    """One router of miles or slime."""

    def __init__(self, config: ProxyConfig) -> None:
        self._name = config.name
        self._http = AdminHttp(config)

    def __repr__(self) -> str:
        return f"MilesProxy({self._name!r}, {self._http!r})"

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self._name

    @property
    def kind(self) -> str:
        """`miles`."""
        return KIND.name

    @property
    def capabilities(self) -> Capabilities:
        """It adds without looking, and removes nothing."""
        return _CAPABILITIES

    def canonical_url(self, url: str) -> str:
        """The router lists a URL as it was added; so it is added, and read, in its canonical spelling."""
        return canonical_url(url)

    async def list(self) -> Listing:
        """Every URL that was ever added, dead ones too: the router does not tell them apart."""
        reply = await self._http.call("GET", "/list_workers")
        if reply.status != HTTPStatus.OK:
            # Any path that the router does not know is passed on to a worker, whose answer this may be.
            raise reply.unusable(_OTHER_API)
        return Listing(tuple(Entry(url=listed_url(url), handle=url) for url in reply.decode(_Urls).urls))

    async def add(self, target: Target) -> Answer:
        """Add the URL; nothing happens if it is there already. `Unsupported` for one half of a disaggregated pair."""
        if target.role != "regular":
            return Unsupported(f"miles and slime routers do not tell {target.role} workers from others")
        reply = await self._http.call("POST", f"/add_worker?url={quote(target.url, safe='')}")
        if reply.status != HTTPStatus.OK:
            raise reply.unusable(_OTHER_API)
        status = reply.decode(_Added).status
        return Done() if status == "success" else Failed(f"the router answered {status[:200]!r}")

    async def drain(self, entry: Entry) -> Answer:
        """Not offered."""
        return Unsupported(_NO_REMOVAL)

    async def remove(self, entry: Entry) -> Answer:
        """Not offered, and nothing is sent: a worker would get the call."""
        return Unsupported(_NO_REMOVAL)

    async def outcome(self, pending: Pending) -> Answer:
        """Nothing is ever pending here."""
        return pending

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()


KIND: Final = ProxyKind(name="miles", make=MilesProxy)
