"""A real sglang-router's habits, each of which a reconciler must live with (docs/proxies/sglang.md)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from support.proxies import entries, generate
from support.routers import running_router
from support.until import until
from support.workers import HttpWorker, http_worker, http_workers, nobody_listens

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.sglang import SglangProxy
from rollbook.projections.ports import Done, Entry, Failed, Pending, ProxyUnavailable, Target

pytestmark = pytest.mark.router

FLEET = "math-rl"
KEY = "hunter2-hunter2"
MORE_THAN_SLOTS = 14
"""It carries out 10 jobs at a time."""


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router


def sglang(router, key: str | None = None) -> SglangProxy:
    return SglangProxy(ProxyConfig(name="router-a", admin_url=router.url, fleet=FLEET, api_key=key))


@pytest.fixture
async def proxy(router):
    proxy = sglang(router)
    try:
        for entry in await entries(proxy):
            await remove(proxy, entry)
        yield proxy
    finally:
        await proxy.close()


async def add(proxy, url: str, worker: str = "rollout-3-0", incarnation: int = 8, **more) -> Entry:
    """Add, and wait until the entry is listed and the job for its URL is over."""
    pending = await proxy.add(Target(worker=worker, incarnation=incarnation, url=url, **more))
    assert isinstance(pending, Pending)
    assert await until(lambda: proxy.outcome(pending), lambda answer: answer != pending) == Done()
    return next(entry for entry in await entries(proxy) if entry.url == url)


async def remove(proxy, entry: Entry) -> None:
    assert await proxy.remove(entry) == Done()
    await until(lambda: entries(proxy), lambda listed: entry.handle not in {other.handle for other in listed})


async def test_a_ghost_appears_after_its_removal_and_can_be_taken_away(proxy):
    """I2, I3: removing a pending add does not cancel it; whoever gets the port later is listed under the old name."""
    worker = HttpWorker("stranger")
    async with nobody_listens() as url:
        pending = await proxy.add(Target(worker="rollout-3-0", incarnation=8, url=url))
        assert isinstance(pending, Pending)
        assert await proxy.remove(Entry(url=url, handle=pending.handle)) == Done()
        assert await entries(proxy) == ()
        worker.port = int(url.rpartition(":")[2])
    try:
        await worker.start()
        (ghost,) = await until(lambda: entries(proxy), bool)
        assert (ghost.url, ghost.fleet, ghost.worker, ghost.incarnation) == (url, FLEET, "rollout-3-0", 8)
        await remove(proxy, ghost)
    finally:
        await worker.stop()


async def test_a_restart_forgets_everything_and_names_it_anew(proxy, router):
    async with http_worker() as worker:
        before = await add(proxy, worker.url)
        router.restart()
        assert await entries(proxy) == ()
        after = await add(proxy, worker.url)
    assert after.handle != before.handle


async def test_two_adds_of_one_url_share_one_handle_and_one_wins(proxy):
    """I3: an outcome is about a URL, never about a life; the labels that are read back are all there is."""
    async with http_worker() as worker:
        targets = [Target(worker="rollout-3-0", incarnation=number, url=worker.url) for number in (8, 9)]
        first, second = await asyncio.gather(*(proxy.add(target) for target in targets))
        assert first == second
        await until(lambda: proxy.outcome(first), lambda answer: answer != first)
        (entry,) = await until(lambda: entries(proxy), bool)
        assert entry.incarnation in {8, 9}


async def test_more_dead_workers_than_slots_hold_up_a_removal_and_its_repetition_harms_nobody(tmp_path):
    """Why adds are few at a time and a worker is asked before it is added. I3: a removal that waited is not late."""
    with running_router(tmp_path, flags=("--worker-startup-timeout-secs=600",)) as router:
        proxy = sglang(router)
        dead = [HttpWorker(f"late-{number}") for number in range(MORE_THAN_SLOTS)]
        try:
            async with http_worker() as worker:
                entry = await add(proxy, worker.url)
                async with AsyncExitStack() as held:
                    for late in dead:
                        late.port = int((await held.enter_async_context(nobody_listens())).rpartition(":")[2])
                adds = [
                    await proxy.add(Target(worker=f"rollout-9-{number}", incarnation=1, url=late.url))
                    for number, late in enumerate(dead)
                ]
                for _ in range(3):
                    assert await proxy.remove(entry) == Done()
                assert await entries(proxy) == (entry,)
                assert [await proxy.outcome(pending) for pending in adds] == adds
                for late in dead:
                    await late.start()
                await until(lambda: entries(proxy), lambda listed: entry not in listed)
                new = await add(proxy, worker.url, incarnation=9)
                assert new.handle != entry.handle
                await until(lambda: entries(proxy), lambda listed: len(listed) == len(dead) + 1)
                assert new in await entries(proxy)
        finally:
            for late in dead:
                await late.stop()
            await proxy.close()


async def test_a_worker_that_returns_is_used_at_once_after_remove_and_add(tmp_path):
    """With the default circuit breaker it stays out for most of a minute, listed as healthy all the time."""
    with running_router(tmp_path, flags=()) as router:
        proxy = sglang(router)
        try:
            async with http_worker() as worker, aiohttp.ClientSession() as session:
                entry = await add(proxy, worker.url)
                assert await generate(session, router) == 200
                await worker.stop()
                assert 200 not in await asyncio.gather(*(generate(session, router) for _ in range(6)))
                await worker.start()
                served = worker.served
                assert await generate(session, router) == 503
                (listed,) = await entries(proxy)
                assert listed.healthy is True
                assert worker.served == served
                await remove(proxy, entry)
                await add(proxy, worker.url, incarnation=9)
                assert await generate(session, router) == 200
                assert worker.served == served + 1
        finally:
            await proxy.close()


async def test_an_add_without_a_scheme_takes_over_the_labels_of_the_entry(proxy, router):
    """I11: another writer can strip an entry of our tags under the same handle; then it is not called ours."""
    async with http_worker() as worker, aiohttp.ClientSession() as session:
        entry = await add(proxy, worker.url)
        bare = {"url": worker.url.removeprefix("http://")}
        async with session.post(f"{router.url}/workers", json=bare) as response:
            assert response.status == 202
        (stripped,) = await until(lambda: entries(proxy), lambda listed: entry not in listed)
        assert stripped == Entry(url=entry.url, handle=entry.handle, healthy=True)


async def test_the_two_halves_of_a_disaggregated_router_are_added_as_what_they_are(tmp_path):
    """It sends a request to one of each, and finds the prefill worker's bootstrap port by what it was told."""
    with running_router(tmp_path, "--pd-disaggregation") as router:
        proxy = sglang(router)
        try:
            async with http_workers(3) as (prefill, decode, other), aiohttp.ClientSession() as session:
                await add(proxy, prefill.url, "prefill-0-0", role="prefill", bootstrap_port=9001, model="m")
                await add(proxy, decode.url, "decode-0-0", role="decode", model="m")
                await add(proxy, other.url, "rollout-0-0")
                assert await generate(session, router) == 200
                assert (prefill.served, decode.served, other.served) == (1, 1, 0)
                async with session.get(f"{router.url}/workers") as response:
                    listed = {worker["url"]: worker for worker in (await response.json())["workers"]}
            keys = ("worker_type", "bootstrap_port", "model_id")
            assert [[listed[worker.url].get(key) for key in keys] for worker in (prefill, decode, other)] == [
                ["prefill", 9001, "m"],
                ["decode", None, "m"],
                ["regular", None, "unknown"],
            ]
            assert {entry.worker for entry in await entries(proxy)} == {"prefill-0-0", "decode-0-0", "rollout-0-0"}
        finally:
            await proxy.close()


async def test_an_api_key_is_asked_for_checked_and_never_shown(tmp_path, caplog):
    with running_router(tmp_path, f"--api-key={KEY}") as router:
        keyless = sglang(router)
        wrong = sglang(router, f"not-{KEY}")
        right = sglang(router, KEY)
        try:
            with pytest.raises(ProxyUnavailable, match="401 without a body: it asks for a key; set api_key"):
                await keyless.list()
            with pytest.raises(ProxyUnavailable, match="it refuses the key in api_key") as caught:
                await wrong.add(Target(worker="rollout-3-0", incarnation=8, url="http://127.0.0.1:1"))
            assert KEY not in f"{caught.value!r} {caught.value.__cause__!r}"
            async with http_worker() as worker:
                await remove(right, await add(right, worker.url))
            router.kill()
            with pytest.raises(ProxyUnavailable, match=r"/workers failed: connection refused$") as caught:
                await right.list()
            assert KEY not in f"{right!r} {caught.value!r} {caught.value.__cause__!r} {caplog.text}"
        finally:
            for proxy in (keyless, wrong, right):
                await proxy.close()


async def test_a_handle_that_is_none_is_refused_in_the_routers_words(proxy):
    answer = await proxy.remove(Entry(url="http://127.0.0.1:1", handle="no/uuid"))
    assert isinstance(answer, Failed)
    assert "expected UUID" in answer.reason
