"""Four routers, one of them stopped: how long the other three take from a fact to its confirmed change [I10].

Workers go up and down in closed loops; blocks of changes with the fourth router running and with it stopped (SIGSTOP:
its connections stay open, and nothing is answered) take turns, on one controller, in one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from bench.figures import Figure, ms, p50
from bench.stage import DEADLINE, FLEET, controller, serve_workers
from rollbook.adapters.bootstrap import Built
from rollbook.adapters.demo.router import Router
from rollbook.adapters.publisher import Publisher
from rollbook.events import Deregistered, Recorded, Registered

NAMES = [f"rollout-{number}-0" for number in range(4)]
WATCHED = ("router-0", "router-1", "router-2")
STOPPED = "router-3"
BLOCKS = 8
"""Of each sort."""
TURNS = 10
"""Ups and downs of each worker in a block."""


async def measure() -> list[Figure]:
    """p50 and p99 of three routers with the fourth one stopped, against the same with it running."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-bench-")))
        routers: dict[str, Router] = {}
        for name in (*WATCHED, STOPPED):
            (folder / name).mkdir()
            routers[name] = Router(folder / name)
            stack.push_async_callback(routers[name].kill)
            await routers[name].start()
        workers = dict(zip(NAMES, await stack.enter_async_context(serve_workers(len(NAMES))), strict=True))
        urls = {name: router.url for name, router in routers.items()}
        built = await stack.enter_async_context(controller(folder, urls, workers))
        scene = _Scene(built, Publisher(FLEET, built.nats))
        stack.push_async_callback(scene.publisher.aclose, 5)
        running: list[float] = []
        stopped: list[float] = []
        await scene.block()  # the first connections, and Python's first pass over the code
        for _ in range(BLOCKS):
            running += await scene.block()
            async with _standing_still(routers[STOPPED], built):
                stopped += await scene.block()
    changes = f"{len(running)} and {len(stopped)} changes in turns"
    return [
        Figure(
            name=f"one of four routers stopped, {word} of the others",
            value=of(stopped) / of(running),
            target=target,
            better="lower",
            unit="x running",
            note=f"{ms(of(stopped))} against {ms(of(running))}, {changes}",
        )
        for word, of, target in (("p50", p50, 1.2), ("p99", _p99, 2.0))
    ]


class _Scene:
    """Publishes facts and waits until they have come true at the watched routers."""

    def __init__(self, built: Built, publisher: Publisher) -> None:
        self.publisher = publisher
        self._life = 0
        self._awaited: dict[tuple[type, str, str, int], asyncio.Future[float]] = {}
        projector = built.controller.projector
        assert projector is not None
        projector.witness(self._note)

    def _note(self, _: object, recorded: Recorded | None, __: object) -> None:
        fact = None if recorded is None else recorded.fact
        if isinstance(fact, Registered | Deregistered):
            waiting = self._awaited.pop((type(fact), fact.proxy, fact.worker, fact.incarnation), None)
            if waiting is not None:
                waiting.set_result(time.perf_counter())

    async def block(self) -> list[float]:
        """Seconds of every change at every watched router."""
        self._life += TURNS
        chains = [self._chain(name, self._life) for name in NAMES]
        return [seconds for chain in await asyncio.gather(*chains) for seconds in chain]

    async def _chain(self, name: str, first_life: int) -> list[float]:
        samples: list[float] = []
        for life in range(first_life, first_life + TURNS):
            for outcome, say in ((Registered, self.publisher.worker_up), (Deregistered, self.publisher.worker_down)):
                keys = [(outcome, router, name, life) for router in WATCHED]
                futures = [self._awaited.setdefault(key, asyncio.get_running_loop().create_future()) for key in keys]
                begin = time.perf_counter()
                say(name, incarnation=life)
                async with asyncio.timeout(DEADLINE):
                    samples += [at - begin for at in await asyncio.gather(*futures)]
        return samples


@contextlib.asynccontextmanager
async def _standing_still(router: Router, built: Built) -> AsyncGenerator[None]:
    """Stop it until the end of the block; then wait until it has caught up."""
    assert router.pid is not None
    os.killpg(router.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(router.pid, signal.SIGCONT)
    async with asyncio.timeout(DEADLINE):
        while not _caught_up(built):  # noqa: ASYNC110 - a lane has no event for it
            await asyncio.sleep(0.05)


def _caught_up(built: Built) -> bool:
    projector = built.controller.projector
    assert projector is not None
    record = projector.state.ledger.look(STOPPED)
    return record.reachable is True and not record.registrations and built.controller.lanes[STOPPED].idle


def _p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]
