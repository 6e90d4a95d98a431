"""The kind `abacus`: a made-up router with a column for each worker and free text as a column's name.

GET    /columns          {"columns": [{"name": ..., "url": ...}, ...]}
PUT    /columns/{name}   {"url": ..., "beads": ...}    201; 409 if there is a column of that name
DELETE /columns/{name}                                 204; 404 if there is none
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from rollbook.adapters.proxies.base import HttpProxy
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.projections.ports import Answer, Capabilities, Done, Entry, Failed, Listing, Target


class AbacusOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can stand in `[proxies.options]`."""

    beads: int = 10
    """How many requests a worker may have at a time."""

    def __post_init__(self) -> None:
        if self.beads < 1:
            raise ValueError(f"beads is {self.beads}; a column needs at least one")


class Column(msgspec.Struct):
    name: str
    url: str


class Columns(msgspec.Struct):
    columns: list[Column]


class AbacusProxy(HttpProxy):
    """One abacus. Makes no call before the first that is asked for, keeps no memory, retries nothing."""

    kind = "abacus"
    capabilities = Capabilities(list=True, remove=True, tag=True)
    no_drain = "an abacus cannot drain"

    def __init__(self, config: ProxyConfig) -> None:
        assert isinstance(config.options, AbacusOptions)
        super().__init__(config)
        self._fleet = config.fleet
        self._beads = config.options.beads

    async def list(self) -> Listing:
        reply = await self._http.call("GET", "/columns")
        if reply.status != 200:
            raise reply.unusable()
        return Listing(tuple(map(_entry, reply.decode(Columns).columns)))

    async def add(self, target: Target) -> Answer:
        name = f"{target.worker}.{target.incarnation}.{self._fleet}"
        reply = await self._http.call("PUT", _path(name), {"url": target.url, "beads": self._beads})
        if reply.status == 201:
            return Done()
        if reply.status == 409:
            return Failed(f"a column {name} already exists")
        raise reply.unusable()

    async def remove(self, entry: Entry) -> Answer:
        reply = await self._http.call("DELETE", _path(entry.handle))
        if reply.status in {204, 404}:
            return Done()
        raise reply.unusable()


def _path(name: str) -> str:
    return f"/columns/{quote(name, safe='')}"


def _entry(column: Column) -> Entry:
    worker, incarnation, fleet = [*column.name.split("."), "", ""][:3]
    if not (worker and fleet and incarnation.isascii() and incarnation.isdigit()):
        return Entry(url=column.url, handle=column.name)  # somebody else's: seen, and left alone
    return Entry(url=column.url, handle=column.name, fleet=fleet, worker=worker, incarnation=int(incarnation))


KIND = ProxyKind(name=AbacusProxy.kind, make=AbacusProxy, options=AbacusOptions)
