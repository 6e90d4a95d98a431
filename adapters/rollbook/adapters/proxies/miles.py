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

from rollbook.adapters.proxies.base import HttpProxy
from rollbook.adapters.proxies.kinds import ProxyKind
from rollbook.adapters.proxies.workers_api import list_urls
from rollbook.projections.ports import Answer, Capabilities, Done, Entry, Failed, Listing, Target, Unsupported

_OTHER_API: Final = "this is not the API of a miles or slime router; is admin_url right, and the kind?"
_NO_REMOVAL: Final = "miles and slime routers have no removal; a worker that is dead gets no requests, but stays listed"


class _Added(msgspec.Struct):
    status: str


class MilesProxy(HttpProxy):
    """One router of miles or slime."""

    kind = "miles"
    capabilities = Capabilities(list=True, remove=False, tag=False, drain=False, async_add=False, probes_on_add=False)
    """It adds without looking, and removes nothing."""
    no_drain = _NO_REMOVAL

    async def list(self) -> Listing:
        """Every URL that was ever added, dead ones too: the router does not tell them apart."""
        return Listing(await list_urls(self._http, _OTHER_API))

    async def add(self, target: Target) -> Answer:
        """Add the URL; nothing happens if it is there already. `Unsupported` for one half of a disaggregated pair."""
        if target.role != "regular":
            return Unsupported(f"miles and slime routers do not tell {target.role} workers from others")
        reply = await self._http.call("POST", f"/add_worker?url={quote(target.url, safe='')}")
        if reply.status != HTTPStatus.OK:
            raise reply.unusable(_OTHER_API)
        status = reply.decode(_Added).status
        return Done() if status == "success" else Failed(f"the router answered {status[:200]!r}")

    async def remove(self, entry: Entry) -> Answer:
        """Not offered, and nothing is sent: a worker would get the call."""
        return Unsupported(_NO_REMOVAL)


KIND: Final = ProxyKind(name=MilesProxy.kind, make=MilesProxy)
