"""A worker that is at another address in the same life: the entry follows it, and never for a bad address."""

import asyncio

from support.fleet import Fleet, W, on_virtual_time

from rollbook.events import Deregistering

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
