"""The race that in-process listeners lose, replayed through the XTuner listener over real parts: nothing is lost.

A health thread marks a group inactive, the proxy's removal is slow, recovery brings the group back, and the late
removal lands; or the proxy restarts empty before "recovered". What this project replaces is replayed beside.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.recorder import recording
from support.routers import SglangRouter, running
from support.scene import FLEET, NAMES, scene
from support.until import until
from support.workers import http_workers
from support.xtuner import group

from rollbook.adapters.listeners.validating import NotValidated
from rollbook.adapters.listeners.xtuner import XtunerListener
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.sglang import SglangProxy
from rollbook.events import WorkerUp
from rollbook.projections.ports import Target

pytestmark = [pytest.mark.router, pytest.mark.integration]

GROUPS = [group(rank) for rank in range(len(NAMES))]
ONE = NAMES[0]


@pytest.fixture
def routed(tmp_path_factory):
    """A router, and a forwarder before its admin API that can be slow to remove."""
    with running(SglangRouter(tmp_path_factory.mktemp("router"))) as router, recording(router.url) as slow:
        yield router, slow


@asynccontextmanager
async def listening(tmp_path, router, slow):
    """Four groups that XTuner has launched, registered."""
    async with scene(tmp_path, router, "sglang", admin_url=slow.url, data_url=router.url) as on:
        for name, worker in on.workers.items():
            worker.name = name  # so that they say who they are when they answer
        listener = XtunerListener(FLEET, on._built.nats)
        try:
            listener.on_worker_groups_started(GROUPS)
            on.lives.update(dict.fromkeys(NAMES, 1))
            await on.right()
            yield on, listener
        finally:
            await asyncio.to_thread(listener.close)


async def value(look):
    return look()


async def test_a_removal_that_lands_after_the_recovery_takes_nobody_away(tmp_path, routed):
    """I1, I2, I3."""
    router, slow = routed
    async with listening(tmp_path, router, slow) as (on, listener):
        slow.holding = 1
        await on.workers[ONE].stop()
        await asyncio.to_thread(listener.on_worker_group_inactive, GROUPS[0])
        await until(lambda: value(lambda: slow.held), lambda held: held == 1)

        await on.workers[ONE].start()  # on the same URL
        await asyncio.to_thread(listener.on_worker_group_recovered, GROUPS[0])
        on.lives[ONE] = 2
        await on.right()  # the removal of life 1 was asked for again, and life 2 was added

        slow.released.set()
        await until(lambda: value(lambda: slow.landed), lambda landed: len(landed) == 1)
        await on.right()
        assert set(+(await on.served())) == set(NAMES)
        await asyncio.to_thread(listener.validate_registered_workers_to_proxy, 60)


async def test_a_removal_that_stays_slow_until_after_the_recovery_delays_and_loses_nothing(tmp_path, routed):
    """I1, I2, I3: several removals of the old life are under way when the new one is said to be up."""
    router, slow = routed
    async with listening(tmp_path, router, slow) as (on, listener):
        slow.holding = 1000
        await on.workers[ONE].stop()
        listener.on_worker_group_inactive(GROUPS[0])
        await until(lambda: value(lambda: slow.held), lambda held: held >= 1)
        await on.workers[ONE].start()
        listener.on_worker_group_recovered(GROUPS[0])
        on.lives[ONE] = 2
        await until(lambda: on.controller_knows(ONE), lambda incarnation: incarnation == 2)
        await until(lambda: value(lambda: slow.held), lambda held: held >= 2)
        with pytest.raises(NotValidated, match="not validated"):
            await asyncio.to_thread(listener.validate_registered_workers_to_proxy, 1.0)

        slow.holding = 0
        slow.released.set()
        await on.right()
        await until(lambda: value(lambda: len(slow.landed) == slow.held), bool)
        await on.right()
        assert set(+(await on.served())) == set(NAMES)


async def test_a_proxy_that_restarts_empty_before_the_recovery_gets_everybody_back(tmp_path, routed):
    """I1."""
    router, slow = routed
    async with listening(tmp_path, router, slow) as (on, listener):
        await on.workers[ONE].stop()
        listener.on_worker_group_inactive(GROUPS[0])
        del on.lives[ONE]
        await on.right()
        router.restart()
        await on.workers[ONE].start()
        listener.on_worker_group_recovered(GROUPS[0])
        on.lives[ONE] = 2
        await on.right()
        assert set(+(await on.served())) == set(NAMES)
        ups = [(up.worker, up.incarnation) for up in await on.facts(WorkerUp)]
        assert sorted(ups) == sorted([*((name, 1) for name in NAMES), (ONE, 2)]), "nobody had to say it again"


class InProcess:
    """How a listener in the trainer does it: a deadline, a set of what is registered, and failures only logged."""

    def __init__(self, proxy, urls) -> None:
        self.proxy = proxy
        self.urls = urls
        self.registered: set[str] = set()

    async def recovered(self, rank: int) -> None:
        url = self.urls[rank]
        if url not in self.registered:
            await self.proxy.add(Target(worker=NAMES[rank], incarnation=1, url=url))
            self.registered.add(url)

    async def inactive(self, rank: int) -> None:
        (entry,) = (one for one in (await self.proxy.list()).entries if one.url == self.urls[rank])
        try:
            async with asyncio.timeout(1):
                await self.proxy.remove(entry)
        except TimeoutError:
            return
        self.registered.discard(entry.url)

    async def listed(self, urls) -> None:
        async def look():
            return sorted(entry.url for entry in (await self.proxy.list()).entries)

        await until(look, lambda now: now == sorted(urls))


@asynccontextmanager
async def in_process(slow):
    async with http_workers(2) as workers:
        proxy = SglangProxy(ProxyConfig(name="router", admin_url=slow.url, fleet=FLEET))
        listener = InProcess(proxy, [worker.url for worker in workers])
        try:
            for rank in range(2):
                await listener.recovered(rank)
            await listener.listed(listener.urls)
            yield listener
        finally:
            await proxy.close()


async def test_an_in_process_listener_loses_the_worker_to_the_late_removal(routed):
    """What is replaced: the failed removal is only logged, the recovery finds the URL in the set, the removal lands."""
    _, slow = routed
    async with in_process(slow) as listener:
        slow.holding = 1
        await listener.inactive(0)
        await listener.recovered(0)
        slow.released.set()
        await listener.listed([listener.urls[1]])
        assert listener.registered == set(listener.urls), "and it believes that both are registered"


async def test_an_in_process_listener_loses_whom_the_proxy_forgot(routed):
    """What is replaced: after the restart only the recovered worker is registered again."""
    router, slow = routed
    async with in_process(slow) as listener:
        await listener.inactive(0)
        router.restart()
        await listener.recovered(0)
        await listener.listed([listener.urls[0]])
        assert listener.registered == set(listener.urls), "and it believes that both are registered"
