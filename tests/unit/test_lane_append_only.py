"""Proxies that only add (miles, slime): what cannot be removed is shown and not asked for, and never in the way."""

import asyncio

import msgspec
import pytest
from support.fleet import Fleet, W, on_virtual_time

from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.events import Registered, RegistrationFailed

OTHER = "rollout-1-0"
TAGGED = msgspec.structs.replace(AS_SGLANG, remove=False)
PLAIN = msgspec.structs.replace(TAGGED, tag=False, async_add=False)
BOTH = pytest.mark.parametrize("capabilities", [TAGGED, PLAIN])


def failures(fleet):
    return [(fact.worker, fact.incarnation, fact.action, fact.retryable) for fact in fleet.facts(RegistrationFailed)]


def told(fleet, worker=W):
    lives = fleet.controller.projector.state.ledger.look("a").registrations.get(worker, {})
    return {incarnation: str(life.told) for incarnation, life in lives.items()}


@BOTH
@on_virtual_time
async def test_a_dead_worker_stays_listed_and_is_written_down_once(capabilities):
    """Never retried for ever, not by the next controller either."""
    fleet = Fleet(capabilities=capabilities)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    await fleet.down()
    await asyncio.sleep(120)
    assert failures(fleet) == [(W, 1, "deregister", False)]
    assert told(fleet) == {1: "remove unsupported"}
    await fleet.stop()
    await fleet.start("two")
    await asyncio.sleep(120)
    assert len(failures(fleet)) == 1
    assert fleet.calls("remove") == []
    assert told(fleet) == {1: "remove unsupported"}


@BOTH
@on_virtual_time
async def test_the_next_life_on_the_same_url_takes_the_entry_over(capabilities):
    """[I1]: it is there already, and serves."""
    fleet = Fleet(capabilities=capabilities)
    await fleet.start()
    url = await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    await fleet.up(incarnation=2)
    await fleet.until(lambda: told(fleet) == {2: "registered"})
    await asyncio.sleep(120)
    assert told(fleet) == {2: "registered"}
    assert [entry.url for entry in fleet.proxy.listed] == [url]
    assert [fact.incarnation for fact in fleet.facts(Registered)] == [1, 2]
    assert fleet.calls("remove") == []


@BOTH
@on_virtual_time
async def test_another_worker_takes_over_the_url_of_a_dead_one_and_none_of_a_living_one(capabilities):
    """[I3]."""
    fleet = Fleet(capabilities=capabilities)
    await fleet.start()
    url = await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    await fleet.up(OTHER)
    await asyncio.sleep(60)
    assert told(fleet, OTHER) == {}
    assert fleet.controller.lanes["a"].held[OTHER].reason == f"{url} is listed for {W}, and the proxy cannot remove it"
    await fleet.down()
    await fleet.until(lambda: told(fleet, OTHER) == {1: "registered"})
    await asyncio.sleep(60)
    assert told(fleet) == {}


@on_virtual_time
async def test_a_worker_that_moved_is_added_where_it_is():
    fleet = Fleet(capabilities=PLAIN, resync=5)
    await fleet.start()
    old = await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    new = fleet.place(port=9000)
    await asyncio.sleep(60)
    assert [entry.url for entry in fleet.proxy.listed] == [old, new]
    assert len(fleet.calls("add")) == 2
    assert told(fleet) == {1: "registered"}


@BOTH
@on_virtual_time
async def test_a_worker_that_comes_back_in_the_same_life_is_registered_again(capabilities):
    fleet = Fleet(capabilities=capabilities)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    sequence = await fleet.down()
    await fleet.until(lambda: told(fleet) == {1: "remove unsupported"})
    await fleet.back(sequence)
    await fleet.until(lambda: told(fleet) == {1: "registered"})
