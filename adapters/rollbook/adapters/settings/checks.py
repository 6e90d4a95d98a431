"""What types cannot say about a configuration: which names, URLs and numbers are usable, and what contradicts what.

A check gets one value and returns the problem, or None. `check_together` looks at the whole tree after that, and passes
over what failed its own check, so that one typo is not reported twice.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from rollbook.adapters.proxies.kinds import ProxyKind
from rollbook.adapters.proxies.registry import UnusableKind, find_kind
from rollbook.adapters.proxies.urls import UnusableURL, canonical_url
from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.errors import ConfigError
from rollbook.adapters.settings.model import (
    ClientSettings,
    NatsSettings,
    ProxySettings,
    RayProvider,
    Settings,
    StaticProvider,
    WebSettings,
    parse_host_and_port,
)
from rollbook.adapters.spelling import nearest
from rollbook.events import InvalidName, parse_worker, validate_name
from rollbook.projections.policy import PoolPolicy, ReconcilePolicy

Check = Callable[[Any], str | None]
Problem = tuple[tuple[str | int, ...], str]
"""Path of the key, and what is wrong there."""

_NATS_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_HTTP_SCHEMES: Final = ("http", "https")
_WORKER_SCHEMES: Final = ("http", "https", "grpc")

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
    if parts.scheme in _HTTP_SCHEMES:
        return _not_canonical(url)
    return None if parts.port and not parts.path else f"{url[:80]!r} is not a host and a port; write tcp://host:port"


def _data_url(value: str) -> str | None:
    return url_problem(value, _HTTP_SCHEMES, "http://host:port") or _not_canonical(value)


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


def _address_name(value: str) -> str | None:
    if value.isidentifier():
        return None
    return f"{value[:80]!r} cannot name an address; use letters, digits and '_', as a pool's url needs it"


def _variable(value: str) -> str | None:
    if value.isascii() and value.isidentifier():
        return None
    return "is no variable's name; is it the secret itself?"


def _not_empty(value: str) -> str | None:
    return None if value.strip() else "is empty"


def _part(value: float) -> str | None:
    return None if 0 <= value <= 1 else f"{value} is not usable; write a number from 0 to 1"


def _pace(value: float) -> str | None:
    return None if value > 0 and math.isfinite(value) else f"{value} is not usable; write a number above 0"


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
    (RayProvider, "address"): _not_empty,
    (PoolPolicy, "url"): _url_template,
    (PoolPolicy, "ready_path"): _ready_path,
    (PoolPolicy, "bootstrap"): _address_name,
    (PoolPolicy, "model"): _not_empty,
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
    (WebSettings, "listen"): _address,
    **{(ReconcilePolicy, field): _pace for field in ReconcilePolicy.__struct_fields__},
}
"""For the value of a field, after its type is known to be right."""

KEY_CHECKS: Final[dict[tuple[type, str], tuple[Check, ...]]] = {
    (Settings, "pools"): (_name("pool"),),
    (StaticProvider, "workers"): (_name("worker"), _address_name),
}
"""For the keys of a field that is a table of free names: one check for each depth."""

EXAMPLES: Final[dict[tuple[type, str], str]] = {
    (Settings, "fleet"): 'fleet = "math-rl"',
    (ClientSettings, "fleet"): 'fleet = "math-rl"',
    (Settings, "provider"): '[provider] with kind = "ray" or kind = "static"',
    (ProxySettings, "name"): 'name = "router-a"',
    (ProxySettings, "kind"): 'kind = "sglang"',
    (ProxySettings, "pools"): 'pools = ["rollout"]',
}
"""What to write for a key that is missing."""

LEAF_CHECKS: Final[dict[tuple[type, str], Check]] = {(StaticProvider, "workers"): _address}
"""For the innermost values of such a table."""


def check_together(tree: dict[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong between keys. In `tree`, None stands for a value that failed its own check."""
    yield from _check_nats(tree.get("nats") or {})
    yield from _check_static(tree.get("provider") or {})
    proxies: list[dict[str, Any]] = [proxy or {} for proxy in tree.get("proxies") or []]
    pools: dict[str, Any] | None = tree.get("pools", {})
    yield from _check_proxies(proxies)
    if pools is not None:
        yield from _check_pools(proxies, pools)
    pace = tree.get("reconcile") or {}
    first, most = (pace.get(key, getattr(ReconcilePolicy(), key)) for key in ("backoff_first", "backoff_most"))
    if first is not None and most is not None and first > most:
        yield ("reconcile", "backoff_first"), "is longer than backoff_most; the first delay is the shortest"


def _check_nats(nats: dict[str, Any]) -> Iterator[Problem]:
    ways = [key for key in ("token", "user", "creds", "nkey") if key in nats]
    for key in ways[1:]:
        yield ("nats", key), f"is given together with {ways[0]}; a server asks for one of them"
    if "password" in nats and "user" not in nats:
        yield ("nats", "password"), "is given without user"
    if "url" not in nats:
        for key in (*ways, *(("ca",) if "ca" in nats else ())):
            yield ("nats", key), "has no meaning without nats.url: the embedded server makes its own credentials"


def _check_static(provider: dict[str, Any]) -> Iterator[Problem]:
    for worker, named in (provider.get("workers") or {}).items():
        if named is not None and "primary" not in named:
            yield ("provider", "workers", worker), 'has no primary address; add primary = "host:port"'


def _check_proxies(proxies: list[dict[str, Any]]) -> Iterator[Problem]:
    names: dict[str, int] = {}
    places: dict[str, int] = {}
    for index, proxy in enumerate(proxies):
        here = ("proxies", index)
        if (name := proxy.get("name")) is not None and names.setdefault(name, index) != index:
            yield (*here, "name"), f"{name!r} is the name of proxies[{names[name]}] already; choose another"
        url = proxy.get("admin_url")
        if url is not None and proxy.get("kind") is not None:
            # With other options it can be another part of the same router: another model, another backend.
            place = repr((_same(url), sorted((proxy.get("options") or {}).items())))
            if places.setdefault(place, index) != index:
                yield (
                    (*here, "admin_url"),
                    f"is the router of proxies[{places[place]}] already; one table with all its pools is enough",
                )
        yield from _check_tls(here, proxy)


def _same(url: str) -> str:
    return canonical_url(url) if urlsplit(url).scheme in _HTTP_SCHEMES else url


def _check_tls(here: tuple[str | int, ...], proxy: dict[str, Any]) -> Iterator[Problem]:
    if "certificate_key" in proxy and "certificate" not in proxy:
        yield (*here, "certificate_key"), "is given without certificate"
    urls = [url for key in ("admin_url", "data_url") if (url := proxy.get(key)) is not None]
    if urls and not any(url.lower().startswith("https:") for url in urls):
        for key in ("ca", "certificate"):
            if key in proxy:
                yield (*here, key), "has no meaning without https:// in admin_url or data_url"


def _check_pools(proxies: list[dict[str, Any]], pools: dict[str, Any]) -> Iterator[Problem]:
    for index, proxy in enumerate(proxies):
        for pool in proxy.get("pools") or ():
            if pool not in pools:
                near = nearest(pool, pools)
                yield (
                    ("proxies", index, "pools"),
                    f"{pool!r} is not declared; {f'did you mean {near!r}?' if near else f'add [pools.{pool}]'}",
                )
    yield from _check_roles(proxies, pools)
    if any(proxy.get("pools") is None for proxy in proxies):
        return  # which pools that proxy serves is not known; its own problem is reported
    served = {pool for proxy in proxies for pool in proxy["pools"]}
    required = PoolPolicy().requires_proxy
    for name, pool in pools.items():
        if name not in served and pool is not None and pool.get("requires_proxy", required):
            yield (
                ("pools", name),
                "requires a proxy and none serves it; name it in a proxy or set requires_proxy = false",
            )


def _check_roles(proxies: list[dict[str, Any]], pools: dict[str, Any]) -> Iterator[Problem]:
    for name, pool in pools.items():
        role = (pool or {}).get("role") or PoolPolicy().role
        if "bootstrap" in (pool or {}) and role != "prefill":
            yield ("pools", name, "bootstrap"), 'has a meaning for role = "prefill" only'
        if role == PoolPolicy().role:
            continue
        for proxy in proxies:
            if proxy.get("kind") is None or name not in (proxy.get("pools") or ()):
                continue
            kind = find_kind(proxy["kind"])
            if not kind.roles:
                yield (
                    ("pools", name, "role"),
                    f"{role!r} cannot be told to a proxy of kind {kind.name!r}, which serves it",
                )
            elif kind.bootstrap and role == "prefill" and "bootstrap" not in pool:
                needed = f"is missing: proxies of kind {kind.name!r} must be told where decode workers fetch from"
                yield ("pools", name, "bootstrap"), f"{needed}; name the worker's address that has that port"


def refuse_unreachable_log(settings: Settings, ray_nodes: int) -> None:
    """Raise `ConfigError` if workers on other machines of a Ray cluster could not reach the embedded server."""
    if settings.nats.url is None and ray_nodes > 1:
        msg = (
            f"nats.url: is missing, and this Ray has {ray_nodes} nodes: an embedded NATS listens on loopback, so "
            "workers on other nodes could not reach it. Start a nats-server with JetStream and name it in nats.url"
        )
        raise ConfigError([msg])
