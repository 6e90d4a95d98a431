"""Older sglang-routers, as they really were: nobody has to say which version it is."""

from __future__ import annotations

import pytest
from support.old_routers import OldSglangRouter, need_old_sglang
from support.proxies import entries, target
from support.routers import SglangRouter, running
from support.until import until
from support.workers import http_worker, http_workers, nobody_listens

from rollbook.adapters.cli.find import find_routers
from rollbook.adapters.cli.template import ProxyChoice
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.sglang import SglangProxy
from rollbook.projections.ports import Done, Entry, Failed, Listing, Pending, ProxyUnavailable, Target, Unsupported

pytestmark = pytest.mark.router

FLEET = "math-rl"
VERSIONS = ("0.1.9", "0.2.4")
"""The last with each of the older APIs."""


def sglang(router, fleet: str = FLEET) -> SglangProxy:
    return SglangProxy(ProxyConfig(name="router-a", admin_url=router.url, fleet=fleet))


@pytest.fixture(scope="module", params=VERSIONS)
def router(request, tmp_path_factory, pytestconfig):
    folder = need_old_sglang(pytestconfig.cache, request.param)
    with running(OldSglangRouter(tmp_path_factory.mktemp("router"), folder)) as router:
        yield router


@pytest.fixture
async def proxy(router):
    proxy = sglang(router)
    try:
        for entry in await entries(proxy):
            await remove(proxy, entry)
        yield proxy
    finally:
        await proxy.close()


def whose(entry: Entry):
    return entry.fleet, entry.worker, entry.incarnation


async def ask(proxy, wanted: Target):
    answer = await proxy.add(wanted)
    if not isinstance(answer, Pending):
        return answer
    return await until(lambda: proxy.outcome(answer), lambda now: now != answer)


async def add(proxy, wanted: Target) -> Entry:
    assert await ask(proxy, wanted) == Done()
    listed = await until(lambda: entries(proxy), lambda listed: wanted.url in {entry.url for entry in listed})
    return next(entry for entry in listed if entry.url == wanted.url)


async def remove(proxy, entry: Entry) -> None:
    assert await proxy.remove(entry) == Done()
    await until(lambda: entries(proxy), lambda listed: entry.url not in {other.url for other in listed})


async def test_its_version_and_what_it_can_do_are_known_from_a_listing_alone(proxy, router):
    for _ in range(2):
        assert (await proxy.list()).version == router.api
    new = router.api != "0.1"
    assert (proxy.capabilities.tag, proxy.capabilities.async_add) == (new, new)
    async with http_worker() as worker:
        await add(proxy, target(worker.url))
        assert (await proxy.list()).version == router.api


async def test_init_finds_it(router):
    assert await find_routers([router.port]) == [ProxyChoice(f"sglang-{router.port}", "sglang", router.url)]


async def test_an_added_worker_is_listed_until_it_is_removed(proxy):
    async with http_workers(2) as workers:
        one, two = [await add(proxy, target(worker.url)) for worker in workers]
        assert whose(one) == ((FLEET, "rollout-3-0", 8) if proxy.capabilities.tag else (None, None, None))
        await remove(proxy, one)
        assert [entry.handle for entry in await entries(proxy)] == [two.handle]
        assert await proxy.remove(one) == Done()
        assert [entry.handle for entry in await entries(proxy)] == [two.handle]


async def test_an_add_of_what_does_not_answer_fails_and_is_never_listed(proxy):
    async with nobody_listens() as url:
        answer = await ask(proxy, target(url))
    assert isinstance(answer, Failed)
    assert url in answer.reason
    assert await entries(proxy) == ()


@pytest.mark.parametrize("router", ["0.2.4"], indirect=True)
async def test_the_labels_of_the_next_life_keep_it_from_a_late_removal(proxy):
    """I3: it removes whatever has the URL, so the labels are read before."""
    async with http_worker() as worker:
        old = await add(proxy, target(worker.url, incarnation=8))
        await remove(proxy, old)
        new = await add(proxy, target(worker.url, incarnation=9))
        assert await proxy.remove(old) == Done()
        assert list(map(whose, await entries(proxy))) == [whose(new)] == [(FLEET, "rollout-3-0", 9)]


@pytest.mark.parametrize("router", ["0.1.9"], indirect=True)
async def test_one_half_of_a_pair_is_not_added_as_a_whole_worker(proxy):
    async with http_worker() as worker:
        assert isinstance(await proxy.add(target(worker.url, role="decode")), Unsupported)
        assert await entries(proxy) == ()


async def test_a_router_that_is_replaced_by_a_newer_one_is_known_again(tmp_path, router, proxy):
    """An upgrade under a running controller: nothing answers for a while, and then something else does."""
    async with http_worker() as worker:
        await add(proxy, target(worker.url))
        newer = SglangRouter(tmp_path)
        newer._ports = router._ports
        router.kill()
        try:
            with pytest.raises(ProxyUnavailable, match="connection refused"):
                await proxy.list()
            with running(newer):
                assert await proxy.list() == Listing((), version="0.3")
                assert whose(await add(proxy, target(worker.url))) == (FLEET, "rollout-3-0", 8)
        finally:
            router.start()
        assert await proxy.list() == Listing((), version=router.api)
