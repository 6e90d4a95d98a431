"""A whole controller over one router and four workers, for tests that ask whether both end up right."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from support.until import until
from support.workers import HttpWorker, http_workers

from rollbook.adapters.bootstrap import build
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.settings import ProxySettings, Settings, StaticProvider
from rollbook.events import Codec
from rollbook.projections.policy import PoolPolicy, ReconcilePolicy
from rollbook.projections.state.ledger import Told

FLEET = "converge"
NAMES = [f"rollout-{number}-0" for number in range(4)]
REQUESTS = 60


class Scene:
    """A controller, its router and four workers."""

    def __init__(self, built, publisher, router, workers: dict[str, HttpWorker]) -> None:
        self.publisher = publisher
        self.router = router
        self.workers = workers
        self.lives: dict[str, int] = {}
        """Which should be listed."""
        self.controller = built.controller
        self.log = built.log
        self._built = built

    async def up(self, name: str, incarnation: int) -> None:
        self.lives[name] = incarnation
        await self.publisher.worker_up(name, incarnation=incarnation)

    async def down(self, name: str) -> None:
        await self.publisher.worker_down(name, incarnation=self.lives.pop(name), evidence="exited", reason="test")

    @property
    def wanted(self) -> dict[str, tuple[str, int]]:
        """Which life should be registered at which URL."""
        return {self.workers[name].url: (name, life) for name, life in self.lives.items()}

    async def controller_knows(self, name: str) -> int:
        """The life of `name` that the controller has folded."""
        return self.controller.projector.state.roster.workers[name].incarnation

    def said(self, told: Told = Told.REGISTERED) -> dict[str, tuple[str, int]]:
        """Of which life the log says that, by its URL."""
        record = self.controller.projector.state.ledger.look("router")
        return {
            life.url: (name, incarnation)
            for name, lives in record.registrations.items()
            for incarnation, life in lives.items()
            if life.told is told
        }

    async def facts(self, *kinds: type) -> list[Any]:
        """All facts of these kinds about the router, in order."""
        codec, found = Codec(FLEET), []
        end = (await self.log.state()).last_sequence
        async with contextlib.aclosing(self.log.read(0)) as batches:
            async for batch in batches:
                for stored in batch:
                    recorded = codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
                    found.append(recorded.fact)
                if batch[-1].sequence >= end:
                    break
        return [fact for fact in found if isinstance(fact, kinds)]

    async def right(self) -> None:
        """Wait until the router lists what it should, and the log says the same."""
        wanted = self.wanted
        proxy = self._built.proxies["router"]

        async def look():
            listed = (await proxy.list()).entries
            said = self.said()
            urls = sorted(entry.url for entry in listed if entry.in_rotation)
            tags = (
                {entry.url: (entry.worker, entry.incarnation) for entry in listed} if proxy.capabilities.tag else said
            )
            return urls, len(listed), tags, said

        await until(look, lambda seen: seen == (sorted(wanted), len(wanted), wanted, wanted))

    async def served(self) -> Counter[str]:
        """Which workers answer so many requests to the router."""
        before = {name: worker.served for name, worker in self.workers.items()}
        async with aiohttp.ClientSession() as session:
            for _ in range(REQUESTS):
                async with session.post(f"{self.router.url}/generate", json={"text": "hello"}) as answer:
                    assert answer.status == 200
                    await answer.read()
        return Counter({name: worker.served - before[name] for name, worker in self.workers.items()})


@asynccontextmanager
async def scene(tmp_path, router, kind, pool=PoolPolicy(), **proxy):  # noqa: B008 - frozen
    """Of one proxy of that kind; `proxy` is what else its settings say, `pool` how its workers are registered."""
    async with AsyncExitStack() as stack:
        workers = dict(zip(NAMES, await stack.enter_async_context(http_workers(len(NAMES))), strict=True))
        settings = Settings(
            fleet=FLEET,
            provider=StaticProvider(
                workers={name: {"primary": worker.url.removeprefix("http://")} for name, worker in workers.items()}
            ),
            pools={"rollout": pool},
            proxies=(
                ProxySettings(
                    **{"admin_url": router.url, "drain_deadline": 2.0, **proxy},
                    name="router",
                    kind=kind,
                    pools=("rollout",),
                ),
            ),
            reconcile=ReconcilePolicy(resync=1.0, call_deadline=2.0),
        )
        built = await stack.enter_async_context(build(settings, tmp_path / ".rollbook", environ=os.environ))
        leading = asyncio.create_task(built.run())
        started = asyncio.create_task(built.controller.started.wait())
        try:
            await asyncio.wait([leading, started], return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
            publisher = Publisher(FLEET, built.nats)
            try:
                yield Scene(built, publisher, router, workers)
            finally:
                await publisher.aclose(5)
        finally:
            started.cancel()
            built.controller.stop()
            await leading
