"""From the start of a `rollbook up` to the end of its log, for logs of every length, with snapshots and without.

A snapshot stands where it stands at worst: as many facts before the end as are folded between two.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, p50
from bench.store import Server, fill, unsynced
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.events import Codec
from rollbook.projections.history.moments import fold
from rollbook.projections.history.past import LogPast
from rollbook.projections.policy import SnapshotPolicy
from rollbook.projections.state.fold import State, message_id

LENGTHS = (1_000, 100_000, 2_000_000)
WORKERS = 1_000
ROUNDS = 3
TARGET = 1.5
LEASE = 1.0
"""Seconds; the process is killed, and the next one waits until this is over."""
DEADLINE = 300.0
_CONFIGURATION = """\
fleet = "{fleet}"
[provider]
kind = "static"
[pools.rollout]
requires_proxy = false
[reconcile]
call_deadline = 0.5
[leadership]
lease = {lease}
[logs]
format = "json"
"""


async def measure() -> list[Figure]:
    """Build the logs once; start in turns."""
    kept: dict[int, list[float]] = {length: [] for length in LENGTHS}
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        async with unsynced(Path(folder)) as server:
            for length in LENGTHS:
                await fill(server.client, _fleet(length), length, WORKERS)
                await _keep(server, length)
            for _ in range(ROUNDS):
                for length in LENGTHS:
                    kept[length].append(await _start(server, Path(folder), length))
            without: dict[int, float] = {}
            for length in LENGTHS:
                await server.client.jetstream().delete_object_store(f"ROLLBOOK_{_fleet(length)}_snapshots")
                without[length] = await _start(server, Path(folder), length)
    times = ", ".join(f"{length:,} facts {p50(kept[length]):.2f} s" for length in LENGTHS)
    bare = ", ".join(f"{without[length]:.2f} s" for length in LENGTHS)
    shortest, *_, longest = LENGTHS
    return [
        Figure(
            name="start, whatever the log's length",
            value=p50(kept[longest]) / p50(kept[shortest]),
            target=TARGET,
            better="lower",
            unit=f"x of {shortest:,} facts",
            note=f"{WORKERS:,} workers; process start to the log's end: {times}; medians of {ROUNDS} starts in turns; "
            f"without snapshots {bare}",
        )
    ]


def _fleet(length: int) -> str:
    return f"bench-{length}"


async def _keep(server: Server, length: int) -> None:
    """A snapshot as far from the end as it is at worst; none if the log is too short to have had one."""
    sequence = length - SnapshotPolicy().every_facts + 1
    if sequence <= 0:
        sequence = 1
    fleet = _fleet(length)
    log, store = JetStreamLog(server.client, fleet), JetStreamSnapshots(server.client, fleet)
    state = await fold(LogPast(log, store), Codec(fleet), State(), sequence)
    stored = await log.get(sequence)
    if stored is None:
        msg = f"the log of {fleet} does not have sequence {sequence}"
        raise RuntimeError(msg)
    await store.save(state.snapshot((await log.state()).identity, message_id(stored)))


async def _start(server: Server, folder: Path, length: int) -> float:
    """Seconds from the start of the process until it has folded everything and leads."""
    file = folder / f"{length}.toml"
    file.write_text(_CONFIGURATION.format(fleet=_fleet(length), lease=LEASE))
    environment = {
        **os.environ,
        **server.connection.environ(),
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
    }
    command = (sys.executable, "-m", "rollbook.adapters.cli.main", "up", "-c", str(file))
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    line = b""
    try:
        async with asyncio.timeout(DEADLINE):
            async for line in process.stderr:
                if b"controller.started" in line:
                    return time.perf_counter() - begin
        msg = f"`rollbook up` ended with {await process.wait()}: {line.decode()}"
        raise RuntimeError(msg)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        await asyncio.sleep(LEASE + 0.5)
