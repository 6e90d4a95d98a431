"""How soon a standby acts: after the leader's clean stop, and after its `kill -9`.

Real processes of `rollbook up` over one NATS and one router. It acts when the router has dropped a worker whose end was
published the moment the leader was gone; time is counted from the signal to the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import aiohttp

from bench.figures import Figure
from bench.stage import DEADLINE, FLEET, Admin
from rollbook.adapters.demo.router import Router
from rollbook.adapters.demo.worker import serve
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.publisher import Publisher

LEASE: Final = 5.0
ROUNDS: Final = 5
W: Final = "rollout-0-0"

CONFIG: Final = """
fleet = "{fleet}"
[provider]
kind = "static"
[provider.workers.{worker}]
primary = "{address}"
[pools.rollout]
[[proxies]]
name = "router"
kind = "sglang"
admin_url = "{router}"
pools = ["rollout"]
[leadership]
lease = {lease}
[logs]
format = "json"
"""


async def measure() -> list[Figure]:
    """The slowest of a few rounds of each kind, in one run."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        stopped, killed = await _rounds(Path(folder))
    told = ", ".join(f"{seconds:.2f}" for seconds in stopped)
    clean = f"slowest of {ROUNDS}: {told} s from SIGTERM until the router has dropped a worker"
    told = ", ".join(f"{seconds:.2f}" for seconds in killed)
    dead = f"slowest of {ROUNDS}: {told} s, the lease is {LEASE:g} s"
    return [
        Figure(name="clean stop → standby", value=max(stopped), target=1.0, better="lower", unit="s", note=clean),
        Figure(
            name="kill -9 → standby", value=max(killed) / LEASE, target=1.0, better="lower", unit="leases", note=dead
        ),
    ]


async def _rounds(folder: Path) -> tuple[list[float], list[float]]:
    async with contextlib.AsyncExitStack() as stack:
        server = EmbeddedServer(folder / ".rollbook")
        connection = Connection(url=await server.start())
        stack.push_async_callback(server.stop)
        router = Router(folder)
        await router.start()
        stack.push_async_callback(router.kill)
        address = await stack.enter_async_context(serve(W, 1))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        admin, url = Admin(router.url, session), f"http://{address}"
        text = CONFIG.format(fleet=FLEET, worker=W, address=address, router=router.url, lease=LEASE)
        (folder / "rollbook.toml").write_text(text)
        environ = os.environ | connection.environ()
        leader = await stack.enter_async_context(_up(folder, environ, "controller.started"))
        publisher = Publisher(FLEET, connection)
        stack.push_async_callback(publisher.aclose, 5)
        figures: dict[signal.Signals, list[float]] = {signal.SIGTERM: [], signal.SIGKILL: []}
        for number in range(2 * ROUNDS):
            how = signal.SIGTERM if number % 2 else signal.SIGKILL
            await publisher.worker_up(W)
            await admin.until(url, listed=True)
            standby = await stack.enter_async_context(_up(folder, environ, "controller.standing_by"))
            told = time.monotonic()
            leader.send_signal(how)
            await leader.wait()
            await publisher.worker_down(W, evidence="exited")
            await admin.until(url, listed=False)
            figures[how].append(time.monotonic() - told)
            leader = standby
        return figures[signal.SIGTERM], figures[signal.SIGKILL]


@contextlib.asynccontextmanager
async def _up(folder: Path, environ: dict[str, str], event: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A `rollbook up` that has said `event`."""
    command = [sys.executable, "-m", "rollbook.adapters.cli.main", "up", "-c", str(folder / "rollbook.toml")]
    process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    reading: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(DEADLINE):
            said = b""
            while f'"{event}"'.encode() not in (line := await process.stderr.readline()):
                said = line or said
                if not line:
                    msg = f"rollbook up ended before it said {event}: {said.decode()}"
                    raise RuntimeError(msg)
        reading = asyncio.create_task(process.stderr.read())
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if reading is not None:
            await reading
