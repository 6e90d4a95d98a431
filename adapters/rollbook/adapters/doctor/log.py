"""NATS, JetStream, the fleet's stream, and the clocks. Reads only."""

from __future__ import annotations

import time
from typing import Any, Final

import nats.errors

from rollbook.adapters.doctor.findings import Findings
from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.api import Refused, question
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import NO_CREDENTIALS, Connection, NotAuthorised, connect
from rollbook.adapters.jetstream.provision import lossy, mended, wanted
from rollbook.events import stream_name
from rollbook.projections.ports import LogError, LogMisconfigured, LogUnavailable

CONNECT_SECONDS: Final = 5.0
ASK_SECONDS: Final = 5.0
TRIES: Final = 5
"""Questions of which the quickest counts: for the round trip and for the clocks."""

SLOW_SECONDS: Final = 0.1
"""A round trip that long makes every decision slow."""
LEAST_PAYLOAD: Final = 1_000_000
"""Bytes: a fact may have 900,000, and its headers come on top."""
OLDEST: Final = (2, 12)
"""The first nats-server with atomic batches."""
FULL: Final = 0.85
"""The part of a limit from which on there is a warning."""
OFF_SECONDS: Final = 1.0
"""By how much a clock may be off before times in the log mislead people."""


async def server(findings: Findings, connection: Connection) -> Client | None:
    """Whether the server answers, how fast, and which it is. The caller closes the client."""
    try:
        client = await connect(connection, name="rollbook-doctor", timeout=CONNECT_SECONDS)
    except NotAuthorised as exc:
        findings.failed("nats", str(exc), "correct nats.token, nats.user with nats.password, nats.creds or nats.nkey")
        return None
    except LogMisconfigured as exc:
        findings.failed("nats", str(exc), 'add `jetstream { store_dir: "...", sync_interval: always }` to nats.conf')
        return None
    except LogUnavailable as exc:
        findings.failed("nats", str(exc), f"start nats-server at {connection.url}, or correct nats.url and nats.ca")
        return None
    except LogError as exc:
        findings.failed("nats", str(exc), "correct the [nats] table")
        return None
    seconds = await _round_trip(client)
    who = connection.authentication
    told = f"{connection.url} answers in {seconds * 1000:.1f} ms, "
    told += "without credentials" if who == NO_CREDENTIALS else f"as {who}"
    version = client.connected_server_version
    told = f"{told}; nats-server {version.major}.{version.minor}.{version.patch}"
    if (version.major, version.minor) < OLDEST:
        findings.failed("nats", told, "update nats-server to 2.12 or newer: older ones have no atomic batches")
    elif seconds > SLOW_SECONDS:
        findings.warning("nats", told, "let the controller run nearer to the server: every step waits for it")
    else:
        findings.ok("nats", told)
    if client.max_payload < LEAST_PAYLOAD:
        told = f"max_payload is {client.max_payload} bytes, and a fact may have more"
        findings.failed("max_payload", told, "set max_payload: 1MB (its default) in nats.conf")
    else:
        findings.ok("max_payload", f"{client.max_payload} bytes")
    return client


async def _round_trip(client: Client) -> float:
    best = float("inf")
    for _ in range(TRIES):
        began = time.monotonic()
        try:
            await client.flush(int(ASK_SECONDS))
        except (nats.errors.Error, OSError):
            continue
        best = min(best, time.monotonic() - began)
    return best


async def jetstream(findings: Findings, client: Client) -> None:
    """The account's limits, and what is used of them."""
    try:
        info = await question(client, "INFO", timeout=ASK_SECONDS)
    except (LogUnavailable, Refused) as exc:
        findings.failed("jetstream", str(exc), "see whether JetStream has a leader, and the account may use it")
        return
    used, most = info["storage"], info["limits"]["max_storage"]
    limit = f"{most} allowed" if most > 0 else "no limit for the account"
    told = f"{used} bytes stored, {limit}; {info['streams']} streams"
    streams = info["limits"]["max_streams"]
    if 0 < most < used / FULL:
        findings.warning("jetstream", told, "raise the account's max_file, or archive: a full log refuses facts")
    elif 0 < streams < info["streams"] + 1:
        findings.warning("jetstream", told, f"raise the account's max_streams ({streams}): a fleet needs three")
    else:
        findings.ok("jetstream", told)


async def stream(findings: Findings, client: Client, fleet: str, *, embedded: bool) -> bool:
    """The fleet's stream against how it is made; whether it is there."""
    name = stream_name(fleet)
    try:
        info = await question(client, f"STREAM.INFO.{name}", timeout=ASK_SECONDS)
    except Refused as exc:
        if exc.err_code == api.NO_STREAM:
            told = f"there is no stream {name}"
            findings.warning("stream", told, "start `rollbook up` once, which makes it; or correct fleet")
        else:
            findings.failed("stream", str(exc), "see the server's log")
        return False
    except LogUnavailable as exc:
        findings.failed("stream", str(exc), "see whether the stream has a leader, and this user may ask for it")
        return False
    config, state = info["config"], info["state"]
    want = wanted(fleet, 1)
    problems = list(lossy(config, want))
    changes = mended(config, want)
    told = f"{name}: {state['messages']} messages up to {state['last_seq']}, {state['bytes']} bytes"
    if problems:
        fix = f"correct it (`nats stream edit {name}`), or move it away and start `rollbook up`"
        findings.failed("stream", f"{name} {'; '.join(problems)}", fix)
    elif changes:
        told = ", ".join(f"{key} is {config.get(key)!r} and should be {value!r}" for key, value in changes.items())
        findings.warning("stream", f"{name}: {told}", "start `rollbook up`, which mends it")
    else:
        findings.ok("stream", told)
    _replicas(findings, info)
    _durability(findings, config["num_replicas"], embedded=embedded)
    return True


def _replicas(findings: Findings, info: dict[str, Any]) -> None:
    cluster = info.get("cluster") or {}
    replicas = cluster.get("replicas") or []
    if info["config"]["num_replicas"] == 1:
        return
    if not cluster.get("leader"):
        findings.failed("replicas", "the stream has no leader", "start the missing servers: more than half must run")
        return
    away = [one["name"] for one in replicas if one.get("offline")]
    behind = [one["name"] for one in replicas if not one.get("current") and not one.get("offline")]
    told = f"led by {cluster['leader']}, with {len(replicas)} others"
    if away or behind:
        told = f"{told}; away: {', '.join(away) or 'none'}; behind: {', '.join(behind) or 'none'}"
        findings.warning("replicas", told, "start them again; until then fewer losses can be borne")
    else:
        findings.ok("replicas", told)


def _durability(findings: Findings, replicas: int, *, embedded: bool) -> None:
    """A server tells no client how often it syncs."""
    if embedded:
        findings.ok("durability", "the embedded server syncs every fact to disk (sync_interval: always)")
    elif replicas >= 3:  # noqa: PLR2004 - a majority survives one
        findings.ok("durability", f"{replicas} replicas; sync_interval is unknown, a server does not tell it")
    else:
        findings.warning(
            "durability",
            f"{replicas} replica, and sync_interval is unknown: a server does not tell it. By default JetStream syncs "
            "every two minutes, and a crash of the machine loses what was acknowledged since",
            "see that nats.conf has `sync_interval: always` in its jetstream block, or use three replicas",
        )


async def clock(findings: Findings, client: Client, fleet: str) -> None:
    """This machine's clock against the server's, as exactly as the round trip allows."""
    best: tuple[float, float] | None = None
    try:
        for _ in range(TRIES):
            began, wall = time.monotonic(), time.time()
            info = await question(client, f"STREAM.INFO.{stream_name(fleet)}", timeout=ASK_SECONDS)
            took = time.monotonic() - began
            offset = api.nanoseconds(info["ts"]) / api.NANO - (wall + took / 2)
            best = min(best or (took, offset), (took, offset))
    except (LogUnavailable, Refused, LookupError, ValueError) as exc:
        findings.skipped("clock", f"the server did not tell its time: {exc}")
        return
    took, offset = best or (0.0, 0.0)
    told = f"the server's is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'}, to within {took / 2:.3f} s"
    if abs(offset) - took / 2 > OFF_SECONDS:
        findings.warning("clock", told, "let both machines run NTP: what programs date themselves misleads people")
    else:
        findings.ok("clock", told)
