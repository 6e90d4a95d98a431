"""Replay: reading and folding a log, against a plain `fetch(1000)` loop that does nothing with the messages."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from nats.js.api import AckPolicy, ConsumerConfig

from bench.figures import Figure, p50
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.events import Codec, Fact, WorkerDown, WorkerStarted, WorkerUp, stream_name
from rollbook.projections.projector import Projector

FACTS = 200_000
WORKERS = 1_000
ROUNDS = 3
TARGET = 2.5


async def measure() -> list[Figure]:
    """Build the store once, then read it in turns."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        server = EmbeddedServer(Path(folder) / ".rollbook", sync="default")
        url = await server.start()
        try:
            client = await connect(Connection(url=url), name="bench")
            await provision(client, "bench")
            await _fill(client)
            plain: list[float] = []
            ours: list[float] = []
            for _ in range(ROUNDS):
                plain.append(await _fetch_loop(client))
                ours.append(await _fold(client))
            await client.close()
        finally:
            await server.stop()
    note = (
        f"{FACTS:,} facts over {WORKERS:,} workers: fetch(1000) {FACTS / p50(plain):,.0f}/s, "
        f"read + decode + fold {FACTS / p50(ours):,.0f}/s; medians of {ROUNDS} rounds in turns"
    )
    value = p50([a / b for a, b in zip(plain, ours, strict=True)])
    return [Figure(name="replay speed", value=value, target=TARGET, better="higher", unit="x fetch(1000)", note=note)]


async def _fill(client: Client) -> None:
    codec, ids, log = Codec("bench"), UuidV7(), JetStreamLog(client, "bench")
    facts = (
        fact for life in range(1, FACTS // WORKERS + 2) for worker in range(WORKERS) for fact in _life(worker, life)
    )
    for _ in range(FACTS // 1000):
        drafts = [
            codec.draft(next(facts), id=ids.new(), time="2026-01-01T00:00:00.000Z", publisher="bench")
            for _ in range(1000)
        ]
        await log.append(drafts)


def _life(worker: int, life: int) -> list[Fact]:
    name = f"rollout-{worker}-0"
    return [
        WorkerStarted(worker=name, incarnation=life, node="10.0.0.1", pid=4711),
        WorkerUp(worker=name, incarnation=life, seen=1),
        WorkerDown(worker=name, incarnation=life, seen=1, evidence="exited", reason="exit code 137"),
    ]


async def _fetch_loop(client: Client) -> float:
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await client.jetstream().pull_subscribe("", stream=stream_name("bench"), config=config)
    begin, count = time.perf_counter(), 0
    while count < FACTS:
        count += len(await subscription.fetch(1000))
    took = time.perf_counter() - begin
    await subscription.unsubscribe()
    return took


async def _fold(client: Client) -> float:
    projector = Projector(JetStreamLog(client, "bench"), Codec("bench"), SystemClock())
    begin = time.perf_counter()
    folding = asyncio.create_task(projector.run())
    await projector.passed(FACTS)
    took = time.perf_counter() - begin
    folding.cancel()
    await asyncio.gather(folding, return_exceptions=True)
    return took
