"""Reading a proxy back: never two listings at once, never one from before the question."""

import asyncio

import pytest
from support.fleet import Fleet, on_virtual_time

from rollbook.adapters.memory.clock import LoopClock
from rollbook.projections.lanes.listing import Reader, bounded
from rollbook.projections.ports import Listing, ProxyUnavailable


class Counting:
    """A proxy whose listing says how many were begun; each takes `seconds`."""

    name = "a"

    def __init__(self, seconds=1.0):
        self.seconds = seconds
        self.begun = 0
        self.running = 0
        self.most = 0
        self.error = None

    async def list(self):
        self.begun += 1
        number = self.begun
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return Listing((), str(number))


async def never():
    return None


@on_virtual_time
async def test_those_who_ask_meanwhile_share_the_next_listing():
    proxy = Counting()
    reader = Reader(proxy, LoopClock(), 5)
    first = asyncio.create_task(reader.fresh())
    await asyncio.sleep(0.5)
    later = [asyncio.create_task(reader.fresh()) for _ in range(10)]
    assert (await first).listing.version == "1"
    assert {(await seen).listing.version for seen in later} == {"2"}
    assert (proxy.begun, proxy.most) == (2, 1)


@on_virtual_time
async def test_a_listing_begins_after_it_was_asked_for():
    reader = Reader(Counting(), LoopClock(), 5)
    running = asyncio.create_task(reader.fresh())
    await asyncio.sleep(0.1)
    asked = reader.tick()
    assert (await reader.fresh()).began > asked > (await running).began


@on_virtual_time
async def test_who_gives_up_waiting_does_not_take_the_listing_from_the_others():
    reader = Reader(Counting(), LoopClock(), 5)
    one, other = asyncio.create_task(reader.fresh()), asyncio.create_task(reader.fresh())
    await asyncio.sleep(0.1)
    one.cancel()
    assert (await other).listing.version == "1"


@on_virtual_time
async def test_a_failed_listing_fails_for_who_asked_and_the_next_is_a_new_one():
    proxy = Counting()
    reader = Reader(proxy, LoopClock(), 5)
    proxy.error = ProxyUnavailable("no connection")
    with pytest.raises(ProxyUnavailable, match="no connection"):
        await reader.fresh()
    proxy.error = None
    assert (await reader.fresh()).listing.version == "2"


@on_virtual_time
async def test_a_listing_that_hangs_ends_with_its_deadline():
    reader = Reader(Counting(60), LoopClock(), 5)
    with pytest.raises(ProxyUnavailable, match="a: list: no answer within 5 s"):
        await reader.fresh()
    assert LoopClock().monotonic() == 5


@on_virtual_time
async def test_waiting_ends_when_it_is_seen_given_up_or_too_late():
    proxy = Counting(0)
    reader = Reader(proxy, LoopClock(), 5)
    assert await reader.until(lambda seen: seen.listing.version == "4", never, 10) is None
    assert proxy.begun == 4

    async def enough():
        return "no longer wanted" if proxy.begun == 6 else None

    assert await reader.until(lambda _: False, enough, 10) == "no longer wanted"
    assert await reader.until(lambda _: False, never, 3) == "not seen within 3 s"
    proxy.error = ProxyUnavailable("no connection")
    assert await reader.until(lambda _: True, never, 1) == "no connection"


@on_virtual_time
async def test_looks_become_rarer():
    proxy = Counting(0)
    reader = Reader(proxy, LoopClock(), 5)
    await reader.until(lambda _: False, never, 10)
    assert 40 < proxy.begun < 60


@on_virtual_time
async def test_closing_ends_what_is_under_way():
    proxy = Counting(60)
    reader = Reader(proxy, LoopClock(), 100)
    asking = [asyncio.create_task(reader.fresh())]
    await asyncio.sleep(1)
    asking.append(asyncio.create_task(reader.fresh()))
    await asyncio.sleep(1)
    await reader.close()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*asking, return_exceptions=True))
    assert proxy.running == 0


@pytest.mark.parametrize("error", [ValueError("bad"), TimeoutError(), OSError("reset"), ProxyUnavailable("gone")])
@on_virtual_time
async def test_whatever_goes_wrong_in_a_call_is_one_error(error):
    """[I10]."""

    async def call():
        raise error

    with pytest.raises(ProxyUnavailable):
        await bounded(call(), 5, "add")


@on_virtual_time
async def test_a_call_in_time_gives_its_answer():
    fleet = Fleet()
    assert (await bounded(fleet.proxy.list(), 5, "list")).entries == ()
