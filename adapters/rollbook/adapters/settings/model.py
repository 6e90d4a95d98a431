"""What can be configured: the file `rollbook.toml` as frozen structs.

The docstring under a field says what it is, its unit, and why its default is what it is; docs/configuration.md is made
from them. There is no default address of any proxy: a wrong one would write to somebody else's router.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Literal

import msgspec

from rollbook.adapters.proxies.registry import find_kind
from rollbook.adapters.secret_ref import SecretRef
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy, SnapshotPolicy
from rollbook.projections.ports import HostAndPort


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server that holds the log. Leave the table out, and an embedded one starts."""

    url: str | None = None
    """`nats://host:port` or `tls://host:port`, without credentials; several servers of a cluster separated by commas.
    Left out, `rollbook up` starts a server of its own on loopback, on a free port, with its store in `.rollbook` beside
    the configuration: right for one machine."""
    token: SecretRef | None = None
    """The token that the server asks for. None by default; the embedded server makes its own."""
    user: str | None = None
    """The user that the server knows, where it works with users. None by default."""
    password: SecretRef | None = None
    """That user's password."""
    creds: str | None = None
    """A `.creds` file (JWT and seed), where the server works with accounts. Relative paths start beside the
    configuration. Needs the package nkeys."""
    nkey: str | None = None
    """A file that holds an nkey seed. Relative paths start beside the configuration. Needs the package nkeys."""
    ca: str | None = None
    """PEM file of the authority that signed the server's certificate. Relative paths start beside the configuration. By
    default the machine's authorities are trusted."""
    replicas: int = 1
    """How many servers of a cluster keep the log, the lease and the snapshots, from 1 to 5. An existing log is raised
    to more, never lowered. One by default, right for a single server; 3 survives the loss of one."""


class RayProvider(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="ray"):
    """Addresses come from the Ray manager actor, asked anew at every registration."""

    manager: str | None = None
    """Name of the manager actor. The default is `rollbook-<fleet>`, so that two fleets of one cluster do not meet."""
    namespace: str | None = None
    """Ray namespace of the manager. The default is the one that the manager uses if it is given none: `rollbook`."""
    address: str | None = None
    """Address of the Ray cluster, as `ray.init` takes it. By default Ray decides: RAY_ADDRESS, or the cluster of this
    machine."""


class RayActorsProvider(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="ray-actors"):
    """Each worker is a named Ray actor that somebody else starts, asked for its own address at every registration."""

    actor: str
    """Name of each worker's actor: `{worker}` stands for the worker's name, as in `engine-{worker}`. Where a framework
    counts otherwise, `{pool}`, `{cell}` and `{rank}` stand for the parts of `<pool>-<cell>-<rank>`."""
    pool: str | None = None
    """The pool of all workers, where `actor` says only `{cell}` and `{rank}`."""
    method: str = "get_addr"
    """The method that is called, without arguments. It answers an address (`host:port`, a URL, a pair, or anything with
    `host` and `port`) or several by name, of which `primary` takes the requests; beside them `incarnation`, if it knows
    the number of its life. It must answer while the worker is busy."""
    namespace: str | None = None
    """Ray namespace of the actors. Left out, all namespaces are looked through, because drivers have anonymous ones
    unless they are told; a name that two of them have is then refused."""
    address: str | None = None
    """Address of the Ray cluster, as `ray.init` takes it. By default Ray decides: RAY_ADDRESS, or the cluster of this
    machine."""


class StaticProvider(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="static"):
    """Addresses stand in this file, or in one of their own: for workers that nobody else can tell of."""

    workers: dict[str, dict[str, str]] = {}
    """`[provider.workers.<worker>]` with named addresses, each `host:port`. `primary` is the one that takes requests
    and must be there; others can be used in a pool's `url`. Empty by default."""
    file: str | None = None
    """A TOML file with `[workers.<worker>]` tables like these, and in each, if it is known, `incarnation`. It is read
    anew at every look-up; while it cannot be read or is wrong, nothing is known of any worker: newcomers wait, and
    nobody is removed. Relative paths start beside the configuration. Not together with `workers`."""

    def addresses(self) -> dict[str, dict[str, HostAndPort]]:
        """`workers`, with every address taken apart."""
        return {
            worker: {name: parse_host_and_port(text) for name, text in named.items()}
            for worker, named in self.workers.items()
        }


class WorkersFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file that `StaticProvider.file` names."""

    workers: dict[str, dict[str, str]]
    """As in `StaticProvider`. An empty file is one that is being written, so the table must be there."""


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """A router in front of the workers, driven through its admin API."""

    name: str
    """Names it in the log, in `status` and in metrics; letters, digits, `_` and `-`. A new name is a new proxy."""
    kind: str
    """Which admin API it has: see [proxies](proxies/index.md). Other packages can add kinds."""
    admin_url: str
    """Where its admin API is, without credentials: `http://`, `https://`, or what its kind has instead. A path is put
    before every path of the API, for a router behind another proxy. There is no default."""
    pools: tuple[str, ...]
    """The pools that it serves, each declared as `[pools.<name>]`."""
    api_key: SecretRef | None = None
    """The key that its admin API asks for, sent as a bearer token. None by default."""
    ca: str | None = None
    """PEM file of the authority that signed the certificate of `admin_url` and `data_url`. Relative paths start beside
    the configuration. By default the machine's authorities are trusted."""
    certificate: str | None = None
    """PEM file of the certificate that Rollbook shows where the router asks for one; it may hold the key too."""
    certificate_key: str | None = None
    """PEM file of that certificate's private key, not encrypted, if it is not in the same file."""
    data_url: str | None = None
    """Where clients send their requests; only `verify` does. By default `admin_url`, for the kinds whose clients send
    them there."""
    call_deadline: float | None = None
    """Seconds for one admin call to this proxy. By default `reconcile.call_deadline`."""
    exclusive: bool = False
    """Whether entries that Rollbook did not make are removed. By default they are reported and left alone."""
    removal_budget: float = 0.5
    """The part, from 0 to 1, of the largest listing of the last minute that may be removed on inferred evidence alone;
    beyond it every worker is asked itself, and those that answer stay. Half by default: a blind observer can then empty
    no router."""
    drain_deadline: float = 30.0
    """Seconds that running requests get before a planned removal, at proxies that can drain."""
    options: dict[str, Any] = {}
    """`[proxies.options]`, what only its kind knows; checked as strictly as every other key."""

    def own_options(self) -> msgspec.Struct:
        """`options` as the struct that its kind has."""
        return msgspec.convert(self.options, find_kind(self.kind).options)

    @property
    def requests_url(self) -> str | None:
        """Where clients send their requests, as far as it is known."""
        return self.data_url or (self.admin_url if find_kind(self.kind).serves_clients else None)


class LeadershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The right to act for the fleet, which one controller has at a time; others stand by."""

    lease: float = 5.0
    """Seconds, at least 1: another controller acts within so long after one has died. It is renewed five times in that
    time. At least 5/3 of every `call_deadline`, because no admin call begins that might outlast it, and one renewal
    that fails is to stop none. The same for all controllers of a fleet."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the programs say about themselves on standard error. The fleet's facts are elsewhere: see `rollbook log`."""

    format: Literal["auto", "console", "json"] = "auto"
    """`auto` writes for people on a terminal and JSON lines everywhere else, where a collector reads them."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is written; `info` has one line per handled delivery of consequence."""


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics, health and the read API of a running controller, over HTTP: see [observability](observability.md)."""

    listen: str | None = None
    """`host:port` where it listens, such as `127.0.0.1:9464`. Left out, it is off. Nobody is asked for a password:
    anyone who reaches the port can read the roster, so an address that is not of this machine alone is warned about."""
    hosts: tuple[str, ...] = ()
    """Host names by which it is asked, beside `localhost` and addresses, such as a service's name in a cluster. Any
    other is refused, so that no web page can get at the port through a name of its own. Empty by default."""

    @property
    def exposed(self) -> bool:
        """Whether others than this machine can reach it, as far as the address tells."""
        if self.listen is None:
            return False
        host = parse_host_and_port(self.listen).host
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. A command needs nothing else to know what to do."""

    fleet: str
    """One training run's or deployment's set of workers; it names the stream, `ROLLBOOK_<fleet>`, and the subjects."""
    provider: RayProvider | RayActorsProvider | StaticProvider
    """Who knows where the workers are."""
    nats: NatsSettings = NatsSettings()
    """The server that holds the log."""
    pools: dict[str, PoolPolicy] = {}
    """`[pools.<name>]` for every kind of worker that is to be registered; an empty table takes the defaults."""
    proxies: tuple[ProxySettings, ...] = ()
    """`[[proxies]]`, one table for each router."""
    reconcile: ReconcilePolicy = ReconcilePolicy()
    """Deadlines and paces."""
    snapshots: SnapshotPolicy = SnapshotPolicy()
    """How often the fold is kept, and how many of it."""
    leadership: LeadershipSettings = LeadershipSettings()
    """Which controller acts, and who takes over."""
    web: WebSettings = WebSettings()
    """Metrics, health and the read API."""
    logs: LogSettings = LogSettings()
    """The programs' own log lines."""

    def policy(self) -> Policy:
        """What the gates and the plan need to know of it."""
        return Policy(
            fleet=self.fleet,
            pools={
                name: msgspec.structs.replace(pool, ready_path=pool.ready_path or None)
                for name, pool in self.pools.items()
            },
            proxies={
                proxy.name: ProxyPolicy(
                    name=proxy.name,
                    pools=proxy.pools,
                    exclusive=proxy.exclusive,
                    removal_budget=proxy.removal_budget,
                    drain_deadline=proxy.drain_deadline,
                    call_deadline=proxy.call_deadline,
                )
                for proxy in self.proxies
            },
            reconcile=self.reconcile,
            snapshots=self.snapshots,
        )


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the settings that a program needs which only reads or writes facts."""

    fleet: str
    """As in `Settings`."""
    nats: NatsSettings = NatsSettings()
    """As in `Settings`."""


def parse_host_and_port(text: str) -> HostAndPort:
    """`host:port` or `[ipv6]:port` as an address. Raises `ValueError` saying what is missing."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        msg = "it has no port; write host:port"
        raise ValueError(msg)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):  # noqa: PLR2004 - the range of ports
        msg = f"{port[:20]!r} is no port; write a number from 1 to 65535"
        raise ValueError(msg)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    usable = bare.isprintable() and not any(c in bare for c in "/@?#[] ")
    if not bare or not usable or (":" in bare) != (bare != host):
        msg = "write host:port without scheme, path or credentials, and an IPv6 host in brackets"
        raise ValueError(msg)
    return HostAndPort(bare, int(port))
