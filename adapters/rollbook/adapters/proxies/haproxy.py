"""HAProxy, through its Runtime API: one backend whose servers come and go while it runs.

Measured on 2.6.12; docs/proxies/haproxy.md says how it behaves and why each command here is as it is. In short: a
server is added in maintenance and has to be switched on; it is removed by its name, never by its address; names of
hosts are not resolved; servers added so are lost on a restart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from rollbook.adapters.proxies.haproxy_socket import RuntimeSocket
from rollbook.adapters.proxies.haproxy_text import (
    SERVER_NAME,
    Life,
    Server,
    Unreadable,
    read_answer,
    read_info,
    read_name,
    read_running,
    read_servers,
    server_name,
)
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.proxies.urls import UnusableURL, canonical_url
from rollbook.adapters.proxies.workers_api import MOST_ENTRIES, listed_url
from rollbook.events import RollbookError
from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Listing,
    Pending,
    ProxyUnavailable,
    Target,
)

_OLDEST: Final = (2, 6)
"""The first version that adds servers without `experimental-mode`."""

_KEYWORDS: Final = re.compile(r"[A-Za-z0-9_.,:/@%+= -]*")
"""Nothing that ends a command, quotes or escapes."""


T = TypeVar("T")


class HaproxyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which servers, and how they are added."""

    backend: str
    """The backend whose servers are the workers. Its `balance` must be one that takes servers at runtime: `roundrobin`,
    `leastconn`, `random`, `first`, or a hash with `hash-type consistent`."""
    server: str = "check inter 500ms fall 2 rise 1"
    """What follows the address in `add server`, as on a `server` line. With `ssl` among it workers are `https://`;
    without `check` a dead worker gets requests until Rollbook hears of it."""

    def __post_init__(self) -> None:
        if not SERVER_NAME.fullmatch(self.backend):
            raise ValueError(f"{self.backend[:80]!r} cannot be the name of a backend")
        if not _KEYWORDS.fullmatch(self.server):
            raise ValueError("server: only words as on a `server` line, without quotes, semicolons and line breaks")


class HaproxyProxy:
    """One backend of one HAProxy."""

    kind = "haproxy"
    capabilities = Capabilities(
        list=True, remove=True, tag=True, drain=True, async_add=False, probes_on_add=False, adds_in_flight=4
    )
    """An add is three commands that are carried out at once; the worker is not asked."""

    def __init__(self, config: ProxyConfig) -> None:
        options = config.options
        if not isinstance(options, HaproxyOptions):
            raise RollbookError(f"{config.name}: write [proxies.options] with the backend that the workers belong to")
        if config.api_key is not None:
            raise RollbookError(f"{config.name}: HAProxy's Runtime API has no key; leave api_key out")
        self.name = config.name
        self._fleet = config.fleet
        self._backend = options.backend
        self._keywords = options.server.split()
        self._scheme = "https" if "ssl" in self._keywords else "http"
        self._socket = RuntimeSocket(config.name, config.admin_url)

    def __repr__(self) -> str:
        return f"HaproxyProxy({self.name!r}, {self._socket!r}, backend={self._backend!r}, fleet={self._fleet!r})"

    def canonical_url(self, url: str) -> str:
        """A server is an IP address and a port; whatever else a URL can hold is refused."""
        canonical = canonical_url(url)
        parts = urlsplit(canonical)
        if parts.scheme != self._scheme:
            hint = "`ssl`" if parts.scheme == "https" else "no `ssl`"
            raise UnusableURL(f"{canonical!r}: for {parts.scheme}:// workers, write {hint} in options.server")
        if parts.path:
            raise UnusableURL(f"{canonical!r}: a server of HAProxy is an address and a port, and has no path")
        if not _is_address(parts.hostname or ""):
            raise UnusableURL(
                f"{canonical!r}: HAProxy does not resolve the name of a server that is added; have the provider give "
                "an IP address"
            )
        return canonical

    async def list(self) -> Listing:
        """The backend's servers, those of the configuration file among them, and HAProxy's version."""
        version = self._read(read_info, await self._socket.ask("show info"))
        self._check_version(version)
        await self._check_level()
        state = await self._socket.ask(f"show servers state {self._backend}")
        if state == "Can't find backend.":
            raise ProxyUnavailable(
                f"{self.name}: HAProxy has no backend {self._backend!r}; options.backend is its name in the file"
            )
        servers = self._read(read_servers, state)
        if len(servers) > MOST_ENTRIES:
            raise ProxyUnavailable(f"{self.name}: it lists {len(servers)} servers, {MOST_ENTRIES} can be read")
        running = self._read(read_running, await self._socket.ask(f"show servers conn {self._backend}"))
        return Listing(tuple(_entry(server, running.get(server.name)) for server in servers), version)

    async def add(self, target: Target) -> Answer:
        """Add a server and switch it on. One that is left in maintenance is listed as out of rotation."""
        name = server_name(Life(target.worker, target.incarnation, self._fleet))
        parts = urlsplit(target.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = parts.port or (443 if self._scheme == "https" else 80)
        added = await self._tell("add server", name, f"{host}:{port}", *self._keywords)
        if added != Done():
            return added
        for switch in ("enable health", "enable server") if "check" in self._keywords else ("enable server",):
            answer = await self._tell(switch, name)
            if answer != Done():
                return answer
        return Done()

    async def drain(self, entry: Entry) -> Answer:
        """Send it nothing new; its health is checked on."""
        return await self._tell("set server", entry.handle, "state drain")

    async def remove(self, entry: Entry) -> Answer:
        """Put it into maintenance, end what it is still working on, and delete it, by its name."""
        for command, *words in (("set server", "state maint"), ("shutdown sessions server",), ("del server",)):
            answer = await self._tell(command, entry.handle, *words)
            if answer != Done():
                return answer
        return Done()

    async def outcome(self, pending: Pending) -> Answer:
        """Nothing is ever pending here."""
        return pending

    async def close(self) -> None:
        """Nothing is kept open."""
        await self._socket.close()

    async def _tell(self, command: str, server: str, *words: str) -> Answer:
        """A command about one server of the backend."""
        if not SERVER_NAME.fullmatch(server):
            return Failed(f"{server[:80]!r} cannot be the name of a server", retryable=False)
        said = await self._socket.ask(" ".join((command, f"{self._backend}/{server}", *words)))
        if said.startswith("Permission denied"):
            raise self._not_admin("refuses it")
        return read_answer(said)

    async def _check_level(self) -> None:
        level = await self._socket.ask("show cli level")
        if level != "admin":
            raise self._not_admin(f"is of level {level[:40]!r}")

    def _not_admin(self, what: str) -> ProxyUnavailable:
        return ProxyUnavailable(f"{self.name}: the socket {what}; give its `stats socket` line `level admin`")

    def _check_version(self, version: str) -> None:
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
            raise ProxyUnavailable(f"{self.name}: HAProxy {version} adds no servers while it runs; 2.6 or newer does")

    def _read(self, read: Callable[[str], T], text: str) -> T:
        try:
            return read(text)
        except Unreadable as exc:
            raise ProxyUnavailable(
                f"{self.name}: this is not HAProxy's Runtime API ({exc}): is admin_url right?"
            ) from exc


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _entry(server: Server, running: int | None) -> Entry:
    host = f"[{server.host}]" if ":" in server.host else server.host
    life = read_name(server.name)
    return Entry(
        url=listed_url(f"{'https' if server.tls else 'http'}://{host}:{server.port}"),
        handle=server.name,
        fleet="" if life is None else life.fleet,
        worker=None if life is None else life.worker,
        incarnation=None if life is None else life.incarnation,
        healthy=server.up,
        running=running,
        in_rotation=server.in_rotation,
    )


KIND: Final = ProxyKind(
    name=HaproxyProxy.kind,
    make=HaproxyProxy,
    options=HaproxyOptions,
    schemes=("unix", "tcp"),
    example="unix:///run/haproxy/admin.sock",
    serves_clients=False,
)
