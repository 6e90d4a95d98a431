"""LMDeploy's proxy, as far as a small server that keeps its rules can stand in for it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from support.proxies import entries, target
from support.small_routers import LmdeployRouter, small_router
from support.workers import http_worker, nobody_listens

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.lmdeploy import LmdeployProxy
from rollbook.projections.ports import Done, Entry, Failed, ProxyUnavailable, Unsupported

ENTRY = Entry(url="http://10.0.0.1:8000", handle="http://10.0.0.1:8000")


@pytest.fixture
async def router():
    async with small_router(LmdeployRouter) as router:
        yield router


@pytest.fixture
async def proxy(router):
    proxy = LmdeployProxy(ProxyConfig(name="router-a", fleet="math-rl", admin_url=router.url))
    yield proxy
    await proxy.close()


async def test_an_added_node_is_listed_until_it_is_removed(proxy):
    async with http_worker() as worker:
        assert await proxy.add(target(worker.url)) == Done()
        (entry,) = await entries(proxy)
        assert entry == Entry(url=worker.url, handle=worker.url, running=0)
        assert await proxy.remove(entry) == Done()
        assert await entries(proxy) == ()
        assert await proxy.remove(entry) == Done()


async def test_a_failed_add_is_a_failure_although_the_status_is_200(proxy):
    async with nobody_listens() as url:
        answer = await proxy.add(target(url))
    assert isinstance(answer, Failed)
    assert answer.reason == (
        f"the proxy could not ask {url}: error 10402, Failed to get response after a period of time"
    )
    assert await entries(proxy) == ()


async def test_a_node_that_the_proxy_dropped_can_be_added_again(proxy, router):
    async with http_worker() as worker:
        await proxy.add(target(worker.url))
        worker.healthy = False
        await router.drop_the_silent()
        assert await entries(proxy) == ()
        worker.healthy = True
        assert await proxy.add(target(worker.url)) == Done()
        assert len(await entries(proxy)) == 1


async def test_a_role_is_told_in_numbers(proxy, router):
    async with http_worker() as worker:
        for role, number in (("regular", 1), ("prefill", 2), ("decode", 3)):
            assert await proxy.add(target(worker.url, role=role)) == Done()
            assert router.nodes[worker.url]["role"] == number


async def test_nothing_ever_kills_a_worker(proxy, router):
    async with http_worker() as worker:
        await proxy.add(target(worker.url))
        (entry,) = await entries(proxy)
        assert isinstance(await proxy.drain(entry), Unsupported)
        await proxy.remove(entry)
    assert router.terminated == []
    assert {path for _, path, _ in router.requests} == {"/nodes/add", "/nodes/remove", "/nodes/status"}


@asynccontextmanager
async def saying(status: int, body: object):
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy = LmdeployProxy(
        ProxyConfig(name="router-a", fleet="math-rl", admin_url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    )
    try:
        yield proxy
    finally:
        await proxy.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "added", "removed"),
    [
        (200, "Added successfully", Done(), Done()),
        (200, {"message": "Deleted successfully"}, Done(), Done()),
        (200, "Failed to add, please check the input url.", "Failed to add", "Failed to add"),
        (200, "", "answered ''", "answered ''"),
        (200, '{"error_code": "10402"}', "error 10402, without a reason", "error 10402"),
        pytest.param(
            200, '{"x": ' + "[" * 100_000, "the proxy answered", "the proxy answered", id="too deep to be read"
        ),
        (404, {"detail": "Replica http://h is not in the pool."}, Done(), Done()),
        (502, {"detail": "Failed to reach replica at http://h."}, "Failed to reach", "Failed to reach"),
    ],
)
async def test_what_is_said_counts_and_not_the_status(status, body, added, removed):
    """Of 0.18 and of what comes after it. Words that are not known are no success."""
    async with saying(status, body) as proxy:
        for answer, expected in ((await proxy.add(target(ENTRY.url)), added), (await proxy.remove(ENTRY), removed)):
            if isinstance(expected, Done):
                assert answer == expected
            else:
                assert isinstance(answer, Failed)
                assert expected in answer.reason


@pytest.mark.parametrize(("status", "body"), [(404, {}), (200, ["Added successfully"]), (500, "oh"), (200, 5)])
async def test_another_kind_of_server_is_told_apart(status, body):
    async with saying(status, body) as proxy:
        for call in (proxy.list(), proxy.add(target(ENTRY.url)), proxy.remove(ENTRY)):
            with pytest.raises(ProxyUnavailable, match="is admin_url right"):
                await call
