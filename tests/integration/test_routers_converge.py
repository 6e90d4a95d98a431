"""A whole controller over real routers: workers come, die and return, routers restart, and each ends up right [I1]."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from support.benches import ROUTERS
from support.routers import need_haproxy, running
from support.until import until
from support.workers import HttpWorker, http_workers

from rollbook.adapters.bootstrap import build
from rollbook.adapters.proxies.haproxy_socket import RuntimeSocket
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.settings import ProxySettings, Settings, StaticProvider
from rollbook.projections.ledger import Told
from rollbook.projections.policy import PoolPolicy, ReconcilePolicy

pytestmark = [pytest.mark.router, pytest.mark.integration]

FLEET = "converge"
NAMES = [f"rollout-{number}-0" for number in range(4)]
REQUESTS = 60


@pytest.fixture(params=list(ROUTERS))
def router(request, tmp_path_factory):
    if request.param == "haproxy":
        need_haproxy()
    with running(ROUTERS[request.param][0](tmp_path_factory.mktemp(request.param))) as router:
        yield router, request.param


class Scene:
    """A controller, its router and four workers."""

    def __init__(self, built, publisher, router, workers: dict[str, HttpWorker]) -> None:
        self.publisher = publisher
        self.router = router
        self.workers = workers
        self.lives: dict[str, int] = {}
        """Which should be listed."""
        self._built = built

    async def up(self, name: str, incarnation: int) -> None:
        self.lives[name] = incarnation
        await self.publisher.worker_up(name, incarnation=incarnation)

    async def down(self, name: str) -> None:
        await self.publisher.worker_down(name, incarnation=self.lives.pop(name), evidence="exited", reason="test")

    async def right(self) -> None:
        """Wait until the router lists what it should, and the log says the same."""
        wanted = {self.workers[name].url: (name, life) for name, life in self.lives.items()}
        proxy = self._built.proxies["router"]

        async def look():
            listed = (await proxy.list()).entries
            record = self._built.controller.projector.state.ledger.look("router")
            said = {
                life.url: (name, incarnation)
                for name, lives in record.registrations.items()
                for incarnation, life in lives.items()
                if life.told is Told.REGISTERED
            }
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
async def scene(tmp_path, router, kind):
    async with AsyncExitStack() as stack:
        workers = dict(zip(NAMES, await stack.enter_async_context(http_workers(len(NAMES))), strict=True))
        settings = Settings(
            fleet=FLEET,
            provider=StaticProvider(
                workers={name: {"primary": worker.url.removeprefix("http://")} for name, worker in workers.items()}
            ),
            pools={"rollout": PoolPolicy()},
            proxies=(
                ProxySettings(
                    name="router",
                    kind=kind,
                    admin_url=router.admin_url if kind == "haproxy" else router.url,
                    pools=("rollout",),
                    options={"backend": "workers"} if kind == "haproxy" else {},
                    drain_deadline=2.0,
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


async def test_every_router_ends_up_right_whatever_happens(tmp_path, router):
    """I1, I2, I3, I4."""
    async with scene(tmp_path, *router) as on:
        one, two, three, four = NAMES
        for name in NAMES:
            await on.up(name, 1)
        await on.right()

        await on.workers[one].stop()
        await on.down(one)
        await on.right()

        await on.workers[one].start()  # on the same URL
        await on.up(one, 2)
        await on.up(two, 2)  # a new life of which the end of the old one was not reported
        await on.right()
        assert set(+(await on.served())) == set(NAMES)

        on.router.restart()
        await on.right()

        await on.down(three)
        on.router.restart()
        await on.up(four, 2)
        await on.right()
        assert set(+(await on.served())) == {one, two, four}


@pytest.mark.parametrize("router", ["haproxy"], indirect=True)
async def test_what_somebody_does_to_a_server_by_hand_is_set_right(tmp_path, router):
    """I1, I11: out of rotation is no registration; and a server of somebody else's stays."""
    async with scene(tmp_path, *router) as on:
        await on.up(NAMES[0], 1)
        await on.right()
        socket = RuntimeSocket("by-hand", on.router.admin_url)
        name = f"{NAMES[0]}.1.{FLEET}"
        for command in ("drain", "maint"):
            assert await socket.ask(f"set server workers/{name} state {command}") == ""
            await on.right()
        address = on.workers[NAMES[1]].url.removeprefix("http://")
        half = f"add server workers/{NAMES[1]}.1.{FLEET} {address} check"
        assert await socket.ask(half) == "New server registered."
        await on.right()  # nobody said that this worker is up: a ghost of an add
        await on.up(NAMES[1], 1)
        await on.right()
        assert await socket.ask(f"add server workers/mine {address} check") == "New server registered."
        await on.down(NAMES[1])
        del on.lives[NAMES[0]]
        await on.publisher.worker_down(NAMES[0], incarnation=1, evidence="exited", reason="test")

        async def left():
            return [line for line in (await socket.ask("show servers state workers")).splitlines()[2:] if line]

        (mine,) = await until(left, lambda lines: len(lines) == 1)
        assert " mine " in mine
