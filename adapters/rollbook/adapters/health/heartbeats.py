"""Heartbeats of observers, on core NATS and never in the log: sent by whoever watches, heard by the controllers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
import structlog

from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.projections.observers import Heartbeat, Observers
from rollbook.projections.ports import Clock, LogUnavailable

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
            await say(msgspec.structs.replace(beat, leaving=True))
        client.denials.discard(denied)


@contextlib.asynccontextmanager
async def hearing(client: Client, fleet: str, observers: Observers, clock: Clock) -> AsyncGenerator[None]:
    """Note the heartbeats of all observers within the block."""
    decoder = msgspec.json.Decoder(Heartbeat)

    def take(subject: bytes, _: bytes, payload: bytes, __: bytes | None) -> None:
        try:
            beat = decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if subject == heartbeat_subject(fleet, beat.observer).encode():
            observers.heard(beat, clock.monotonic())

    def again() -> None:
        observers.listening(clock.monotonic())

    client.disconnections.add(observers.deaf)
    client.reconnections.add(again)
    sink = await client.sink(take, heartbeat_subject(fleet, "*"))
    try:
        yield
    finally:
        client.disconnections.discard(observers.deaf)
        client.reconnections.discard(again)
        with contextlib.suppress(LogUnavailable):
            await sink.close()
