"""What `worker_down()` costs its caller, against a bare `loop.call_soon_threadsafe` from the same thread."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from bench.figures import Figure, p50, us
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.publisher import Publisher

ROUNDS = 40
CALLS = 100
PAUSE = 0.0005
"""Seconds between two calls: a health thread's calls come one by one, each finding the other thread asleep."""


async def measure() -> list[Figure]:
    """With NATS running and with NATS stopped, in the same rounds."""
    async with _connected("up") as (up, _), _connected("down") as (down, server):
        await server.stop()
        bare, running, stopped = await asyncio.to_thread(_compare, up, down)
    return [
        _figure("worker_down() call", running, bare, "NATS running"),
        _figure("worker_down() call, NATS down", stopped, bare, "NATS stopped"),
        Figure(
            name="worker_down() call, NATS down against up",
            value=p50(stopped) / p50(running),
            target=1.25,
            better="lower",
            unit="x",
            note=f"p50 {us(p50(stopped))} against {us(p50(running))}, {len(stopped)} calls each in turns",
        ),
    ]


def _figure(name: str, ours: list[float], bare: list[float], note: str) -> Figure:
    return Figure(
        name=name,
        value=p50(ours) / p50(bare),
        target=2.0,
        better="lower",
        unit="x call_soon_threadsafe",
        note=f"{note}; p50 {us(p50(ours))} against {us(p50(bare))}, {len(ours)} calls each in turns",
    )


@contextlib.asynccontextmanager
async def _connected(fleet: str) -> AsyncGenerator[tuple[Publisher, EmbeddedServer]]:
    """A publisher that has been at work, and the server that it has for itself."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        server = EmbeddedServer(Path(folder) / ".rollbook")
        url = await server.start()
        try:
            client = await connect(Connection(url=url), name="bench")
            await provision(client, fleet)
            await client.close()
            publisher = Publisher(fleet, Connection(url=url), limit=2 * ROUNDS * CALLS)
            try:
                publisher.worker_down("warm-0-0", incarnation=1)
                warm = await asyncio.to_thread(publisher.flush, 30)
                assert warm.sent == 1, warm
                yield publisher, server
            finally:
                await asyncio.to_thread(publisher.close, 0)
        finally:
            await server.stop()


def _compare(up: Publisher, down: Publisher) -> tuple[list[float], list[float], list[float]]:
    """Single calls from this thread: bare ones, then to each publisher. They go in blocks, and every block comes first
    as often as the others."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    samples: tuple[list[float], list[float], list[float]] = ([], [], [])
    workers = [f"rollout-{number}-0" for number in range(CALLS)]
    try:
        for life in range(1, ROUNDS + 1):
            calls: list[Callable[[str], object]] = [
                lambda _: loop.call_soon_threadsafe(_nothing),
                lambda name, life=life: up.worker_down(name, incarnation=life),
                lambda name, life=life: down.worker_down(name, incarnation=life),
            ]
            for turn in range(len(calls)):
                which = (life + turn) % len(calls)
                samples[which].extend(_time(calls[which], name) for name in workers)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return samples


def _time(call: Callable[[str], object], name: str) -> float:
    begin = time.perf_counter()
    call(name)
    took = time.perf_counter() - begin
    time.sleep(PAUSE)
    return took


def _nothing() -> None:
    """What the bare call schedules."""
