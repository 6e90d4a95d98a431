"""What is said outside the log, on core NATS: heartbeats of observers and renewals of leases; controllers hear both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
import structlog

from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.adapters.publisher.renewals import renewal_subject
from rollbook.projections.ending import apart
from rollbook.projections.ports import Clock, LogUnavailable
from rollbook.projections.state.leases import Leases, Renewal
from rollbook.projections.state.observers import Heartbeat, Observers

EVERY: Final = 2.0
"""Seconds between two heartbeats."""
_SEND_WITHIN: Final = 1.0

_log = structlog.get_logger("rollbook")


def heartbeat_subject(fleet: str, observer: str) -> str:
    """Where the heartbeats of one observer are sent; `*` for all of them."""
    return f"rollbook-rpc.{fleet}.heartbeat.{observer}"


@contextlib.asynccontextmanager
async def beating(client: Client, fleet: str, observer: str, pools: Sequence[str]) -> AsyncGenerator[None]:
    """Send heartbeats within the block, and a last one at its end that says so.

    Where NATS does not permit them, that is told once and they stop: the observer itself goes on.
    """
    subject = heartbeat_subject(fleet, observer)
    beat = Heartbeat(observer=observer, every=EVERY, pools=tuple(pools))

    async def say(said: Heartbeat) -> None:
        with contextlib.suppress(LogUnavailable):
            await client.tell([(subject, msgspec.json.encode(said), {})], timeout=_SEND_WITHIN)

    async def beat_on() -> None:
        while True:
            await say(beat)
            await asyncio.sleep(EVERY)

    task = asyncio.create_task(beat_on(), name="heartbeats")

    def denied(of: str, why: NotPermitted) -> None:
        if of == subject.lower() and not task.done():
            task.cancel()
            _log.warning("monitor.heartbeats_refused", reason=str(why))

    client.denials.add(denied)
    try:
        yield
    finally:
        refused = task.done()
        task.cancel()
        await asyncio.wait([task])
        if not refused:
            await apart(say(msgspec.structs.replace(beat, leaving=True)))
        client.denials.discard(denied)


@contextlib.asynccontextmanager
async def hearing(
    client: Client, fleet: str, observers: Observers, leases: Leases, clock: Clock
) -> AsyncGenerator[None]:
    """Note the heartbeats of all observers, and the renewals of all leases, within the block."""
    beats, renewals = msgspec.json.Decoder(Heartbeat), msgspec.json.Decoder(Renewal)

    def beaten(subject: bytes, _: bytes, payload: bytes, __: bytes | None) -> None:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            beat = beats.decode(payload)
            if subject == heartbeat_subject(fleet, beat.observer).encode():
                observers.heard(beat, clock.monotonic())

    def renewed(subject: bytes, _: bytes, payload: bytes, __: bytes | None) -> None:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            renewal = renewals.decode(payload)
            if subject == renewal_subject(fleet, renewal.worker).encode():
                leases.renewed(renewal.worker, renewal.incarnation, clock.monotonic())

    def deaf() -> None:
        observers.deaf()
        leases.deaf()

    def again() -> None:
        observers.listening(clock.monotonic())
        leases.listening(clock.monotonic())

    client.disconnections.add(deaf)
    client.reconnections.add(again)
    sinks = [
        await client.sink(beaten, heartbeat_subject(fleet, "*")),
        await client.sink(renewed, renewal_subject(fleet, "*")),
    ]
    try:
        yield
    finally:
        client.disconnections.discard(deaf)
        client.reconnections.discard(again)
        for sink in sinks:
            await sink.close()
