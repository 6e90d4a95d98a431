"""Routers of miles and slime, as far as a small server that keeps their rules can stand in for them."""

from __future__ import annotations

import aiohttp
import pytest
from support.small_routers import MilesRouter, SlimeRouter, small_router
from support.workers import http_worker

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.miles import MilesProxy
from rollbook.projections.ports import Done, Entry, Failed, ProxyUnavailable, Target, Unsupported

URL = "http://10.0.0.1:8000"


@pytest.fixture(params=[MilesRouter, SlimeRouter])
async def router(request):
    async with small_router(request.param) as router:
        yield router


@pytest.fixture
async def proxy(router):
    proxy = MilesProxy(ProxyConfig(name="router-a", fleet="math-rl", admin_url=router.url))
    yield proxy
    await proxy.close()


def target(url: str = URL, **more) -> Target:
    return Target(worker="rollout-3-0", incarnation=8, url=url, **more)


async def test_an_add_is_blind_and_may_be_repeated(proxy, router):
    assert await proxy.add(target()) == Done()
    assert await proxy.add(target("http://10.0.0.2:8000/p%26q")) == Done()
    assert await proxy.add(target()) == Done()
    assert router.urls == [URL, "http://10.0.0.2:8000/p%26q"]
    assert (await proxy.list()).entries[0] == Entry(url=URL, handle=URL)


async def test_a_removal_or_drain_is_unsupported_and_nothing_is_sent(proxy, router):
    """A call of `/remove_worker` would be passed on to a worker."""
    async with http_worker() as worker:
        await proxy.add(target(worker.url))
        (entry,) = (await proxy.list()).entries
        before = list(router.requests)
        assert isinstance(await proxy.remove(entry), Unsupported)
        assert isinstance(await proxy.drain(entry), Unsupported)
        assert router.requests == before
    assert (await proxy.list()).entries == (entry,)
    assert not proxy.capabilities.remove
    assert not proxy.capabilities.drain


async def test_a_restart_forgets_everything(proxy, router):
    await proxy.add(target())
    await router.restart()
    assert (await proxy.list()).entries == ()


async def test_who_failed_its_checks_gets_nothing_any_more_also_when_it_is_added_again(proxy, router):
    """Nothing of it shows in the listing; so the page says what a fleet has to do."""
    async with http_worker() as worker, aiohttp.ClientSession() as client:

        async def status() -> int:
            async with client.post(f"{router.url}/generate") as answer:
                return answer.status

        await proxy.add(target(worker.url))
        assert await status() == 200
        worker.healthy = False
        await router.check_health()
        worker.healthy = True
        await router.check_health()
        assert await proxy.add(target(worker.url)) == Done()
        assert (await proxy.list()).entries == (Entry(url=worker.url, handle=worker.url),)
        assert await status() == 500


async def test_one_half_of_a_pair_is_not_added_as_a_whole_worker(proxy, router):
    assert isinstance(await proxy.add(target(role="prefill", bootstrap_port=9000)), Unsupported)
    assert router.requests == []


async def test_another_kind_of_server_is_told_apart():
    """A router of another kind passes the listing on, or has no such page; neither is an empty listing."""
    async with http_worker() as worker:
        proxy = MilesProxy(ProxyConfig(name="router-a", fleet="math-rl", admin_url=worker.url))
        for call in (proxy.list(), proxy.add(target())):
            with pytest.raises(ProxyUnavailable, match="not the API of a miles or slime router"):
                await call
        await proxy.close()


async def test_a_200_without_success_is_a_failure(proxy, router, monkeypatch):
    from aiohttp import web

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"status": "full"})

    await router.stop()
    monkeypatch.setattr(router, "_add", refuse)
    await router.start()
    assert await proxy.add(target()) == Failed("the router answered 'full'")
