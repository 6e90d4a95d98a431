"""The fleet's stream: made if it is missing, and refused if its settings would lose facts.

A setting that only stands in the way (an option that was left out, a duplicate window that is too short) is mended.
One that drops facts is not: somebody chose it, and mending it silently would hide what is gone already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog

from rollbook.adapters.jetstream.api import NANO, NO_STREAM, STREAM_EXISTS, Refused, question
from rollbook.adapters.jetstream.client import Client
from rollbook.events import stream_name, stream_subjects
from rollbook.projections.ports import LogMisconfigured, LogUnavailable

_log = structlog.get_logger(__name__)

DUPLICATE_WINDOW: Final = 120
"""Seconds within which an id that is stored already is recognised."""
_ATTEMPTS: Final = 3
_LOOK: Final = 0.1
"""Seconds between two looks at how far the replicas are."""

Settings = dict[str, Any]


def wanted(fleet: str, replicas: int) -> Settings:
    """The stream as it is made."""
    return {
        "name": stream_name(fleet),
        "description": f"Rollbook: the facts of fleet {fleet}",
        "subjects": stream_subjects(fleet),
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW * NANO,
        "deny_delete": True,
        "allow_direct": True,
        "allow_atomic": True,
    }


def _limited(value: Any) -> bool:
    return isinstance(value, int) and value > 0


# What loses facts: setting, when, what it should be. The whole configuration is at hand, because a limit is harmless
# as long as it makes the stream refuse new facts.
_LOSES: Final[list[tuple[str, Callable[[Settings], bool], str]]] = [
    ("storage", lambda it: it.get("storage") != "file", "'file': facts in memory are gone after a restart"),
    ("retention", lambda it: it.get("retention") != "limits", "'limits': other retention deletes facts that were read"),
    ("max_age", lambda it: _limited(it.get("max_age")), "0: facts must not expire"),
    ("max_msgs_per_subject", lambda it: _limited(it.get("max_msgs_per_subject")), "-1: it deletes a worker's history"),
    ("max_msgs", lambda it: _limited(it.get("max_msgs")) and it.get("discard") != "new", "-1, or discard 'new'"),
    ("max_bytes", lambda it: _limited(it.get("max_bytes")) and it.get("discard") != "new", "-1, or discard 'new'"),
    ("allow_msg_ttl", lambda it: bool(it.get("allow_msg_ttl")), "false: single facts must not expire"),
    ("allow_msg_counter", lambda it: bool(it.get("allow_msg_counter")), "false: counters are no facts"),
    ("persist_mode", lambda it: it.get("persist_mode", "default") != "default", "'default': see every fact stored"),
    ("sealed", lambda it: bool(it.get("sealed")), "false: nothing can be added to a sealed stream"),
    ("mirror", lambda it: bool(it.get("mirror")), "none: a mirror cannot be written to"),
    ("sources", lambda it: bool(it.get("sources")), "none: other streams' messages are no facts of this fleet"),
    ("subject_transform", lambda it: bool(it.get("subject_transform")), "none: the subject says whom a fact is about"),
]


def mended(found: Settings, want: Settings) -> Settings:
    """What only stands in the way, and the value it must have."""
    same = set(found.get("subjects") or []) == set(want["subjects"])
    target: Settings = {
        "subjects": found["subjects"] if same else want["subjects"],
        "discard": "new",
        "deny_delete": True,
        "allow_direct": True,
        "allow_atomic": True,
        "allow_rollup_hdrs": False,
        "no_ack": False,
        "max_msg_size": -1,
        "duplicate_window": max(found.get("duplicate_window", 0), want["duplicate_window"]),
        "num_replicas": max(found.get("num_replicas", 1), want["num_replicas"]),
    }
    return {setting: value for setting, value in target.items() if found.get(setting, False) != value}


async def provision(client: Client, fleet: str, *, replicas: int = 1, timeout: float = 5.0) -> None:
    """Make the stream of `fleet`, or check the one that is there. Can be called at every start.

    An existing stream keeps limits that refuse new facts, its compression, its placement and a higher number of
    replicas. Raises `LogMisconfigured` (names setting, value found and value needed) or `LogUnavailable`.
    """
    want = wanted(fleet, replicas)
    name = want["name"]
    changes: Settings = {}
    for _ in range(_ATTEMPTS):
        found = await _existing(client, name, timeout)
        if found is None:
            try:
                await question(client, f"STREAM.CREATE.{name}", want, timeout=timeout)
            except Refused as exc:
                if exc.err_code != STREAM_EXISTS:
                    raise _misconfigured(name, f"cannot be made: {exc.description}") from exc
            else:
                _log.info("log.stream.created", stream=name, replicas=replicas)
            continue  # look at it: an older server ignores what it does not know, or somebody else was faster
        _refuse_lossy(found, want)
        changes = mended(found, want)
        if not changes:
            return
        told = ", ".join(f"{setting} is {found.get(setting)!r} and must be {changes[setting]!r}" for setting in changes)
        try:
            await question(client, f"STREAM.UPDATE.{name}", found | changes, timeout=timeout)
        except Refused as exc:
            raise _misconfigured(name, f"cannot be mended: {told}; the server says: {exc.description}") from exc
        _log.warning("log.stream.mended", stream=name, settings=sorted(changes))
        if "num_replicas" in changes:
            await _settled(client, name, timeout)
    raise _misconfigured(
        name,
        f"does not keep the settings that it needs ({', '.join(sorted(changes)) or 'it vanishes'}): either somebody "
        "else changes it too, or the server is older than 2.12",
    )


async def replicate(client: Client, name: str, replicas: int, *, timeout: float) -> bool:
    """Raise the replicas of a stream to at least so many; False if there is no such stream.

    Raises `LogMisconfigured` (the cluster has too few servers) or `LogUnavailable`.
    """
    found = await _existing(client, name, timeout)
    if found is None:
        return False
    if found.get("num_replicas", 1) < replicas:
        try:
            await question(client, f"STREAM.UPDATE.{name}", found | {"num_replicas": replicas}, timeout=timeout)
        except Refused as exc:
            raise _misconfigured(name, f"cannot be kept {replicas} times: {exc.description}") from exc
        await _settled(client, name, timeout)
    return True


async def _settled(client: Client, name: str, timeout: float) -> None:
    """Wait until all replicas have the whole stream. What is published before is answered by nobody."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                info = await question(client, f"STREAM.INFO.{name}", timeout=timeout)
                cluster = info.get("cluster") or {}
                replicas = cluster.get("replicas") or []
                enough = len(replicas) + 1 >= info["config"].get("num_replicas", 1)
                if cluster.get("leader") and enough and all(one.get("current") for one in replicas):
                    return
                await asyncio.sleep(_LOOK)
    except Refused as exc:
        raise LogUnavailable(f"stream {name} cannot be looked at any more: {exc.description}; try again") from exc
    except TimeoutError as exc:
        raise LogUnavailable(f"stream {name} is not on its new replicas within {timeout:g} s; try again") from exc


async def _existing(client: Client, name: str, timeout: float) -> Settings | None:
    try:
        info = await question(client, f"STREAM.INFO.{name}", timeout=timeout)
    except Refused as exc:
        if exc.err_code == NO_STREAM:
            return None
        raise _misconfigured(name, f"cannot be looked at: {exc.description}") from exc
    return dict(info["config"])


def _refuse_lossy(found: Settings, want: Settings) -> None:
    for problem in lossy(found, want):
        raise _misconfigured(want["name"], problem)


def lossy(found: Settings, want: Settings) -> Iterator[str]:
    """What would lose facts, or take in what is none: setting, value found and value needed, one sentence each."""
    for setting, loses, needed in _LOSES:
        if loses(found):
            yield f"would lose facts: {setting} is {found.get(setting)!r} and must be {needed}"
    foreign = sorted(set(found.get("subjects") or []) - set(want["subjects"]))
    if foreign:
        yield f"takes in what is no fact: subjects has {foreign} and must be {want['subjects']}"


def _misconfigured(name: str, problem: str) -> LogMisconfigured:
    return LogMisconfigured(f"stream {name} {problem}. Correct it (`nats stream edit`), or move it away")
