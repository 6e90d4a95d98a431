"""How long a snapshot of 10,000 workers keeps the loop from everything else, against encoding it in one go."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, ms, p50
from bench.store import fill, unsynced
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.static import StaticProvider
from rollbook.events import Codec
from rollbook.projections.log.keeper import Keeper
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import SnapshotPolicy
from rollbook.projections.resources import Resources

FLEET = "bench"
WORKERS = 10_000
FACTS = 280_000
"""Four lives of each."""
ROUNDS = 5
TARGET = 0.5


async def measure() -> list[Figure]:
    """The longest pause of the loop while one is taken and saved, and the time of one encoding, in turns."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        async with unsynced(Path(folder)) as server:
            await fill(server.client, FLEET, FACTS, WORKERS)
            clock = SystemClock()
            log = JetStreamLog(server.client, FLEET)
            resources = Resources(
                log=log,
                snapshots=JetStreamSnapshots(server.client, FLEET),
                leadership=JetStreamLeadership(server.client, FLEET),
                provider=StaticProvider({}),
                readiness=MemoryReadiness(clock),
                clock=clock,
                ids=UuidV7(),
                rng=random.Random(1),  # noqa: S311 - for jitter
                owner="bench",
            )
            projector = Projector(log, Codec(FLEET), clock)
            folding = asyncio.create_task(projector.run())
            await projector.passed(FACTS)
            whole: list[float] = []
            pauses: list[float] = []
            took: list[float] = []
            size = 0
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                size = len(projector.state.encode())
                whole.append(time.perf_counter() - begin)
                pause, seconds = await _longest_pause(Keeper(projector, resources, SnapshotPolicy(), 0))
                pauses.append(pause)
                took.append(seconds)
            folding.cancel()
            await asyncio.gather(folding, return_exceptions=True)
    return [
        Figure(
            name="pause for a snapshot",
            value=p50(pauses) / p50(whole),
            target=TARGET,
            better="lower",
            unit="x encoding at once",
            note=f"{WORKERS:,} workers, {size / 1e6:.1f} MB: the loop's longest pause while one is taken and saved "
            f"({p50(took):.2f} s) {ms(p50(pauses))}, {ms(p50(whole))} to encode it in one go; medians of {ROUNDS}",
        )
    ]


async def _longest_pause(keeper: Keeper) -> tuple[float, float]:
    """Seconds for which nothing else ran, and until it was saved."""
    longest = 0.0
    begin = time.perf_counter()
    taking = asyncio.create_task(keeper.take())
    last = begin
    while not taking.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    if not taking.result():
        msg = "the snapshot was not kept"
        raise RuntimeError(msg)
    return longest, time.perf_counter() - begin
