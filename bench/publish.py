"""What `worker_down()` costs its caller, against a bare `loop.call_soon_threadsafe` from the same thread."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
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
    """With NATS up, then with NATS gone."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        server = EmbeddedServer(Path(folder) / ".rollbook")
        url = await server.start()
        client = await connect(Connection(url=url), name="bench")
        await provision(client, "bench")
        await client.close()
        publisher = Publisher("bench", Connection(url=url), limit=10 * ROUNDS * CALLS)
        try:
            publisher.worker_down("warm-0-0", incarnation=1)
            await asyncio.to_thread(publisher.flush, 10)
            up = await asyncio.to_thread(_compare, publisher)
            await asyncio.to_thread(publisher.flush, 60)
            await server.stop()
            down = await asyncio.to_thread(_compare, publisher)
        finally:
            await asyncio.to_thread(publisher.close, 0)
            await server.stop()
    return [
        _figure("worker_down() call", up, "NATS running"),
        _figure("worker_down() call, NATS down", down, "NATS stopped"),
        Figure(
            name="worker_down() call, NATS down against up",
            value=(p50(down[1]) / p50(down[0])) / (p50(up[1]) / p50(up[0])),
            target=1.25,
            better="lower",
            unit="x",
            note="each as a ratio to call_soon_threadsafe in its own rounds",
        ),
    ]


def _figure(name: str, samples: tuple[list[float], list[float]], note: str) -> Figure:
    bare, ours = samples
    return Figure(
        name=name,
        value=p50(ours) / p50(bare),
        target=2.0,
        better="lower",
        unit="x call_soon_threadsafe",
        note=f"{note}; p50 {us(p50(ours))} against {us(p50(bare))}, {len(ours)} calls each in turns",
    )


def _compare(publisher: Publisher) -> tuple[list[float], list[float]]:
    """Single calls from this thread, in blocks that take turns."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    bare: list[float] = []
    ours: list[float] = []
    workers = [f"rollout-{number}-0" for number in range(CALLS)]
    try:
        for life in range(1, ROUNDS + 1):
            bare += [_time(lambda: loop.call_soon_threadsafe(_nothing)) for _ in workers]
            ours += [_time(lambda name=name: publisher.worker_down(name, incarnation=life)) for name in workers]  # noqa: B023
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return bare, ours


def _time(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    took = time.perf_counter() - begin
    time.sleep(PAUSE)
    return took


def _nothing() -> None:
    """What the bare call schedules."""
