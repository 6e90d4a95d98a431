"""A worker that is at another address in the same life: the entry follows it, and never for a bad address."""

import asyncio

from support.fleet import Fleet, W, on_virtual_time

from rollbook.events import Deregistering, WeightsLoaded, WeightsPublished

RESYNC = 5.0


@on_virtual_time
async def test_i6_an_entry_follows_its_worker_to_another_address():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    new = fleet.place(port=9000)
    await asyncio.sleep(2 * RESYNC)
    assert [entry.url for entry in fleet.proxy.listed] == [new]
    assert [fact.reason for fact in fleet.facts(Deregistering)] == [f"it is at {new} now"]
    await asyncio.sleep(4 * RESYNC)
    assert len(fleet.facts(Deregistering)) == 1


@on_virtual_time
async def test_i4_it_stays_as_long_as_the_new_address_cannot_serve():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    old = await fleet.up()
    await fleet.registered()
    new = fleet.place(port=9000)
    fleet.readiness.close(new)
    await asyncio.sleep(4 * RESYNC)
    assert [entry.url for entry in fleet.proxy.listed] == [old]
    assert fleet.facts(Deregistering) == []


@on_virtual_time
async def test_i4_a_provider_that_does_not_know_moves_nobody():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    old = await fleet.up()
    await fleet.registered()
    fleet.provider.forget(W)
    await asyncio.sleep(2 * RESYNC)
    fleet.place(incarnation=7, port=9000)
    await asyncio.sleep(2 * RESYNC)
    assert [entry.url for entry in fleet.proxy.listed] == [old]


@on_virtual_time
async def test_i4_nobody_moves_to_the_url_of_a_newer_life():
    """It would lose the entry that it has and get no other."""
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    old = await fleet.up()
    await fleet.registered()
    await fleet.up("rollout-1-0", port=8001)
    await fleet.registered("rollout-1-0")
    fleet.place(port=8001)
    await asyncio.sleep(4 * RESYNC)
    assert sorted(entry.url for entry in fleet.proxy.listed) == [old, "http://10.0.0.1:8001"]
    assert fleet.facts(Deregistering) == []


@on_virtual_time
async def test_i4_nobody_moves_to_the_url_of_a_strangers_entry():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    old = await fleet.up()
    await fleet.registered()
    stranger = fleet.proxy.put("http://10.0.0.1:8001")
    fleet.place(port=8001)
    await asyncio.sleep(4 * RESYNC)
    assert sorted(entry.url for entry in fleet.proxy.listed) == [old, stranger.url]


@on_virtual_time
async def test_two_workers_that_change_places_both_arrive():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    for number, port in ((0, 8000), (1, 8001)):
        await fleet.up(f"rollout-{number}-0", port=port)
        await fleet.registered(f"rollout-{number}-0")
    fleet.place("rollout-0-0", port=8001)
    fleet.place("rollout-1-0", port=8000)
    wanted = [("rollout-0-0", 1, "http://10.0.0.1:8001"), ("rollout-1-0", 1, "http://10.0.0.1:8000")]
    await fleet.until(lambda: fleet.listed() == wanted, 120)


@on_virtual_time
async def test_whoever_would_not_be_added_now_does_not_move_and_writes_nothing():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    await fleet.say(WeightsLoaded(worker=W, incarnation=1, version=1))
    old = await fleet.up()
    await fleet.registered()
    await fleet.say(WeightsPublished(pool="rollout", version=2))
    fleet.place(port=9000)
    before = len(fleet.recorded())
    await asyncio.sleep(10 * RESYNC)
    assert [entry.url for entry in fleet.proxy.listed] == [old]
    assert len(fleet.recorded()) == before


@on_virtual_time
async def test_a_failure_while_looking_for_moves_ends_the_lane_and_is_told():
    fleet = Fleet(resync=RESYNC)
    await fleet.start()
    await fleet.up()
    await fleet.registered()

    def broken(url):
        raise RuntimeError("no such thing as a URL")

    fleet.proxy.canonical_url = broken
    await asyncio.sleep(2 * RESYNC)
    assert isinstance(fleet.running.exception(), RuntimeError)
