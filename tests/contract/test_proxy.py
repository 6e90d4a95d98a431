"""What every `Proxy` must do, asked of real routers, of small ones with the rules of those that cannot run here, and of
the one in memory with each one's capabilities."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from support.benches import FLEET, IN_MEMORY, ROUTERS, SMALL, MemoryBench
from support.proxies import entries, target
from support.routers import need_haproxy, running
from support.small_routers import small_router
from support.until import until

from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Pending,
    ProxyUnavailable,
    Target,
    Unsupported,
)

REAL = {
    "sglang": Capabilities(async_add=True, probes_on_add=True),
    "vllm": Capabilities(tag=False, probes_on_add=True),
    "haproxy": Capabilities(drain=True),
}
OURS = {
    "miles": Capabilities(remove=False, tag=False),
    "lmdeploy": Capabilities(tag=False, probes_on_add=True),
    "routed-api": Capabilities(list=False, tag=False),
    "abacus": Capabilities(),
}
"""What each kind must say of itself."""


@pytest.fixture(scope="module")
def router(request, tmp_path_factory):
    """The router of the kind that `bench` asks for; one after the other, each for all tests of this module."""
    kind = request.param
    if kind not in ROUTERS:
        yield None
        return
    if kind == "haproxy":
        need_haproxy()
    with running(ROUTERS[kind][0](tmp_path_factory.mktemp(kind))) as router:
        yield router


@pytest.fixture
async def bench(request, router):
    kind = request.node.callspec.params["router"]
    async with AsyncExitStack() as stack:
        if kind in SMALL:
            bench = SMALL[kind][1](await stack.enter_async_context(small_router(SMALL[kind][0])), stack)
        else:
            bench = MemoryBench(IN_MEMORY[kind]) if router is None else ROUTERS[kind][1](router, stack)
        stack.push_async_callback(bench.proxy.close)
        if router is not None:
            for entry in await entries(bench.proxy):
                await remove(bench.proxy, entry)
        yield bench


def kinds_that(can: Callable[[Capabilities], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run the test with every kind whose capabilities are so."""
    real = [pytest.param(kind, marks=pytest.mark.router) for kind, said in REAL.items() if can(said)]
    others = [kind for kind, said in (IN_MEMORY | OURS).items() if can(said)]
    return pytest.mark.parametrize("router", [*others, *real], indirect=True)


every_kind = kinds_that()
every_kind_that_lists = kinds_that(lambda can: can.list)
every_kind_that_removes = kinds_that(lambda can: can.list and can.remove)


async def handles(proxy) -> set[str]:
    return {entry.handle for entry in await entries(proxy)}


def whose(entry: Entry) -> tuple[str, str | None, str | None, int | None]:
    return entry.url, entry.fleet, entry.worker, entry.incarnation


def expected(proxy, target: Target) -> tuple[str, str | None, str | None, int | None]:
    """`whose` of its entry."""
    return (
        (target.url, FLEET, target.worker, target.incarnation) if proxy.capabilities.tag else (target.url, *[None] * 3)
    )


async def ask(proxy, target: Target) -> Answer:
    """Add, and wait for what becomes of it."""
    answer = await proxy.add(target)
    assert isinstance(answer, Pending) is proxy.capabilities.async_add
    if isinstance(answer, Pending):
        return await until(lambda: proxy.outcome(answer), lambda now: now != answer)
    return answer


async def add(proxy, target: Target) -> Entry:
    """Add, and wait until it is listed and nothing is under way for its URL."""
    assert await ask(proxy, target) == Done()
    is_it = expected(proxy, target)
    listed = await until(lambda: entries(proxy), lambda listed: is_it in map(whose, listed))
    return next(entry for entry in listed if whose(entry) == is_it)


async def remove(proxy, entry: Entry) -> None:
    assert await proxy.remove(entry) == Done()
    await until(lambda: handles(proxy), lambda listed: entry.handle not in listed)


@every_kind_that_lists
async def test_a_new_router_lists_nothing(bench):
    assert await entries(bench.proxy) == ()


@pytest.mark.parametrize(
    ("router", "said"),
    [*OURS.items(), *(pytest.param(*it, marks=pytest.mark.router) for it in REAL.items())],
    indirect=["router"],
)
async def test_a_kind_says_what_it_can_do(bench, said):
    assert bench.proxy.capabilities == said


@every_kind_that_lists
async def test_an_added_worker_is_listed_once_as_whose_it_is(bench):
    wanted = target(await bench.worker())
    entry = await add(bench.proxy, wanted)
    assert whose(entry) == expected(bench.proxy, wanted)
    assert entry.in_rotation
    assert await handles(bench.proxy) == {entry.handle}
    health = True if bench.tells_health else None
    await until(lambda: entries(bench.proxy), lambda listed: [entry.healthy for entry in listed] == [health])


@every_kind_that_lists
async def test_an_answered_add_is_listed(bench):
    """What is done when it is answered need not be waited for; what is promised ends done."""
    assert await ask(bench.proxy, target(await bench.worker())) == Done()
    assert len(await entries(bench.proxy)) == 1


@every_kind_that_lists
async def test_a_second_add_never_takes_over_an_entry(bench):
    """I3: what is read back, not what was accepted, says whose entry it is."""
    url = await bench.worker()
    first = await add(bench.proxy, target(url, incarnation=8))
    if bench.one_entry_a_url:
        answer = await ask(bench.proxy, target(url, incarnation=9))
    else:
        answer = await ask(bench.proxy, target(await bench.worker(), incarnation=8))
    if bench.refuses_repetitions:
        assert isinstance(answer, Failed)
        assert "already exists" in answer.reason.lower()
    else:
        assert answer == Done()
    assert list(map(whose, await entries(bench.proxy))) == [whose(first)]


@every_kind_that_removes
async def test_a_removal_takes_exactly_the_entry(bench):
    """I4: nothing else leaves with it."""
    one, two = await bench.workers(2)
    first = await add(bench.proxy, target(one, worker="rollout-0-0"))
    second = await add(bench.proxy, target(two, worker="rollout-1-0"))
    await remove(bench.proxy, first)
    assert await handles(bench.proxy) == {second.handle}


@every_kind_that_removes
async def test_a_removal_of_what_is_gone_is_done(bench):
    url, another = await bench.workers(2)
    entry = await add(bench.proxy, target(url))
    await remove(bench.proxy, entry)
    assert await bench.proxy.remove(entry) == Done()
    stays = await add(bench.proxy, target(another, worker="rollout-4-0"))
    assert await bench.proxy.remove(entry) == Done()
    assert await handles(bench.proxy) == {stays.handle}


@kinds_that(lambda can: can.tag)
async def test_a_second_removal_of_a_life_does_not_take_the_next_one_on_its_url(bench):
    """I3. A router that knows a URL only cannot tell; there, the lane removes nothing that it has not just seen."""
    url = await bench.worker()
    old = await add(bench.proxy, target(url, incarnation=8))
    await remove(bench.proxy, old)
    new = await add(bench.proxy, target(url, incarnation=9))
    assert new.handle != old.handle
    assert await bench.proxy.remove(old) == Done()
    later = await add(bench.proxy, target(await bench.worker(), worker="rollout-4-0"))
    assert await handles(bench.proxy) == {new.handle, later.handle}


@kinds_that(lambda can: can.tag)
async def test_a_handle_from_before_a_restart_removes_nobody(bench):
    """I3: handles are valid until the router restarts, and take nobody else afterwards."""
    url = await bench.worker()
    old = await add(bench.proxy, target(url, incarnation=8))
    bench.restart()
    assert await entries(bench.proxy) == ()
    await bench.stranger(url)
    assert await bench.proxy.remove(old) == Done()
    other = await add(bench.proxy, target(await bench.worker(), worker="rollout-4-0"))
    listed = await until(lambda: entries(bench.proxy), lambda listed: len(listed) == 2)
    assert {(entry.url, entry.fleet) for entry in listed} == {(url, "other"), (other.url, FLEET)}


@every_kind_that_lists
async def test_a_restart_forgets_everything(bench):
    wanted = target(await bench.worker())
    await add(bench.proxy, wanted)
    bench.restart()
    assert await entries(bench.proxy) == ()
    assert whose(await add(bench.proxy, wanted)) == expected(bench.proxy, wanted)


@kinds_that(lambda can: can.async_add)
async def test_a_promise_from_before_a_restart_stays_one(bench):
    """Never done, and not failed either: unknown is never no."""
    pending = await bench.proxy.add(target(await bench.worker()))
    await until(lambda: entries(bench.proxy), bool)
    bench.restart()
    assert await bench.proxy.outcome(pending) == pending
    assert await entries(bench.proxy) == ()


@kinds_that(lambda can: can.probes_on_add)
async def test_an_add_of_what_does_not_answer_fails_and_is_never_listed(bench):
    url = await bench.unreachable()
    answer = await ask(bench.proxy, target(url))
    assert isinstance(answer, Failed)
    assert answer.retryable
    assert url in answer.reason
    assert await entries(bench.proxy) == ()


@kinds_that(lambda can: can.list and not can.probes_on_add)
async def test_what_does_not_answer_is_listed_where_nobody_asks_it(bench):
    """Why a worker is asked before it is added."""
    wanted = target(await bench.unreachable())
    assert whose(await add(bench.proxy, wanted)) == expected(bench.proxy, wanted)


@kinds_that(lambda can: can.tag)
async def test_another_fleets_entry_keeps_its_own_tags(bench):
    """I11: whose an entry is can be told."""
    url = await bench.worker()
    await bench.stranger(url)
    (entry,) = await until(lambda: entries(bench.proxy), bool)
    assert (entry.fleet, entry.worker, entry.incarnation) == ("other", "rollout-0-0", 1)


@every_kind_that_lists
async def test_a_listing_has_the_canonical_spelling(bench):
    url = await bench.worker()
    spelled = bench.proxy.canonical_url(url.upper().replace("HTTP", "Http") + "/")
    assert spelled == url
    entry = await add(bench.proxy, target(spelled))
    assert bench.proxy.canonical_url(entry.url) == entry.url == spelled
    with pytest.raises(ValueError, match="must begin with"):
        bench.proxy.canonical_url(url.removeprefix("http://"))


@kinds_that(lambda can: can.drain)
async def test_a_drained_entry_is_out_of_rotation_until_it_is_removed(bench):
    one, two = await bench.workers(2)
    entry = await add(bench.proxy, target(one, worker="rollout-0-0"))
    other = await add(bench.proxy, target(two, worker="rollout-1-0"))
    assert await bench.proxy.drain(entry) == Done()
    listed = await until(lambda: entries(bench.proxy), lambda listed: not all(entry.in_rotation for entry in listed))
    assert {now.handle: now.in_rotation for now in listed} == {entry.handle: False, other.handle: True}
    await remove(bench.proxy, entry)
    assert await bench.proxy.drain(entry) == Done()
    assert await handles(bench.proxy) == {other.handle}


@kinds_that(lambda can: can.list and not can.drain)
async def test_a_drain_that_there_is_not_is_unsupported_and_changes_nothing(bench):
    entry = await add(bench.proxy, target(await bench.worker()))
    assert isinstance(await bench.proxy.drain(entry), Unsupported)
    (still,) = await entries(bench.proxy)
    assert (still.handle, still.in_rotation) == (entry.handle, True)


@every_kind_that_lists
async def test_a_hundred_entries_are_listed_together(bench):
    wanted = [target(url, worker=f"rollout-{number}-0") for number, url in enumerate(await bench.workers(100))]
    for one in wanted:
        assert isinstance(await bench.proxy.add(one), Done | Pending)
    listed = await until(lambda: entries(bench.proxy), lambda listed: len(listed) == len(wanted))
    assert set(map(whose, listed)) == {expected(bench.proxy, one) for one in wanted}
    assert len({entry.handle for entry in listed}) == len(wanted)


@kinds_that(lambda can: not can.remove)
async def test_a_removal_that_there_is_not_is_unsupported_and_changes_nothing(bench):
    entry = await add(bench.proxy, target(await bench.worker()))
    assert isinstance(await bench.proxy.remove(entry), Unsupported)
    assert await handles(bench.proxy) == {entry.handle}


@kinds_that(lambda can: not can.list)
async def test_what_cannot_be_listed_takes_every_change_twice_and_says_that_it_shows_nothing(bench):
    """Whether a change arrived is not known there after a lost answer; so it is made again."""
    wanted = target(await bench.worker())
    for _ in range(2):
        assert await ask(bench.proxy, wanted) == Done()
    for _ in range(2):
        assert await bench.proxy.remove(Entry(url=wanted.url, handle=wanted.url)) == Done()
    with pytest.raises(ProxyUnavailable, match="no listing"):
        await bench.proxy.list()


@every_kind
async def test_a_url_that_no_worker_can_have_is_refused_before_anything_is_asked(bench):
    with pytest.raises(ValueError, match="is not the URL of a server"):
        bench.proxy.canonical_url("http://10.0.0.1:0")
