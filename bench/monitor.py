"""Watching 1,000 workers once a second on one core, against a plain asyncio and aiohttp loop that does the same.

The workers are 1,000 ports of one process, which answers with as little work as there can be. Both sides run in turns,
in one process pinned to one core, on the same kind of session; the CPU time is that of the whole process. Ours also
follows the log, resolves every address at the moment of the probe, and would tell who is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import aiohttp

from bench.figures import Figure, ms, p50
from rollbook.adapters.health import HealthMonitor, HealthPolicy
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.static import StaticProvider
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import HostAndPort

FLEET = "bench"
WORKERS = 1000
INTERVAL = 1.0
WARM_UP = 4.0
"""Seconds before each measurement: every connection is made by then."""
SECONDS = 10.0
ROUNDS = 3
DEADLINE = 60.0
FILES = 8192

_SERVER = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok"

class Worker(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(ANSWER)

async def main():
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Worker, "127.0.0.1", 0) for _ in range(int(sys.argv[1]))]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


async def measure() -> list[Figure]:
    """CPU time as a ratio, and lateness: from when a probe was to begin until it did."""
    cores = os.sched_getaffinity(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    try:
        async with _workers() as ports, _fleet(ports) as monitor:
            os.sched_setaffinity(0, {min(cores)})
            plain, ours = await _compare(ports, monitor)
    finally:
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    shares = [p50([cpu for cpu, _ in side]) / SECONDS for side in (plain, ours)]
    lates = [_p99([late for _, lates in side for late in lates]) for side in (plain, ours)]
    what = f"{WORKERS} workers every {INTERVAL:g} s on one core"
    return [
        Figure(
            name="monitor: CPU time",
            value=shares[1] / shares[0],
            target=1.5,
            better="lower",
            unit="x plain loop",
            note=f"{what}; {shares[1]:.0%} of the core against {shares[0]:.0%}, median of {ROUNDS} rounds in turns",
        ),
        Figure(
            name="monitor: lateness p99",
            value=max(lates[1] - lates[0], 0) / INTERVAL,
            target=0.05,
            better="lower",
            unit="intervals more than the plain loop",
            note=f"{what}; {ms(lates[1])} against {ms(lates[0])}",
        ),
    ]


Side = Callable[[], contextlib.AbstractAsyncContextManager[Callable[[], list[float]]]]


async def _compare(
    ports: list[int], monitor: Callable[[], HealthMonitor]
) -> tuple[list[tuple[float, list[float]]], list[tuple[float, list[float]]]]:
    """CPU seconds and lateness of every round, of the plain loop and of ours."""
    sides: list[Side] = [lambda: _plain(ports), lambda: _ours(monitor())]
    found: list[list[tuple[float, list[float]]]] = [[], []]
    for number in range(ROUNDS):
        for turn in range(2):
            which = (number + turn) % 2
            async with sides[which]() as lateness:
                await asyncio.sleep(WARM_UP)
                lateness()
                began = time.process_time()
                await asyncio.sleep(SECONDS)
                cpu = time.process_time() - began
                lates = lateness()
            done = SECONDS / INTERVAL * WORKERS
            assert 0.9 * done < len(lates) < 1.1 * done, f"{len(lates)} probes where {done:g} were due"
            found[which].append((cpu, lates))
    return found[0], found[1]


@contextlib.asynccontextmanager
async def _ours(monitor: HealthMonitor) -> AsyncGenerator[Callable[[], list[float]]]:
    def lateness() -> list[float]:
        taken = list(monitor.stats.lateness)
        monitor.stats.lateness.clear()
        return taken

    task = asyncio.create_task(monitor.run())
    try:
        async with asyncio.timeout(DEADLINE):
            while monitor.watching < WORKERS:  # noqa: ASYNC110 - it reads the log
                await asyncio.sleep(0.05)
        yield lateness
        assert monitor.stats.failed == 0, monitor.stats
    finally:
        await end(task)


@contextlib.asynccontextmanager
async def _plain(ports: list[int]) -> AsyncGenerator[Callable[[], list[float]]]:
    """What one writes by hand: a task for each worker."""
    samples: list[float] = []
    failed: list[int] = []

    def lateness() -> list[float]:
        taken = list(samples)
        samples.clear()
        return taken

    async def watch(session: aiohttp.ClientSession, url: str) -> None:
        failures = 0
        due = time.monotonic() + random.random() * INTERVAL  # noqa: S311 - spread
        while True:
            await asyncio.sleep(due - time.monotonic())
            samples.append(time.monotonic() - due)
            try:
                async with asyncio.timeout(5.0), session.get(url, allow_redirects=False) as response:
                    failures = 0 if response.status == 200 else failures + 1
            except (TimeoutError, aiohttp.ClientError):
                failures += 1
            if failures == 3:
                failed.append(1)
            due += INTERVAL * (0.9 + 0.2 * random.random())  # noqa: S311 - jitter

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=jar) as session:
        tasks = [asyncio.create_task(watch(session, f"http://127.0.0.1:{port}/health")) for port in ports]
        try:
            yield lateness
            assert not failed
        finally:
            await end(*tasks)


@contextlib.asynccontextmanager
async def _workers() -> AsyncGenerator[list[int]]:
    """The ports of that many workers."""
    command = [sys.executable, "-c", _SERVER, str(WORKERS), str(FILES)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE):
            line = await process.stdout.readline()
        yield [int(port) for port in line.split()]
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _fleet(ports: list[int]) -> AsyncGenerator[Callable[[], HealthMonitor]]:
    """A log that knows the workers, and monitors over it."""
    names = {f"rollout-{number}-0": port for number, port in enumerate(ports)}
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        server = EmbeddedServer(Path(folder) / ".rollbook")
        url = await server.start()
        try:
            client = await connect(Connection(url=url), name="bench")
            await provision(client, FLEET)
            await client.close()
            async with Publisher(FLEET, url) as publisher:
                for name in names:
                    publisher.worker_up(name, incarnation=1)
                assert await publisher.aflush(DEADLINE)
            provider = StaticProvider(
                {name: {"primary": HostAndPort("127.0.0.1", port)} for name, port in names.items()}
            )
            policy = HealthPolicy(interval=INTERVAL, parallel=WORKERS)
            yield lambda: HealthMonitor(FLEET, url, provider, {"rollout": PoolPolicy(health=policy)})
        finally:
            await server.stop()


def _p99(samples: list[float]) -> float:
    return sorted(samples)[int(len(samples) * 0.99)]
