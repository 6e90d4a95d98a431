"""What types cannot say about a configuration: which names, URLs and numbers are usable.

A check gets one value and returns the problem, or None. What contradicts what is looked for after that, in `together`.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from rollbook.adapters.proxies.kinds import ProxyKind
from rollbook.adapters.proxies.registry import UnusableKind, find_kind
from rollbook.adapters.proxies.urls import UnusableURL, canonical_url
from rollbook.adapters.ray.naming import actor_pattern
from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.errors import ConfigError
from rollbook.adapters.settings.model import (
    ClientSettings,
    LeadershipSettings,
    NatsSettings,
    ProxySettings,
    RayActorsProvider,
    RayProvider,
    Settings,
    StaticProvider,
    WebSettings,
    WorkersFile,
    parse_host_and_port,
)
from rollbook.events import InvalidName, parse_worker, validate_name
from rollbook.projections.policy import HealthPolicy, PoolPolicy, ReconcilePolicy, RecoveryPolicy, SnapshotPolicy
from rollbook.projections.state.claims import ATTEMPTS_KEPT

Check = Callable[[Any], str | None]
Problem = tuple[tuple[str | int, ...], str]
"""Path of the key, and what is wrong there."""

_NATS_SCHEMES: Final = ("nats", "tls", "ws", "wss")
HTTP_SCHEMES: Final = ("http", "https")
_WORKER_SCHEMES: Final = ("http", "https", "grpc")

LONGEST_CLAIM: Final = 604_800
LONGEST_LEASE: Final = 3600
FEWEST_SNAPSHOTS: Final = 2
"""The newest may be torn by a crash."""
MOST_SNAPSHOTS: Final = 1000
MOST_REPLICAS: Final = 5
"""Of one stream, in JetStream."""

_SOCKET: Final = re.compile(r"unix:///[^\s?#@]*[^\s?#@/]")

_SEED: Final = re.compile(r"S[A-Z][A-Z2-7]{50,}")
"""What an nkey seed looks like."""


def url_problem(url: str, schemes: tuple[str, ...], example: str) -> str | None:
    """What keeps `url` from being the address of a server. A URL that may hold credentials is not repeated."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"not a usable URL; write it as {example}"
    if "@" in url:
        return f"credentials do not belong in a URL; write {example} and a secret reference"
    if parts.scheme not in schemes or "://" not in url:
        return f"{url[:80]!r} has no scheme that fits; write it as {example}"
    if not host or any(c.isspace() for c in url) or port == 0:
        return f"{url[:80]!r} names no usable host and port; write it as {example}"
    if parts.query or parts.fragment:
        return f"a query or fragment has no meaning here; write it as {example}"
    return None


def _name(kind: str) -> Check:
    def check(value: str) -> str | None:
        try:
            parse_worker(value) if kind == "worker" else validate_name(kind, value)
        except InvalidName as exc:
            return str(exc)
        return None

    return check


def _nats_url(value: str) -> str | None:
    if "@" in value:
        return (
            "credentials do not belong in a URL; write nats://host:4222, and a token into ROLLBOOK_NATS_TOKEN or the "
            "secret that nats.token refers to (likewise ROLLBOOK_NATS_USER and ROLLBOOK_NATS_PASSWORD)"
        )
    for server in value.split(","):
        problem = url_problem(server.strip(), _NATS_SCHEMES, "nats://host:4222")
        if problem is None and urlsplit(server.strip()).path not in {"", "/"}:
            problem = "a path has no meaning here; write it as nats://host:4222"
        if problem is not None:
            return problem
    return None


def _secret_file(value: str) -> str | None:
    if "\n" in value or "-----" in value or _SEED.fullmatch(value.strip()):
        return "a secret in clear: change it, and name the file that holds it"
    return _not_empty(value)


def _kind(value: str) -> str | None:
    try:
        find_kind(value)
    except UnusableKind as exc:
        return str(exc)
    return None


def admin_url_problem(kind: ProxyKind, url: str) -> str | None:
    """What keeps `url` from being where a proxy of that kind has its admin API."""
    if "unix" in kind.schemes and url.startswith("unix:"):
        return None if _SOCKET.fullmatch(url) else "a socket is written unix:///path/of/it"
    problem = url_problem(url, kind.schemes, kind.example)
    if problem is not None:
        return problem
    parts = urlsplit(url)
    if parts.scheme in HTTP_SCHEMES:
        return _not_canonical(url)
    return None if parts.port and not parts.path else f"{url[:80]!r} is not a host and a port; write tcp://host:port"


def _data_url(value: str) -> str | None:
    return url_problem(value, HTTP_SCHEMES, "http://host:port") or _not_canonical(value)


def _url_template(value: str) -> str | None:
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(value) if field is not None]
    except ValueError:
        return "not a usable template; write it as http://{primary}"
    if not fields or not all(field.isidentifier() for field in fields):
        return "must name an address of the worker in braces, as in http://{primary}"
    url = value.format_map(dict.fromkeys(fields, "host:1"))
    return url_problem(url, _WORKER_SCHEMES, "http://{primary}") or _not_canonical(url)


def _not_canonical(url: str) -> str | None:
    """What the proxies' adapters would refuse beyond that."""
    try:
        canonical_url(url)
    except UnusableURL as exc:
        return str(exc)
    return None


def _ready_path(value: str) -> str | None:
    if value == "" or (value.startswith("/") and not any(c.isspace() or c in "?#" for c in value)):
        return None
    return f"{value[:80]!r} is not a path; write /health, or '' to ask nothing"


def _path(value: str) -> str | None:
    return _ready_path(value) if value else "is empty; write /health"


def _actor(value: str) -> str | None:
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(value) if field is not None]
    except ValueError:
        fields = []
    if fields == ["worker"]:
        return None
    return f"{value[:80]!r} is no name of each worker's actor; write it with {{worker}}, as in engine-{{worker}}"


def _actors(value: str) -> str | None:
    try:
        actor_pattern(value)
    except ValueError as exc:
        return str(exc)
    return None


def _method(value: str) -> str | None:
    return None if value.isidentifier() else f"{value[:80]!r} is no method's name"


def _pools(value: list[str]) -> str | None:
    if not value:
        return "names no pool, so the proxy would serve nothing; name at least one"
    doubles = sorted({pool for pool in value if value.count(pool) > 1})
    return f"names {doubles[0]!r} twice" if doubles else None


def _address(value: str) -> str | None:
    try:
        parse_host_and_port(value)
    except ValueError as exc:
        return str(exc)
    return None


def _hosts(value: list[str]) -> str | None:
    for host in value:
        if not host or any(c in host for c in ":/@ \t"):
            return f"{host[:80]!r} is no host name; write the name alone, without scheme and port"
    return None


def _address_name(value: str) -> str | None:
    if value.isidentifier():
        return None
    return f"{value[:80]!r} cannot name an address; use letters, digits and '_', as a pool's url needs it"


def _variable(value: str) -> str | None:
    if value.isascii() and value.isidentifier():
        return None
    return "is no variable's name; is it the secret itself?"


def _not_empty(value: str) -> str | None:
    if "\0" in value:
        return "holds a NUL character, which no name may"
    return None if value.strip() else "is empty"


def _ray_address(value: str) -> str | None:
    if value.lower().startswith(("http://", "https://")):
        return "is a URL, of Ray's dashboard perhaps; write host:port of the cluster's head, such as 10.0.0.1:6379"
    return _not_empty(value)


def _part(value: float) -> str | None:
    return None if 0 <= value <= 1 else f"{value} is not usable; write a number from 0 to 1"


def _pace(value: float) -> str | None:
    return None if value > 0 and math.isfinite(value) else f"{value} is not usable; write a number above 0"


def _lease(value: float) -> str | None:
    return None if 1 <= value <= LONGEST_LEASE else f"{value:g} is not usable; write from 1 to {LONGEST_LEASE} seconds"


def _claim(value: float) -> str | None:
    """Its end stands in a fact, as a time, which has no year above 9999."""
    usable = 1 <= value <= LONGEST_CLAIM
    return None if usable else f"{value:g} is not usable; write seconds from 1 to {LONGEST_CLAIM} (a week)"


def _replicas(value: int) -> str | None:
    return None if 1 <= value <= MOST_REPLICAS else f"{value} is not usable; write a number from 1 to {MOST_REPLICAS}"


def _count(value: int) -> str | None:
    return None if value > 0 else f"{value} is not usable; write a number above 0"


def _attempts(value: int) -> str | None:
    return None if 0 < value <= ATTEMPTS_KEPT else f"{value} is not usable; write from 1 to {ATTEMPTS_KEPT}"


def _none_or_more(value: float) -> str | None:
    return None if value >= 0 and math.isfinite(value) else f"{value} is not usable; write 0 or more"


def _keep(value: int) -> str | None:
    usable = FEWEST_SNAPSHOTS <= value <= MOST_SNAPSHOTS
    return None if usable else f"{value} is not usable; write a number from {FEWEST_SNAPSHOTS} to {MOST_SNAPSHOTS}"


FIELD_CHECKS: Final[dict[tuple[type, str], Check]] = {
    (Settings, "fleet"): _name("fleet"),
    (ClientSettings, "fleet"): _name("fleet"),
    (SecretRef, "env"): _variable,
    (SecretRef, "file"): _not_empty,
    (NatsSettings, "url"): _nats_url,
    (NatsSettings, "user"): _not_empty,
    (NatsSettings, "creds"): _secret_file,
    (NatsSettings, "nkey"): _secret_file,
    (NatsSettings, "ca"): _not_empty,
    (RayProvider, "manager"): _not_empty,
    (RayProvider, "namespace"): _not_empty,
    (RayProvider, "address"): _ray_address,
    (RayActorsProvider, "actor"): _actors,
    (RayActorsProvider, "pool"): _name("pool"),
    (RayActorsProvider, "method"): _method,
    (RayActorsProvider, "namespace"): _not_empty,
    (RayActorsProvider, "address"): _ray_address,
    (StaticProvider, "file"): _not_empty,
    (PoolPolicy, "url"): _url_template,
    (PoolPolicy, "ready_path"): _ready_path,
    (PoolPolicy, "bootstrap"): _address_name,
    (PoolPolicy, "model"): _not_empty,
    (PoolPolicy, "paired_with"): _name("pool"),
    (PoolPolicy, "max_lag"): _none_or_more,
    (HealthPolicy, "url"): _url_template,
    (HealthPolicy, "path"): _path,
    (HealthPolicy, "actor"): _actor,
    (HealthPolicy, "method"): _method,
    (HealthPolicy, "jitter"): _part,
    **{(HealthPolicy, field): _pace for field in ("deep_timeout", "interval", "timeout")},
    **{(HealthPolicy, field): _count for field in ("deep_every", "dead_threshold", "success_threshold", "parallel")},
    **{
        (HealthPolicy, field): _none_or_more
        for field in ("slow_threshold", "busy_threshold", "unhealthy_threshold", "first_wait")
    },
    (RecoveryPolicy, "attempts"): _attempts,
    (RecoveryPolicy, "parallel"): _count,
    (RecoveryPolicy, "claim"): _claim,
    **{(RecoveryPolicy, field): _pace for field in ("window", "backoff_first", "backoff_most")},
    (ProxySettings, "name"): _name("proxy"),
    (ProxySettings, "kind"): _kind,
    (ProxySettings, "pools"): _pools,
    (ProxySettings, "ca"): _not_empty,
    (ProxySettings, "certificate"): _not_empty,
    (ProxySettings, "certificate_key"): _not_empty,
    (ProxySettings, "data_url"): _data_url,
    (ProxySettings, "call_deadline"): _pace,
    (ProxySettings, "drain_deadline"): _pace,
    (ProxySettings, "removal_budget"): _part,
    (NatsSettings, "replicas"): _replicas,
    (LeadershipSettings, "lease"): _lease,
    (SnapshotPolicy, "every_facts"): _count,
    (SnapshotPolicy, "every_seconds"): _pace,
    (SnapshotPolicy, "keep"): _keep,
    (WebSettings, "listen"): _address,
    (WebSettings, "hosts"): _hosts,
    **{(ReconcilePolicy, field): _pace for field in ReconcilePolicy.__struct_fields__},
}
"""For the value of a field, after its type is known to be right."""

KEY_CHECKS: Final[dict[tuple[type, str], tuple[Check, ...]]] = {
    (Settings, "pools"): (_name("pool"),),
    **{(struct, "workers"): (_name("worker"), _address_name) for struct in (StaticProvider, WorkersFile)},
}
"""For the keys of a field that is a table of free names: one check for each depth."""

EXAMPLES: Final[dict[tuple[type, str], str]] = {
    (Settings, "fleet"): 'fleet = "math-rl"',
    (ClientSettings, "fleet"): 'fleet = "math-rl"',
    (Settings, "provider"): '[provider] with kind = "ray", kind = "ray-actors" or kind = "static"',
    (RayActorsProvider, "actor"): 'actor = "engine-{worker}"',
    (WorkersFile, "workers"): '[workers.<worker>] with primary = "host:port"',
    (ProxySettings, "name"): 'name = "router-a"',
    (ProxySettings, "kind"): 'kind = "sglang"',
    (ProxySettings, "pools"): 'pools = ["rollout"]',
}
"""What to write for a key that is missing."""

LEAF_CHECKS: Final[dict[tuple[type, str], Check]] = {
    (StaticProvider, "workers"): _address,
    (WorkersFile, "workers"): _address,
}
"""For the innermost values of such a table."""


def refuse_unreachable_log(settings: Settings, ray_nodes: int) -> None:
    """Raise `ConfigError` if workers on other machines of a Ray cluster could not reach the embedded server."""
    if settings.nats.url is None and ray_nodes > 1:
        msg = (
            f"nats.url: is missing, and this Ray has {ray_nodes} nodes: an embedded NATS listens on loopback, so "
            "workers on other nodes could not reach it. Start a nats-server with JetStream and name it in nats.url"
        )
        raise ConfigError([msg])
