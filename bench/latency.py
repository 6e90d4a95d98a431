"""publish → fold, against a bare JetStream publish → bare subscriber callback.

Both in the same layout: the publishing side on a thread with its own loop and connection, the receiving side on the
main loop with another connection, one fact at a time, in turns, on one server that syncs every write (the embedded
default).
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig

from bench.figures import Figure, p50, us
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.publisher import Publisher
from rollbook.events import Codec
from rollbook.projections.log.projector import Projector

SAMPLES = 1500
PAYLOAD = b"x" * 250
DEADLINE = 10.0


async def measure() -> list[Figure]:
    """One figure against a JetStream subscriber; a core subscriber hears of a message before it is stored."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        server = EmbeddedServer(Path(folder) / ".rollbook")
        connection = Connection(url=await server.start())
        client = await connect(connection, name="bench-reader")
        await provision(client, "bench")
        await client.jetstream().add_stream(StreamConfig(name="BARE", subjects=["bare"]))
        try:
            bare, ours = await _compare(client, connection)
        finally:
            await client.close()
            await server.stop()
    note = f"p50 {us(p50(ours))} against {us(p50(bare))}, {SAMPLES} facts each in turns, sync_interval always"
    return [
        Figure(name="publish → fold", value=p50(ours) / p50(bare), target=1.5, better="lower", unit="x bare", note=note)
    ]


async def _compare(client: Client, connection: Connection) -> tuple[list[float], list[float]]:
    bare_side = _BarePublisher(connection)
    publisher = Publisher("bench", connection)
    projector = Projector(JetStreamLog(client, "bench"), Codec("bench"), SystemClock())
    folding = asyncio.create_task(projector.run())
    arrived = asyncio.Event()
    at = 0.0

    def note() -> None:
        nonlocal at
        at = time.perf_counter()
        arrived.set()

    async def callback(_: object) -> None:
        note()

    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)
    await client.jetstream().subscribe("bare", stream="BARE", cb=callback, config=config, manual_ack=True)
    projector.witness(lambda *_: note())
    bare: list[float] = []
    ours: list[float] = []
    try:
        for number in range(SAMPLES):
            name = f"rollout-{number % 64}-0"
            for samples, publish in (
                (bare, bare_side.publish),
                (ours, lambda: publisher.worker_up(name, incarnation=number + 1)),  # noqa: B023
            ):
                arrived.clear()
                begin = time.perf_counter()
                publish()
                async with asyncio.timeout(DEADLINE):
                    await arrived.wait()
                samples.append(at - begin)
                await asyncio.sleep(0.001)
    finally:
        folding.cancel()
        await asyncio.gather(folding, return_exceptions=True)
        await asyncio.to_thread(publisher.close, 5)
        await asyncio.to_thread(bare_side.close)
    return bare, ours


class _BarePublisher:
    """`await js.publish` on a thread of its own, called from another as a health thread would."""

    def __init__(self, connection: Connection) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = asyncio.run_coroutine_threadsafe(connect(connection, name="bench-bare"), self._loop).result()
        self._js = self._client.jetstream()
        self._tasks: set[asyncio.Task[object]] = set()

    def publish(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        task: asyncio.Task[object] = self._loop.create_task(self._js.publish("bare", PAYLOAD))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
