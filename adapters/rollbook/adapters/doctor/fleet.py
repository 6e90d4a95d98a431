"""Who leads, how the workers are and where, and the proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from rollbook.adapters.doctor.findings import Findings
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.service.client import Controllers, ControllerSilent, NoController, Refusal
from rollbook.adapters.service.frames import BrokenReply
from rollbook.adapters.service.messages import INFO, STATUS, InfoRequest, Request
from rollbook.adapters.settings import (
    Config,
    ProxySettings,
    RayActorsProvider,
    RayProvider,
    StaticProvider,
    refuse_unreachable_log,
)
from rollbook.adapters.settings.errors import ConfigError
from rollbook.adapters.spelling import counted
from rollbook.events import RollbookError
from rollbook.projections.lanes.listing import bounded
from rollbook.projections.looking.status import FleetStatus, WorkerStatus
from rollbook.projections.ports import Capabilities, LogUnavailable, ProviderWorker, Proxy, ProxyUnavailable

PROVIDER_SECONDS: Final = 20.0
"""Joining a Ray cluster takes seconds on a busy machine."""
_ASK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 15.0
"""The leader asks provider and proxies for it, each within its own deadline."""
_MOST_NAMED: Final = 5
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What OpenSSL calls an answer that is no TLS at all; which of them, depends on its version."""


async def leadership(findings: Findings, client: Client, fleet: str) -> bool:
    """Who leads, how long, and whether it answers. Returns that."""
    try:
        holder = await JetStreamLeadership(client, fleet).holder()
    except LogUnavailable as exc:
        findings.skipped("leadership", f"who leads cannot be asked: {exc}")
        return False
    if holder is None:
        findings.warning("leadership", "nobody leads the fleet: no proxy is corrected", "start `rollbook up`")
        return False
    owner, since = holder
    try:
        info = await Controllers(client, fleet).ask(INFO, InfoRequest(deadline_seconds=_ASK_SECONDS))
    except NoController:
        told = f"{owner} holds the lease since {since}, and does not answer"
        fix = (
            "wait a few seconds if it just started; otherwise see its log. If it is gone for longer than a lease, NATS "
            "stores nothing any more: give its disk room, and restart it"
        )
        findings.warning("leadership", told, fix)
    except (ControllerSilent, Refusal, BrokenReply, LogUnavailable) as exc:
        findings.warning("leadership", f"{owner} leads since {since}: {exc}", "see its log; a newer version may lead")
    else:
        told = f"{info.owner} leads since {info.since} ({info.uptime_seconds:.0f} s), epoch {info.epoch}"
        findings.ok("leadership", f"{told}, version {info.version}")
        return True
    return False


async def workers(findings: Findings, client: Client, fleet: str, *, led: bool) -> None:
    """By the leader's word: who is down and was not stopped on purpose, who is silent, and what is being restarted."""
    if not led:
        findings.skipped("workers", "no controller says how they are; `rollbook status` looks without one")
        return
    try:
        status = await Controllers(client, fleet).ask(STATUS, Request(deadline_seconds=_LOOK_SECONDS))
    except (NoController, ControllerSilent, Refusal, BrokenReply, LogUnavailable) as exc:
        findings.warning("workers", str(exc), "see the controller's log; `rollbook status` asks again")
        return
    broken = _broken(status)
    told = f"{counted(len(status.workers), 'worker')}, {sum(one.phase == 'serving' for one in status.workers)} serving"
    if broken:
        more = f" and {len(broken) - _MOST_NAMED} more" if len(broken) > _MOST_NAMED else ""
        told = f"{told}, {len(broken)} down: {', '.join(broken[:_MOST_NAMED])}{more}"
    told = "; ".join((told, *status.notes))
    cordoned = [one.about for one in status.decisions if one.what == "cordon" and one.about in broken]
    if cordoned:
        name = cordoned[0]
        fix = f"`rollbook explain {name}` says why; mend that, then `rollbook uncordon {name} --reason ...`"
    elif broken:
        fix = f"`rollbook explain {broken[0]}` says why; its manager or a `rollbook recover` restarts it, if one runs"
    else:
        fix = "as it says; `rollbook status` shows the whole"
    if broken or status.notes:
        findings.warning("workers", told, fix)
    else:
        findings.ok("workers", told)


def _broken(status: FleetStatus) -> list[str]:
    """Who is down, without cells that were stopped on purpose: the one that takes requests says so of all."""
    planned = {(one.pool, one.cell) for one in status.workers if _is_planned(one)}
    return [one.name for one in status.workers if one.phase == "down" and (one.pool, one.cell) not in planned]


def _is_planned(worker: WorkerStatus) -> bool:
    reasons = (one.reason or "" for one in worker.registrations)
    return worker.phase == "down" and any(reason.startswith("down (planned") for reason in reasons)


async def provider(findings: Findings, config: Config, environ: Mapping[str, str]) -> None:
    """Whether whoever knows the addresses answers, and how many workers it knows."""
    from rollbook.adapters.bootstrap import open_provider

    settings = config.settings
    ray = None if isinstance(settings.provider, StaticProvider) else settings.provider
    try:
        async with asyncio.timeout(PROVIDER_SECONDS), open_provider(settings, config.file.parent) as opened:
            workers = await opened.list_workers()
            if ray is not None:
                from rollbook.adapters.ray.provider import count_nodes

                refuse_unreachable_log(settings, await count_nodes())
    except ConfigError as exc:
        findings.failed("provider", str(exc), "start a nats-server with JetStream, and name it in nats.url")
    except (RollbookError, TimeoutError, OSError) as exc:
        told = str(exc) or f"no answer within {PROVIDER_SECONDS:g} s"
        findings.failed("provider", told, _ray_fix(ray, environ) if ray is not None else "correct [provider]")
    else:
        findings.ok("provider", f"{_who(settings.provider)} {_liveness(workers)}")


def _who(provider: RayProvider | RayActorsProvider | StaticProvider) -> str:
    match provider:
        case RayProvider():
            return "the Ray manager"
        case RayActorsProvider():
            return f"Ray, of actors named {provider.actor},"
        case StaticProvider():
            return f"the file {provider.file}" if provider.file is not None else "the configuration"


def _liveness(workers: Sequence[ProviderWorker]) -> str:
    """How many it knows, and of how many it can say that they live: a file can of none."""
    known = f"knows {counted(len(workers), 'worker')}"
    told = [worker.alive for worker in workers if worker.alive is not None]
    if not told and workers:
        return f"{known}; whether they are alive it cannot tell"
    silent = len(workers) - len(told)
    return f"{known}, {sum(told)} of them alive" + (f"; of {silent} it cannot tell" if silent else "")


def _ray_fix(ray: RayProvider | RayActorsProvider, environ: Mapping[str, str]) -> str:
    address = ray.address or environ.get("RAY_ADDRESS")
    if isinstance(ray, RayProvider):
        fix = "start the cluster and its manager (docs/ray.md), or correct provider.address and provider.manager"
    else:
        fix = "start the cluster (docs/ray.md), or correct provider.address, provider.actor and provider.method"
    if address and environ.get("RAY_AUTH_MODE") != "token":
        fix = f"{fix}; if the cluster at {address} asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
    return fix


async def proxies(findings: Findings, config: Config, environ: Mapping[str, str]) -> None:
    """Each proxy: whether it answers, what it is and can do, and whether it takes the key."""
    from rollbook.adapters.proxies.opening import open_proxies

    if not config.settings.proxies:
        findings.skipped("proxies", "the configuration has none")
        return
    try:
        async with open_proxies(config.settings, environ=environ, base=config.file.parent) as opened:
            each = [Findings() for _ in opened]
            asked = zip(each, config.settings.proxies, opened.values(), strict=True)
            await asyncio.gather(*(_proxy(found, settings, proxy, config) for found, settings, proxy in asked))
            findings.found += [finding for one in each for finding in one.found]
    except RollbookError as exc:
        findings.failed("proxies", str(exc), "correct the secret or file that it names")


async def _proxy(findings: Findings, settings: ProxySettings, proxy: Proxy, config: Config) -> None:
    check = f"proxy {settings.name}"
    seconds = settings.call_deadline or config.settings.reconcile.call_deadline
    if not proxy.capabilities.list:
        told = f"{settings.kind} at {settings.admin_url}: it lists nothing, so only `verify` can try it"
        findings.skipped(check, told)
        return
    try:
        listing = await bounded(proxy.list(), seconds, f"{settings.name}: list")
    except ProxyUnavailable as exc:
        findings.failed(check, str(exc), _proxy_fix(settings, str(exc)))
        return
    what = f"{settings.kind} {listing.version}" if listing.version else settings.kind
    # Looked at only now: some kinds learn from the first answer which version it is, and so what it can do.
    can = _can(proxy.capabilities)
    findings.ok(check, f"{what} at {settings.admin_url} lists {len(listing.entries)}; it can {can}")


def _can(capabilities: Capabilities) -> str:
    words = {
        "list": capabilities.list,
        "remove": capabilities.remove,
        "tag": capabilities.tag,
        "drain": capabilities.drain,
    }
    lacking = [word for word, can in words.items() if not can]
    told = ", ".join(word for word, can in words.items() if can) or "add only"
    return f"{told} (not {', '.join(lacking)})" if lacking else told


def _proxy_fix(settings: ProxySettings, told: str) -> str:
    key = f"proxies.{settings.name}"
    if "asks for a key" in told:
        return f"set api_key of {key} to the key that the router was started with"
    if "refuses the key" in told:
        return f"correct the key that api_key of {key} refers to; the router was started with another"
    if any(word in told for word in _NO_TLS):
        return f"write http:// in admin_url of {key}: what answers there speaks no TLS; or start its router with TLS"
    if "certificate" in told or "TLS" in told:
        return f"set ca of {key} to the authority that signed the router's certificate"
    if "no answer within" in told or "took too long" in told:
        return f"see whether the router of {key} hangs, or a firewall drops what is sent to {settings.admin_url}"
    return f"start the router of {key}, or correct its admin_url ({settings.admin_url}) and kind ({settings.kind})"
