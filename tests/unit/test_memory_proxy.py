"""The router in memory: every way to behave badly is one that a simulation asked for, and repeats with its seed."""

from __future__ import annotations

import asyncio
import random

import pytest

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.faults import NO_FAULTS, ProxyFaults
from rollbook.adapters.memory.jobs import SLOTS
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.projections.ports import Capabilities, Done, Entry, Failed, Pending, ProxyUnavailable, Target, Unsupported

URL = "http://10.0.0.1:8000"
TARGET = Target(worker="rollout-3-0", incarnation=8, url=URL)


def make(faults: ProxyFaults = NO_FAULTS, *, seed: int = 1, **more) -> MemoryProxy:
    return MemoryProxy("router-a", "math-rl", LoopClock(), random.Random(seed), faults=faults, **more)


def on_virtual_time(test):
    """Run an async test on virtual time, where an hour takes no time."""

    def run():
        virtual.run(test())

    run.__name__ = test.__name__
    return run


async def listed(proxy):
    await asyncio.sleep(60)
    return [(entry.url, entry.incarnation) for entry in proxy.listed]


@on_virtual_time
async def test_without_faults_it_works_at_once():
    proxy = make()
    pending = await proxy.add(TARGET)
    assert isinstance(pending, Pending)
    await asyncio.sleep(0.001)
    assert await proxy.outcome(pending) == Done()
    (entry,) = (await proxy.list()).entries
    assert (entry.url, entry.fleet, entry.worker, entry.incarnation) == (URL, "math-rl", "rollout-3-0", 8)
    assert await proxy.remove(entry) == Done()
    assert await listed(proxy) == []


@on_virtual_time
async def test_hooks_see_a_call_before_it_acts_and_the_listing_when_it_has_changed():
    proxy = make(ProxyFaults(slowest_call=4, slowest_job=4))
    seen = []
    proxy.on_call = lambda verb, what: seen.append((verb, what.worker, len(proxy.listed)))
    proxy.on_effect = lambda effect, entry: seen.append((effect, entry.worker, len(proxy.listed)))
    await proxy.add(TARGET)
    assert await listed(proxy) == [(URL, 8)]
    await proxy.remove(proxy.listed[0])
    assert await listed(proxy) == []
    proxy.put(URL, fleet="other")
    proxy.drop(proxy.listed[0])
    proxy.put(URL)
    proxy.restart()
    assert seen == [
        ("add", "rollout-3-0", 0),
        ("listed", "rollout-3-0", 1),
        ("remove", "rollout-3-0", 1),
        ("removed", "rollout-3-0", 0),
        ("listed", None, 1),
        ("lost", None, 0),
        ("listed", None, 1),
        ("lost", None, 0),
    ]
    assert [call.verb for call in proxy.calls] == ["add", "remove"]
    assert proxy.calls[0].at == 0


@on_virtual_time
async def test_what_a_hook_raises_is_kept_and_told_to_whoever_called():
    proxy = make()

    def broken(*_):
        raise AssertionError("an invariant")

    proxy.on_call = broken
    with pytest.raises(AssertionError, match="an invariant"):
        await proxy.add(TARGET)
    assert await listed(proxy) == []
    proxy.on_call, proxy.on_effect = None, broken
    await proxy.add(TARGET)
    assert await listed(proxy) == [(URL, 8)]
    assert [str(exc) for exc in proxy.broken] == ["an invariant"] * 2


@pytest.mark.parametrize(
    ("faults", "happened"),
    [
        (ProxyFaults(refuse=1), []),
        (ProxyFaults(lose_answer=1), [(URL, 8)]),
        (ProxyFaults(act_late=1), [(URL, 8)]),
    ],
)
def test_a_call_that_is_unavailable_may_have_acted(faults, happened):
    async def main():
        proxy = make(faults)
        with pytest.raises(ProxyUnavailable, match="router-a: "):
            await proxy.add(TARGET)
        assert await listed(proxy) == happened

    virtual.run(main())


@on_virtual_time
async def test_a_late_call_acts_after_its_answer():
    proxy = make(ProxyFaults(act_late=1, latest=50))
    with pytest.raises(ProxyUnavailable):
        await proxy.add(TARGET)
    await asyncio.sleep(1)
    assert proxy.listed == ()
    assert await listed(proxy) == [(URL, 8)]


@on_virtual_time
async def test_a_lie_is_accepted_and_nothing_happens():
    proxy = make(ProxyFaults(lie=1))
    pending = await proxy.add(TARGET)
    assert await listed(proxy) == []
    assert await proxy.outcome(pending) == pending
    entry = proxy.put(URL)
    assert await proxy.remove(entry) == Done()
    assert await listed(proxy) == [(URL, None)]


@on_virtual_time
async def test_a_ghost_is_listed_after_its_removal_when_somebody_answers_at_its_url():
    answering = set()
    proxy = make(answers=answering.__contains__, patience=100)
    pending = await proxy.add(TARGET)
    await proxy.remove(proxy.put(URL))
    assert await listed(proxy) == []
    assert await proxy.outcome(pending) == pending
    answering.add(URL)
    assert await listed(proxy) == [(URL, 8)]


@on_virtual_time
async def test_an_add_that_nobody_answers_fails_after_its_patience():
    proxy = make(answers=lambda _: False, patience=5)
    pending = await proxy.add(TARGET)
    await asyncio.sleep(4)
    assert await proxy.outcome(pending) == pending
    assert await listed(proxy) == []
    assert await proxy.outcome(pending) == Failed(f"{URL} did not answer within 5 s")


@on_virtual_time
async def test_dead_workers_hold_all_slots_and_a_removal_waits():
    dead = set()
    proxy = make(answers=lambda url: url not in dead, patience=30)
    entry = proxy.put(URL)
    for number in range(SLOTS):
        dead.add(f"http://10.0.0.2:{number}")
        await proxy.add(Target(worker=f"rollout-9-{number}", incarnation=1, url=f"http://10.0.0.2:{number}"))
    assert await proxy.remove(entry) == Done()
    await asyncio.sleep(29)
    assert proxy.listed == (entry,)
    await asyncio.sleep(2)
    assert proxy.listed == ()


@on_virtual_time
async def test_a_restart_forgets_promises_too():
    proxy = make(ProxyFaults(slowest_job=50))
    pending = await proxy.add(TARGET)
    proxy.restart()
    assert await listed(proxy) == []
    assert await proxy.outcome(pending) == pending


@on_virtual_time
async def test_a_job_can_fail():
    proxy = make(ProxyFaults(fail_job=1))
    pending = await proxy.add(TARGET)
    assert await listed(proxy) == []
    assert await proxy.outcome(pending) == Failed("the router's job failed")


@on_virtual_time
async def test_a_proxy_that_is_down_or_stalled_does_nothing():
    proxy = make()
    proxy.available = False
    with pytest.raises(ProxyUnavailable):
        await proxy.list()
    proxy.stalled = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await proxy.add(TARGET)
    proxy.available, proxy.stalled = True, False
    assert await listed(proxy) == []


@on_virtual_time
async def test_capabilities_are_kept():
    blind = make(capabilities=Capabilities(remove=False, tag=False, async_add=False))
    assert await blind.add(TARGET) == Done()
    (entry,) = blind.listed
    assert (entry.fleet, entry.worker, entry.incarnation) == (None, None, None)
    assert isinstance(await blind.remove(entry), Unsupported)
    assert blind.listed == (entry,)


@on_virtual_time
async def test_a_synchronous_add_answers_with_its_outcome():
    dead = Capabilities(async_add=False, probes_on_add=True)
    proxy = make(capabilities=dead, answers=lambda _: False, patience=5)
    assert await proxy.add(TARGET) == Failed(f"{URL} did not answer within 5 s")
    add = asyncio.create_task(proxy.add(TARGET))
    await asyncio.sleep(1)
    proxy.restart()
    with pytest.raises(ProxyUnavailable, match="restarted"):
        await add


def test_a_seed_repeats_and_another_differs():
    faults = ProxyFaults(
        slowest_call=2, slowest_job=9, refuse=0.2, lose_answer=0.2, act_late=0.2, lie=0.2, fail_job=0.2
    )

    def story(seed):
        async def main():
            proxy, told = make(faults, seed=seed), []
            proxy.on_effect = lambda effect, entry: told.append((LoopClock().monotonic(), effect, entry))
            for number in range(40):
                url = f"http://10.0.0.1:{8000 + number % 5}"
                try:
                    await proxy.add(Target(worker=f"rollout-{number}-0", incarnation=1, url=url))
                    for entry in (await proxy.list()).entries[:1]:
                        await proxy.remove(entry)
                except ProxyUnavailable as exc:
                    told.append(str(exc))
            await proxy.close()
            return told

        return virtual.run(main())

    assert story(3) == story(3)
    assert story(3) != story(4)


@on_virtual_time
async def test_a_drained_entry_ends_its_requests_and_stays_listed():
    proxy = make(ProxyFaults(longest_request=20), capabilities=Capabilities(drain=True, async_add=True))
    await proxy.add(TARGET)
    await asyncio.sleep(1)
    proxy.load(proxy.listed[0], 5)
    assert [entry.running for entry in (await proxy.list()).entries] == [5]
    assert await proxy.drain(proxy.listed[0]) == Done()
    assert [entry.running for entry in (await proxy.list()).entries] == [5]
    await asyncio.sleep(20)
    assert [entry.running for entry in (await proxy.list()).entries] == [0]


@on_virtual_time
async def test_a_router_that_cannot_drain_says_so():
    proxy = make()
    await proxy.add(TARGET)
    await asyncio.sleep(1)
    assert isinstance(await proxy.drain(proxy.listed[0]), Unsupported)
    assert [entry.running for entry in proxy.listed] == [None]


@on_virtual_time
async def test_a_blind_router_shows_nothing_adds_twice_and_removes_by_url():
    proxy = make(capabilities=Capabilities(list=False, tag=False))
    with pytest.raises(ProxyUnavailable, match="no listing"):
        await proxy.list()
    for _ in range(2):
        assert await proxy.add(TARGET) == Done()
    assert [entry.url for entry in proxy.listed] == [URL]
    assert await proxy.remove(Entry(url=URL, handle=URL)) == Done()
    await asyncio.sleep(1)
    assert proxy.listed == ()
