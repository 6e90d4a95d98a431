"""A real vllm-router's habits, each of which a reconciler must live with (docs/proxies/vllm.md)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from support.proxies import entries, generate, target
from support.routers import VllmRouter, running, running_router
from support.until import until
from support.workers import HttpWorker, http_worker, nobody_listens

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.vllm import VllmProxy
from rollbook.projections.ports import Done, Entry, Failed, ProxyUnavailable, Unsupported

pytestmark = pytest.mark.router

IMPATIENT = ("--worker-startup-timeout-secs=3", "--worker-startup-check-interval=1")


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running(VllmRouter(tmp_path_factory.mktemp("vllm"), IMPATIENT)) as router:
        yield router


@asynccontextmanager
async def proxy_of(url: str, **more):
    proxy = VllmProxy(ProxyConfig(name="router-a", admin_url=url, fleet="math-rl", **more))
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
async def proxy(router):
    async with proxy_of(router.url) as proxy:
        for entry in await entries(proxy):
            assert await proxy.remove(entry) == Done()
        yield proxy


async def test_an_add_that_nobody_waits_for_is_given_up(proxy):
    """I2: what is cancelled does not appear later; the router gives up when the connection is closed."""
    worker = HttpWorker("late")
    async with nobody_listens() as url, nobody_listens() as never:
        worker.port = int(url.rpartition(":")[2])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await proxy.add(target(url))
        other = asyncio.create_task(proxy.add(target(never)))
    try:
        await worker.start()
        # By the time that this one is refused, the other would have been asked again and again.
        answer = await other
        assert isinstance(answer, Failed)
        assert "waiting for worker" in answer.reason
        assert await entries(proxy) == ()
    finally:
        await worker.stop()


async def test_a_removal_does_not_end_an_add_that_waits(proxy):
    """I3: so one URL has one change at a time."""
    worker = HttpWorker("late")
    async with nobody_listens() as url:
        worker.port = int(url.rpartition(":")[2])
        adding = asyncio.create_task(proxy.add(target(url)))
        await asyncio.sleep(0)
        assert await proxy.remove(Entry(url=url, handle=url)) == Done()
    try:
        await worker.start()
        assert await adding == Done()
        assert [entry.url for entry in await entries(proxy)] == [url]
    finally:
        await worker.stop()


async def test_a_stopped_router_is_bounded_by_the_caller_and_goes_on_afterwards(proxy, router):
    """I10: deadlines are the caller's."""
    async with http_worker() as worker:
        assert await proxy.add(target(worker.url)) == Done()
        before = await entries(proxy)
        with router.stopped():
            for call in (proxy.list(), proxy.add(target("http://127.0.0.1:1"))):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await call
        assert await entries(proxy) == before


async def test_its_api_key_does_not_guard_the_admin_api(tmp_path):
    """Whoever reaches the port can change it; a key that is sent all the same does no harm."""
    with running(VllmRouter(tmp_path, (*IMPATIENT, "--api-key=hunter2"))) as router:
        async with http_worker() as worker, proxy_of(router.url) as keyless, proxy_of(router.url, api_key="x") as keyed:
            assert await keyless.add(target(worker.url)) == Done()
            assert [entry.url for entry in await entries(keyed)] == [worker.url]
            assert await keyed.remove(Entry(url=worker.url, handle=worker.url)) == Done()
            assert await entries(keyless) == ()


async def test_a_worker_that_returns_is_used_at_once_after_remove_and_add(tmp_path):
    """With the default circuit breaker it stays out for most of a minute."""
    with running(VllmRouter(tmp_path, ())) as router:
        async with proxy_of(router.url) as proxy, http_worker() as worker, aiohttp.ClientSession() as session:
            assert await proxy.add(target(worker.url)) == Done()
            assert await generate(session, router) == 200
            await worker.stop()
            assert 200 not in await asyncio.gather(*(generate(session, router) for _ in range(6)))
            await worker.start()
            served = worker.served
            assert await generate(session, router) == 503
            assert worker.served == served
            (entry,) = await entries(proxy)
            assert await proxy.remove(entry) == Done()
            assert await proxy.add(target(worker.url)) == Done()
            assert await generate(session, router) == 200
            assert worker.served == served + 1


async def test_a_request_in_flight_ends_well_after_the_removal(proxy, router):
    async with http_worker() as worker, aiohttp.ClientSession() as session:
        worker.gate = asyncio.Event()
        assert await proxy.add(target(worker.url)) == Done()
        request = asyncio.create_task(generate(session, router))
        await worker.reached()
        (entry,) = await entries(proxy)
        assert await proxy.remove(entry) == Done()
        assert await entries(proxy) == ()
        worker.gate.set()
        assert await request == 200


async def test_a_removal_answers_alike_whatever_it_removed(proxy):
    """So only a listing tells."""
    async with nobody_listens() as url:
        assert await proxy.remove(Entry(url=url, handle=url)) == Done()


async def test_another_router_behind_the_url_is_noticed(tmp_path):
    """Both have `/workers`; an add is answered differently."""
    with running_router(tmp_path) as sglang:
        async with proxy_of(sglang.url) as proxy, http_worker() as worker:
            with pytest.raises(ProxyUnavailable, match=r"answered 202 .* this is not the vllm-router API"):
                await proxy.add(target(worker.url))
            await until(lambda: entries(proxy), bool)


async def test_half_of_a_disaggregated_pair_cannot_be_added():
    async with proxy_of("http://127.0.0.1:1") as proxy:
        assert isinstance(await proxy.add(target("http://127.0.0.1:2", role="prefill")), Unsupported)


@asynccontextmanager
async def answering(status: int, body: str, seen: list[str]):
    """A proxy in front of a server that answers everything so."""

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response(status=status, text=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with proxy_of(f"http://127.0.0.1:{runner.addresses[0][1]}") as proxy:
            yield proxy
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, {"success": True}, Done()),
        (200, {"success": False, "message": "not today"}, Failed("not today")),
        (200, {"success": False}, Failed("the router refused without a reason")),
        (400, {"error": "Worker already exists", "code": "ADD_WORKER_FAILED"}, Failed("Worker already exists")),
        (200, {}, None),
        (200, [], None),
        (400, {}, None),
        (404, "no", None),
        (502, "bad gateway", None),
    ],
)
async def test_an_answer_is_what_its_body_says(status, body, answer):
    entry = Entry(url="http://[::1]:8000/a", handle="http://[::1]:8000/a")
    seen: list[str] = []
    async with answering(status, json.dumps(body), seen) as proxy:
        for call in (proxy.add(target(entry.url)), proxy.remove(entry)):
            if answer is None:
                with pytest.raises(ProxyUnavailable, match=f"answered {status} "):
                    await call
            else:
                assert await call == answer
    assert seen[0] == "/workers"
    assert seen[1].count("/") == 2, "the URL is one part of the path"


async def test_an_oddity_in_a_listing_hides_no_entry():
    """I9."""
    workers = [{"url": "http://10.0.0.1:8000/", "is_healthy": "?"}, {"id": "7"}, {"url": "x", "is_healthy": True}]
    async with answering(200, json.dumps({"workers": workers}), []) as proxy:
        assert await entries(proxy) == (
            Entry(url="http://10.0.0.1:8000", handle="http://10.0.0.1:8000/"),
            Entry(url="x", handle="x", healthy=True),
        )
