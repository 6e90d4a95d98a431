"""What every `Proxy` must do, asked of the one in memory and of a real sglang-router."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest
from support.routers import running_router
from support.until import until
from support.workers import HttpWorker, http_worker, http_workers, nobody_listens

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.sglang import SglangProxy
from rollbook.projections.ports import Done, Entry, Failed, Pending, Target

FLEET = "math-rl"


class MemoryBench:
    """A router in memory, and the world of URLs that it sees."""

    def __init__(self) -> None:
        self._answering: set[str] = set()
        self.proxy = MemoryProxy(
            "router", FLEET, SystemClock(), random.Random(7), answers=lambda url: url in self._answering, patience=0.2
        )

    async def worker(self) -> str:
        return (await self.workers(1))[0]

    async def workers(self, count: int) -> list[str]:
        urls = [f"http://10.0.0.1:{8000 + len(self._answering) + number}" for number in range(count)]
        self._answering.update(urls)
        return urls

    async def unreachable(self) -> str:
        return "http://10.0.0.9:1"

    async def stranger(self, url: str) -> None:
        self.proxy.put(url, fleet="other", worker="rollout-0-0", incarnation=1)

    def restart(self) -> None:
        self.proxy.restart()


class SglangBench:
    """The real router; workers are HTTP servers in this process."""

    def __init__(self, router, stack: AsyncExitStack) -> None:
        self._router = router
        self._stack = stack
        self.proxy = SglangProxy(ProxyConfig(name="router", admin_url=router.url, fleet=FLEET))

    async def worker(self) -> str:
        worker: HttpWorker = await self._stack.enter_async_context(http_worker())
        return worker.url

    async def workers(self, count: int) -> list[str]:
        return [worker.url for worker in await self._stack.enter_async_context(http_workers(count))]

    async def unreachable(self) -> str:
        return await self._stack.enter_async_context(nobody_listens())

    async def stranger(self, url: str) -> None:
        other = SglangProxy(ProxyConfig(name="router", admin_url=self._router.url, fleet="other"))
        try:
            await add(other, Target(worker="rollout-0-0", incarnation=1, url=url))
        finally:
            await other.close()

    def restart(self) -> None:
        self._router.restart()


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router


@pytest.fixture(params=["memory", pytest.param("sglang", marks=pytest.mark.router)])
async def bench(request):
    async with AsyncExitStack() as stack:
        bench = MemoryBench() if request.param == "memory" else SglangBench(request.getfixturevalue("router"), stack)
        stack.push_async_callback(bench.proxy.close)
        for entry in (await bench.proxy.list()).entries:
            await remove(bench.proxy, entry)
        yield bench


async def entries(proxy) -> tuple[Entry, ...]:
    return (await proxy.list()).entries


async def add(proxy, target: Target) -> Entry:
    """Add, and wait until the entry is listed with these tags and the job for its URL is over."""

    def mine(listed):
        return [entry for entry in listed if entry.url == target.url and entry.incarnation == target.incarnation]

    pending = await proxy.add(target)
    assert isinstance(pending, Pending)
    entry = mine(await until(lambda: entries(proxy), mine))[0]
    assert await until(lambda: proxy.outcome(pending), lambda answer: answer != pending) == Done()
    return entry


async def remove(proxy, entry: Entry) -> None:
    assert await proxy.remove(entry) == Done()
    await until(lambda: entries(proxy), lambda listed: entry.handle not in {other.handle for other in listed})


def target(url: str, worker: str = "rollout-3-0", incarnation: int = 8) -> Target:
    return Target(worker=worker, incarnation=incarnation, url=url)


async def test_a_new_router_lists_nothing(bench):
    assert await entries(bench.proxy) == ()


async def test_an_added_worker_is_listed_with_its_tags(bench):
    url = await bench.worker()
    entry = await add(bench.proxy, target(url))
    assert (entry.url, entry.fleet, entry.worker, entry.incarnation) == (url, FLEET, "rollout-3-0", 8)
    assert entry.healthy is True
    assert await entries(bench.proxy) == (entry,)


async def test_a_pending_add_of_a_listed_worker_ends_done(bench):
    pending = await bench.proxy.add(target(await bench.worker()))
    assert await until(lambda: bench.proxy.outcome(pending), lambda answer: answer != pending) == Done()
    assert len(await entries(bench.proxy)) == 1


async def test_a_second_add_of_a_url_fails_and_the_first_tags_stay(bench):
    """I3: what is read back, not what was accepted, says whose entry it is."""
    url = await bench.worker()
    first = await add(bench.proxy, target(url, incarnation=8))
    pending = await bench.proxy.add(target(url, incarnation=9))
    answer = await until(lambda: bench.proxy.outcome(pending), lambda answer: answer != pending)
    assert isinstance(answer, Failed)
    assert "already exists" in answer.reason
    assert await entries(bench.proxy) == (first,)


async def test_a_removal_takes_exactly_the_entry(bench):
    """I4: nothing else leaves with it."""
    one, two = await bench.workers(2)
    first = await add(bench.proxy, target(one, "rollout-0-0"))
    second = await add(bench.proxy, target(two, "rollout-1-0"))
    await remove(bench.proxy, first)
    assert await entries(bench.proxy) == (second,)


async def test_a_removal_of_what_is_gone_is_done_and_takes_nothing(bench):
    """I3: the second removal of a life does not take the next life on the same URL."""
    url = await bench.worker()
    old = await add(bench.proxy, target(url, incarnation=8))
    await remove(bench.proxy, old)
    assert await bench.proxy.remove(old) == Done()
    new = await add(bench.proxy, target(url, incarnation=9))
    assert new.handle != old.handle
    assert await bench.proxy.remove(old) == Done()
    later = await add(bench.proxy, target(await bench.worker(), "rollout-4-0"))
    assert set(await entries(bench.proxy)) == {new, later}


async def test_a_handle_from_before_a_restart_removes_nobody(bench):
    """I3: ids are valid until the router restarts, and mean nothing afterwards."""
    url = await bench.worker()
    old = await add(bench.proxy, target(url, incarnation=8))
    bench.restart()
    assert await entries(bench.proxy) == ()
    await bench.stranger(url)
    assert await bench.proxy.remove(old) == Done()
    other = await add(bench.proxy, target(await bench.worker(), "rollout-4-0"))
    assert {(entry.url, entry.fleet) for entry in await entries(bench.proxy)} == {(url, "other"), (other.url, FLEET)}


async def test_a_promise_from_before_a_restart_stays_one(bench):
    """Never done, and not failed either: unknown is never no."""
    pending = await bench.proxy.add(target(await bench.worker()))
    await until(lambda: entries(bench.proxy), bool)
    bench.restart()
    assert await bench.proxy.outcome(pending) == pending
    assert await entries(bench.proxy) == ()


async def test_an_add_of_what_does_not_answer_fails_and_is_never_listed(bench):
    url = await bench.unreachable()
    pending = await bench.proxy.add(target(url))
    assert isinstance(pending, Pending)
    answer = await until(lambda: bench.proxy.outcome(pending), lambda answer: answer != pending)
    assert isinstance(answer, Failed)
    assert answer.reason
    assert url in answer.reason
    assert await entries(bench.proxy) == ()


async def test_another_fleets_entry_keeps_its_own_tags(bench):
    """I11: whose an entry is can be told."""
    url = await bench.worker()
    await bench.stranger(url)
    (entry,) = await entries(bench.proxy)
    assert (entry.fleet, entry.worker, entry.incarnation) == ("other", "rollout-0-0", 1)


async def test_a_listing_has_the_canonical_spelling(bench):
    url = await bench.worker()
    spelled = bench.proxy.canonical_url(url.upper().replace("HTTP", "Http") + "/")
    assert spelled == url
    entry = await add(bench.proxy, target(spelled))
    assert bench.proxy.canonical_url(entry.url) == entry.url == spelled
    with pytest.raises(ValueError, match="must begin with"):
        bench.proxy.canonical_url(url.removeprefix("http://"))


async def test_a_hundred_entries_are_listed_together(bench):
    urls = await bench.workers(100)
    for number, url in enumerate(urls):
        assert isinstance(await bench.proxy.add(target(url, f"rollout-{number}-0")), Pending)
    listed = await until(lambda: entries(bench.proxy), lambda listed: len(listed) == len(urls))
    assert {(entry.url, entry.worker) for entry in listed} == {
        (url, f"rollout-{number}-0") for number, url in enumerate(urls)
    }
    assert len({entry.handle for entry in listed}) == len(urls)
