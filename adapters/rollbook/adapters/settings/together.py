"""What contradicts what in a configuration.

`check_together` looks at the whole tree after every value has been checked by itself, and passes over what failed that,
so that one typo is not reported twice.
"""

from __future__ import annotations

import contextlib
import math
import string
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from rollbook.adapters.proxies.registry import find_kind
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.adapters.ray.naming import actor_pattern
from rollbook.adapters.settings.checks import HTTP_SCHEMES, Problem
from rollbook.adapters.settings.model import LeadershipSettings, Settings, StaticProvider
from rollbook.adapters.spelling import nearest
from rollbook.events import InvalidName, parse_worker
from rollbook.projections.policy import HealthPolicy, PoolPolicy, ReconcilePolicy, RecoveryPolicy
from rollbook.projections.recovery.due import shortest_window

LEASE_PER_CALL: Final = 5 / 3
"""A lease is at least so many times as long as a call. It is renewed every fifth of its time, so one renewal can fail
and a call still has its own deadline left [I7]."""

_OTHER_PROBE: Final = {"http": ("actor", "method"), "ray": ("url", "path", "deep", "deep_every", "deep_timeout")}
"""By how a pool's workers are asked: what only another way of asking knows."""


def check_together(tree: dict[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong between keys. In `tree`, None stands for a value that failed its own check."""
    yield from _check_nats(tree.get("nats") or {})
    yield from _check_provider(tree.get("provider") or {})
    yield from _check_primary(("workers",), tree.get("workers"))
    proxies: list[dict[str, Any]] = [proxy or {} for proxy in tree.get("proxies") or []]
    pools: dict[str, Any] | None = tree.get("pools", {})
    yield from _check_proxies(proxies)
    yield from _check_lease(tree, proxies)
    if pools is not None:
        yield from _check_pools(proxies, pools)
        yield from _check_health((tree.get("provider") or {}).get("kind"), pools)
        yield from check_addresses(pools, (tree.get("provider") or {}).get("workers") or {})
    yield from _check_backoff(("reconcile",), tree.get("reconcile"), ReconcilePolicy())
    for name, pool in (pools or {}).items():
        recovery = (pool or {}).get("recovery")
        yield from _check_backoff(("pools", name, "recovery"), recovery, RecoveryPolicy())
        yield from _check_window(name, recovery or {})


def _check_backoff(
    here: tuple[str, ...], paces: dict[str, Any] | None, default: ReconcilePolicy | RecoveryPolicy
) -> Iterator[Problem]:
    first, most = ((paces or {}).get(key, getattr(default, key)) for key in ("backoff_first", "backoff_most"))
    if first is not None and most is not None and first > most:
        yield (*here, "backoff_first"), "is longer than backoff_most; the first delay is the shortest"


def _check_window(pool: str, recovery: dict[str, Any]) -> Iterator[Problem]:
    """All restarts must fit, also those that hang and those that wait, or their number is never reached."""
    default = RecoveryPolicy()
    said = {key: recovery.get(key, getattr(default, key)) for key in RecoveryPolicy.__struct_fields__}
    if None in said.values():
        return
    policy = RecoveryPolicy(**said)
    least = math.ceil(shortest_window(policy))
    if policy.window < least:
        problem = (
            f"is {policy.window:g} s; {policy.attempts} restarts that hang take up to {least} s with the pauses "
            f"between them, and would go on for ever. Write at least {least}, or a shorter claim"
        )
        yield ("pools", pool, "recovery", "window"), problem


def _check_nats(nats: dict[str, Any]) -> Iterator[Problem]:
    ways = [key for key in ("token", "user", "creds", "nkey") if key in nats]
    for key in ways[1:]:
        yield ("nats", key), f"is given together with {ways[0]}; a server asks for one of them"
    if "password" in nats and "user" not in nats:
        yield ("nats", "password"), "is given without user"
    if "url" not in nats:
        if (nats.get("replicas") or 1) > 1:
            yield ("nats", "replicas"), "has no meaning without nats.url: the embedded server is one server"
        for key in (*ways, *(("ca",) if "ca" in nats else ())):
            yield ("nats", key), "has no meaning without nats.url: the embedded server makes its own credentials"


def _check_lease(tree: dict[str, Any], proxies: list[dict[str, Any]]) -> Iterator[Problem]:
    lease = (tree.get("leadership") or {}).get("lease", LeadershipSettings().lease)
    general = (tree.get("reconcile") or {}).get("call_deadline", ReconcilePolicy().call_deadline)
    calls: list[tuple[tuple[str | int, ...], float | None]] = [(("reconcile", "call_deadline"), general)]
    calls += [(("proxies", index, "call_deadline"), proxy.get("call_deadline")) for index, proxy in enumerate(proxies)]
    for path, seconds in calls:
        if lease is not None and seconds is not None and lease < seconds * LEASE_PER_CALL:
            problem = (
                f"is {seconds:g} s; no call may outlast a lease of {lease:g} s. "
                f"Write at most {lease / LEASE_PER_CALL:g}, or raise leadership.lease to {seconds * LEASE_PER_CALL:g}"
            )
            yield path, problem


def _check_provider(provider: dict[str, Any]) -> Iterator[Problem]:
    yield from _check_primary(("provider", "workers"), provider.get("workers"))
    if provider.get("file") is not None and provider.get("workers"):
        yield ("provider", "file"), "is given together with workers; addresses stand here or there"
    actor = provider.get("actor")
    if actor is not None:
        pattern = actor_pattern(actor)
        told = "worker" in pattern.groupindex or "pool" in pattern.groupindex
        if told and provider.get("pool") is not None:
            yield ("provider", "pool"), f"has no meaning with {actor!r}, which says it"
        elif not told and "pool" not in provider:
            yield ("provider", "pool"), f"is missing: {actor!r} does not say of which pool the workers are"


def _check_primary(path: tuple[str, ...], workers: dict[str, Any] | None) -> Iterator[Problem]:
    for worker, named in (workers or {}).items():
        if named is not None and "primary" not in named:
            yield (*path, worker), 'has no primary address; add primary = "host:port"'


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
    return canonical_url(url) if urlsplit(url).scheme in HTTP_SCHEMES else url


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
    yield from _check_pairs(proxies, pools)
    yield from _check_weights(pools)
    if any(proxy.get("pools") is None for proxy in proxies):
        return  # which pools that proxy serves is not known; its own problem is reported
    served = {pool for proxy in proxies for pool in proxy["pools"]}
    required = PoolPolicy().requires_proxy
    for name, pool in pools.items():
        if name not in served and pool is not None and pool.get("requires_proxy", required):
            near = nearest(name, served)
            meant = f"did you mean {near!r}, which one serves? Otherwise " if near else ""
            problem = f"requires a proxy and none serves it; {meant}name it in a proxy or set requires_proxy = false"
            yield ("pools", name), problem


def _check_roles(proxies: list[dict[str, Any]], pools: dict[str, Any]) -> Iterator[Problem]:
    for name, pool in pools.items():
        role = PoolPolicy().role if pool is None else pool.get("role", PoolPolicy().role)
        if pool is None or role is None:
            continue
        if "bootstrap" in pool and role != "prefill":
            yield ("pools", name, "bootstrap"), 'has a meaning for role = "prefill" only'
        for proxy in proxies:
            if role == PoolPolicy().role or proxy.get("kind") is None or name not in (proxy.get("pools") or ()):
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


def _check_pairs(proxies: list[dict[str, Any]], pools: dict[str, Any]) -> Iterator[Problem]:
    pairs = {name: pool["paired_with"] for name, pool in pools.items() if pool and pool.get("paired_with")}
    for name, partner in pairs.items():
        here = ("pools", name, "paired_with")
        if partner == name:
            yield here, "names the pool itself; a pair is two pools"
            continue
        if partner not in pools:
            near = nearest(partner, pools)
            yield (
                here,
                f"{partner!r} is not declared; {f'did you mean {near!r}?' if near else f'add [pools.{partner}]'}",
            )
            continue
        third = [one for one, other in pairs.items() if one != name and other in {name, partner} and one != partner]
        if third or pairs.get(partner, name) != name:
            other = third[0] if third else pairs[partner]
            yield here, f"{partner!r} or {name!r} is paired with {other!r}, too; a pool has one partner"
        for proxy in proxies:
            served: set[str] = set(proxy.get("pools") or ())
            if len(served & {name, partner}) == 1:
                lacking = partner if name in served else name
                told = proxy.get("name") or "a proxy"
                yield (
                    here,
                    f"{told} serves one of the two only, and would never be given it; add {lacking!r} to its pools",
                )


def _check_weights(pools: dict[str, Any]) -> Iterator[Problem]:
    for name, pool in pools.items():
        if pool is None or pool.get("require_weights", True) is not False:
            continue
        for key in ("max_lag", "stale"):
            if pool.get(key) not in {None, getattr(PoolPolicy(), key)}:
                yield ("pools", name, key), "has no meaning with require_weights = false"


def _check_health(provider: str | None, pools: dict[str, Any]) -> Iterator[Problem]:
    """What is asked of a worker depends on how it is asked. Of `off` nothing is said: it may be so for a night."""
    for name, pool in pools.items():
        health = (pool or {}).get("health") or {}
        probe = health.get("probe", HealthPolicy().probe)
        here = ("pools", name, "health")
        for key in _OTHER_PROBE.get(probe, ()):
            if health.get(key) not in {None, getattr(HealthPolicy(), key)}:
                other = "http" if probe == "ray" else "ray"
                yield (*here, key), f'has no meaning with probe = "{probe}"; leave it out, or write probe = "{other}"'
        if probe == "ray" and provider == "static":
            problem = (
                '"ray" would ask nobody, because provider.kind = "static" joins no Ray cluster; write probe = "http", '
                "or a provider of kind ray or ray-actors"
            )
            yield (*here, "probe"), problem


def check_addresses(pools: Mapping[str, Any], workers: Mapping[str, Mapping[str, Any] | None]) -> Iterator[Problem]:
    """Yield what of each pool names a kind of address that none of its workers has, by all that is known of them."""
    known: dict[str | None, set[str]] = {}
    for worker, named in workers.items():
        with contextlib.suppress(InvalidName):
            if named is not None:
                known.setdefault(parse_worker(worker).pool, set()).update(named)
    for name, pool in pools.items():
        if pool is None or name not in known:
            continue
        told = ", ".join(sorted(known[name])) or "none"
        for path, kinds in _kinds_named(pool):
            for kind in sorted(kinds - known[name]):
                problem = f"names {kind!r}, an address that no worker of this pool has; they have: {told}"
                yield ("pools", name, *path), problem


def _kinds_named(pool: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """The kinds of address that a pool's workers must have, each with the key that says so."""
    health = pool.get("health") or {}
    templates: dict[tuple[str, ...], str | None] = {("url",): pool.get("url")}
    if health.get("probe", HealthPolicy().probe) == "http":
        templates["health", "url"] = health.get("url")
    for path, template in templates.items():
        if template is not None:
            yield path, {field for _, field, _, _ in string.Formatter().parse(template) if field}
    if pool.get("bootstrap") is not None:
        yield ("bootstrap",), {pool["bootstrap"]}


def nobody_known(settings: Settings) -> Iterator[str]:
    """Warn of a provider that can never name anybody. No problem: the workers may be written down later."""
    provider = settings.provider
    if isinstance(provider, StaticProvider) and provider.file is None and not provider.workers:
        yield (
            "provider: names no workers and no file, so nobody will be found or registered; add "
            '[provider.workers.<worker>] with primary = "host:port", or file = "workers.toml"'
        )


def untold_models(settings: Settings) -> Iterator[str]:
    """Warn of models that a proxy is not told. No problem: `verify` asks for a pool's model wherever it is served."""
    for name, pool in settings.pools.items():
        for proxy in settings.proxies:
            if pool.model is not None and name in proxy.pools and not find_kind(proxy.kind).model:
                yield (
                    f"pools.{name}.model: {pool.model!r} is not told to {proxy.name}, because proxies of kind "
                    f"{proxy.kind!r} are told no model; it is only what `verify` asks for there"
                )
