"""Reading and folding a long log: how fast, how much memory, and what looking back costs beside it.

The bare thing is a `fetch(1000)` loop of nats-py over the same stream that does nothing with the messages. Looking back
is measured as the commands do it: `status --at` and `explain`, from opening the connection to the answer, where the
snapshots are as a controller leaves them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from nats.js.api import AckPolicy, ConsumerConfig

from bench.figures import Figure, p50
from bench.store import PROXY, Server, fill, unsynced
from rollbook.adapters import logs
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.history import open_history
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.events import Codec, stream_name
from rollbook.projections.history.moments import fold
from rollbook.projections.history.past import LogPast
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, SnapshotPolicy
from rollbook.projections.state.fold import State, message_id

FACTS = 1_000_000
WORKERS = 10_000
FLEET = "bench"
SHORT, LONG, FEW = 200_000, 1_000_000, 1_000
"""Facts, and workers, of the logs whose reading is compared in memory."""
LOOKS = 9
TARGET = 2.5
LOOK_TARGET = 1 / 20


async def measure() -> list[Figure]:
    """Build the store once, then read it in turns."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        async with unsynced(Path(folder)) as server:
            await fill(server.client, FLEET, FACTS, WORKERS)
            ours = [await _fold(server.client)]
            plain = await _fetch_loop(server.client)
            ours.append(await _fold(server.client))
            await _keep(server.client)
            status, explain = await _look_back(server)
            await fill(server.client, "long", LONG, FEW)
            memory = [await _peak_of(server, length) for length in (SHORT, LONG)]
    took = p50(ours)
    note = f"{FACTS:,} facts over {WORKERS:,} workers"
    return [
        Figure(
            name="replay speed",
            value=plain / took,
            target=TARGET,
            better="higher",
            unit="x fetch(1000)",
            note=f"{note}: fetch(1000) {FACTS / plain:,.0f}/s; read + decode + fold, before it and after it, "
            f"{FACTS / took:,.0f}/s",
        ),
        _look("status --at", status, took, note),
        _look("explain", explain, took, note),
        Figure(
            name="memory of a replay",
            value=memory[1] / memory[0],
            target=1.1,
            better="lower",
            unit=f"x of {SHORT:,} facts",
            note=f"peak of the process, {FEW:,} workers: {memory[1]:.0f} MB for {LONG:,} facts, {memory[0]:.0f} MB for "
            f"{SHORT:,}",
        ),
    ]


def _look(name: str, samples: list[float], replay: float, note: str) -> Figure:
    return Figure(
        name=f"{name} on a long log",
        value=p50(samples) / replay,
        target=LOOK_TARGET,
        better="lower",
        unit="x the replay",
        note=f"{note}: p50 {p50(samples):.2f} s, slowest {max(samples):.2f} s of {len(samples)} at random; the replay "
        f"{replay:.1f} s",
    )


async def _fetch_loop(client: Client) -> float:
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await client.jetstream().pull_subscribe("", stream=stream_name(FLEET), config=config)
    begin, count = time.perf_counter(), 0
    while count < FACTS:
        count += len(await subscription.fetch(1000))
    took = time.perf_counter() - begin
    await subscription.unsubscribe()
    return took


async def _fold(client: Client) -> float:
    projector = Projector(JetStreamLog(client, FLEET), Codec(FLEET), SystemClock())
    begin = time.perf_counter()
    folding = asyncio.create_task(projector.run())
    await projector.passed(FACTS)
    took = time.perf_counter() - begin
    folding.cancel()
    await asyncio.gather(folding, return_exceptions=True)
    return took


async def _keep(client: Client) -> None:
    """Snapshots as many and as far apart as a controller has kept in the end."""
    log, store, keep = JetStreamLog(client, FLEET), JetStreamSnapshots(client, FLEET), SnapshotPolicy().keep
    identity = (await log.state()).identity
    state = State()
    for part in range(1, keep + 1):
        state = await fold(LogPast(log, store), Codec(FLEET), state, FACTS * part // keep)
        stored = await log.get(state.sequence)
        assert stored is not None
        await store.save(state.snapshot(identity, message_id(stored)))


async def _look_back(server: Server) -> tuple[list[float], list[float]]:
    """Seconds for the state at some moments, and for the stories of some workers."""
    rng = random.Random(1)  # noqa: S311 - which ones does not matter
    policy = Policy(
        fleet=FLEET, pools={"rollout": PoolPolicy()}, proxies={PROXY: ProxyPolicy(name=PROXY, pools=("rollout",))}
    )
    status: list[float] = []
    explain: list[float] = []
    for _ in range(LOOKS):
        begin = time.perf_counter()
        async with open_history(server.connection, FLEET) as history:
            await history.at(rng.randint(1, FACTS))
        status.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        async with open_history(server.connection, FLEET) as history:
            await history.explain(f"rollout-{rng.randrange(WORKERS)}-0", policy=policy)
        explain.append(time.perf_counter() - begin)
    return status, explain


async def _peak_of(server: Server, length: int) -> float:
    """MB that a process of its own needs at most to fold so much of a log."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.replay",
        str(length),
        env={**server.connection.environ(), "PYTHONPATH": ":".join(part for part in sys.path if part)},
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    return float(told)


async def _replay(length: int) -> None:
    client = await connect(Connection.from_env(os.environ), name="bench")
    past = LogPast(JetStreamLog(client, "long"), JetStreamSnapshots(client, "long"))
    await fold(past, Codec("long"), State(), length)
    await client.close()


if __name__ == "__main__":
    logs.configure(environ={}, level="error")
    asyncio.run(_replay(int(sys.argv[1])))
    # `getrusage` would tell the peak of the process that started this one, if that was larger.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
