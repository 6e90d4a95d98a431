"""256 workers come back at once behind a real sglang-router: with Rollbook, against a loop that adds and waits.

The loop adds one worker and polls the router's list until it is there, then the next. Rollbook is measured on the
return: all were registered, went down, and come up as new lives; from before the first fact to the last outcome.

The workers take a while to answer, as engines do that are busy or far away. With workers that answer at once, an add is
nothing but work for the processors that router, workers and controller share here, and nothing is gained by four at a
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

import aiohttp

from bench.figures import Figure
from bench.stage import DEADLINE, FLEET, Admin, controller, serve_workers
from rollbook.adapters.demo.router import Router
from rollbook.adapters.publisher import Publisher
from rollbook.events import Deregistered, Recorded, Registered
from rollbook.projections.log.projector import Projector
from rollbook.projections.ports import Answer, HostAndPort, Listing, Proxy, Target

WORKERS = 256
ANSWER_SECONDS = 0.02
"""For a worker to say how it is, or what."""
MOST_IN_FLIGHT = 4
"""The router carries out ten jobs at a time, removals among them."""


async def measure() -> list[Figure]:
    """Two routers in one run, one after the other."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-bench-")))
        routers = [Router(folder), Router(folder)]
        for router in routers:
            stack.push_async_callback(router.kill)
            await router.start()
        names = [f"rollout-{number}-0" for number in range(WORKERS)]
        workers = dict(
            zip(names, await stack.enter_async_context(serve_workers(len(names), ANSWER_SECONDS)), strict=True)
        )
        loop = await _one_after_the_other(routers[0].url, workers)
        ours, most = await _with_rollbook(folder, routers[1].url, workers)
    note = f"{ours:.2f} s against {loop:.2f} s for {WORKERS} workers that take {ANSWER_SECONDS * 1000:g} ms to answer"
    return [
        Figure(name="a mass return", value=loop / ours, target=2.5, better="higher", unit="x faster", note=note),
        Figure(
            name="adds in flight meanwhile",
            value=most,
            target=MOST_IN_FLIGHT,
            better="lower",
            unit="at most",
            note="between the call and the listing that shows it",
        ),
    ]


async def _one_after_the_other(router: str, workers: dict[str, HostAndPort]) -> float:
    async with aiohttp.ClientSession() as session:
        admin = Admin(router, session)
        begin = time.perf_counter()
        for worker in workers.values():
            await admin.add(f"http://{worker}")
            await admin.until(f"http://{worker}", listed=True)
        return time.perf_counter() - begin


async def _with_rollbook(folder: Path, router: str, workers: dict[str, HostAndPort]) -> tuple[float, int]:
    """Seconds, and the most adds that were in flight at a moment."""
    async with controller(folder, {"router": router}, workers) as built:
        projector = built.controller.projector
        assert projector is not None
        publisher = Publisher(FLEET, built.nats)
        try:
            eye, door = _Eye(projector), _Door(built.proxies["router"])
            for name in workers:
                publisher.worker_up(name, incarnation=1)
            await eye.all(Registered, 1)
            for name in workers:
                publisher.worker_down(name, incarnation=1)
            await eye.all(Deregistered, 1)
            begin = time.perf_counter()
            for name in workers:
                publisher.worker_up(name, incarnation=2)
            return await eye.all(Registered, 2) - begin, door.most_in_flight
        finally:
            await publisher.aclose(5)


class _Door:
    """Stands between the controller and the router: which adds are under way, from the call until they are listed."""

    def __init__(self, proxy: Proxy) -> None:
        self.most_in_flight = 0
        self._in_flight: set[str] = set()
        self._add, self._list = proxy.add, proxy.list
        proxy.add, proxy.list = self.add, self.list  # type: ignore[method-assign]

    async def add(self, target: Target) -> Answer:
        self._in_flight.add(target.url)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        return await self._add(target)

    async def list(self) -> Listing:
        listing = await self._list()
        self._in_flight -= {entry.url for entry in listing.entries}
        return listing


class _Eye:
    """Sees every outcome as it is folded."""

    def __init__(self, projector: Projector) -> None:
        self._seen: dict[tuple[type, int], set[str]] = {}
        self._at = 0.0
        self._changed = asyncio.Event()
        projector.witness(self._note)

    def _note(self, _: object, recorded: Recorded | None, __: object) -> None:
        fact = None if recorded is None else recorded.fact
        if isinstance(fact, Registered | Deregistered):
            self._seen.setdefault((type(fact), fact.incarnation), set()).add(fact.worker)
            self._at = time.perf_counter()
            self._changed.set()

    async def all(self, outcome: type, incarnation: int) -> float:
        """Wait for that outcome of every worker; when the last one came."""
        async with asyncio.timeout(DEADLINE):
            while len(self._seen.get((outcome, incarnation), ())) < WORKERS:
                self._changed.clear()
                await self._changed.wait()
        return self._at
