"""[I11] Whose an entry is: foreign ones are left alone, unless the proxy is to hold no others."""

import asyncio

import msgspec
import pytest
from support.fleet import BY, Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.adapters.memory.proxy import AS_SGLANG, MemoryProxy
from rollbook.events import (
    DriftFound,
    ForeignFact,
    ForeignRemovalFailed,
    ForeignRemoved,
    ForeignRemoving,
    ReconcileHeld,
    ReconcileReleased,
)
from rollbook.projections.ports import Capabilities

EXCLUSIVE = {"exclusive": True}
STRANGER = "http://10.9.9.9:1"
KINDS = pytest.mark.parametrize("capabilities", [AS_SGLANG, Capabilities(tag=False)])


def foreign_facts(fleet):
    return [recorded.fact for recorded in fleet.recorded() if isinstance(recorded.fact, ForeignFact)]


@KINDS
@on_virtual_time
async def test_strangers_are_removed_with_intent_and_outcome(capabilities):
    """[I5]."""
    fleet = Fleet(capabilities=capabilities, served=EXCLUSIVE)
    before_call = []
    await fleet.start()
    url = await fleet.up()
    await fleet.until(lambda: fleet.proxy.listed)
    await asyncio.sleep(1)
    fleet.proxy.on_call = lambda verb, _: before_call.append((verb, type(fleet.recorded()[-1].fact)))
    fleet.proxy.put(STRANGER, fleet="other", worker="rollout-9-0", incarnation=3)
    await fleet.until(lambda: fleet.facts(ForeignRemoved), 10)
    assert [entry.url for entry in fleet.proxy.listed] == [url]
    intent, outcome = foreign_facts(fleet)
    sequence = next(
        recorded.sequence
        for recorded in fleet.recorded()
        if recorded.fact is not None and isinstance(recorded.fact, ForeignRemoving)
    )
    assert intent == ForeignRemoving(proxy="a", url=STRANGER, fleet="other", worker="rollout-9-0", incarnation=3)
    assert outcome == ForeignRemoved(proxy="a", url=STRANGER, cause=sequence)
    assert before_call == [("remove", ForeignRemoving)]
    await asyncio.sleep(60)
    assert len(foreign_facts(fleet)) == 2


@KINDS
@on_virtual_time
async def test_a_stranger_at_our_workers_url_makes_way_for_it(capabilities):
    fleet = Fleet(capabilities=capabilities, served=EXCLUSIVE)
    url = fleet.place()
    fleet.proxy.put(url)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.calls("add"), 30)
    await fleet.until(lambda: fleet.controller.lanes["a"].idle)
    assert [entry.url for entry in fleet.proxy.listed] == [url]


@on_virtual_time
async def test_a_stranger_that_stays_is_tried_again_on_its_own_schedule_and_holds_nothing_up():
    fleet = Fleet(served=EXCLUSIVE, confirm_deadline=2)
    await fleet.start()
    fleet.proxy.faults = ProxyFaults(lie=1)
    fleet.proxy.put(STRANGER)
    await fleet.until(lambda: len(fleet.facts(ForeignRemovalFailed)) == 3, 120)
    assert fleet.facts(ForeignRemovalFailed)[0].reason == "not seen within 2 s"
    fleet.proxy.faults = ProxyFaults()
    await fleet.up()
    await fleet.registered()
    await fleet.until(lambda: fleet.facts(ForeignRemoved), 60)


@on_virtual_time
async def test_an_operators_hold_stops_these_calls_too():
    fleet = Fleet(served=EXCLUSIVE)
    await fleet.start()
    await fleet.say(ReconcileHeld(**BY))
    await asyncio.sleep(1)
    fleet.proxy.put(STRANGER)
    await asyncio.sleep(60)
    assert foreign_facts(fleet) == []
    await fleet.say(ReconcileReleased(**BY))
    await fleet.until(lambda: not fleet.proxy.listed, 30)


@on_virtual_time
async def test_many_and_very_long_strangers_stop_nothing():
    """[I10]."""
    fleet = Fleet(served=EXCLUSIVE)
    await fleet.start()
    for number in range(300):
        fleet.proxy.put(f"http://10.9.{number // 200}.{number % 200}:1", fleet="x" * 100_000, worker="y" * 100_000)
    endless = fleet.proxy.put("http://h/" + "x" * 100_000, incarnation=2**60)
    await fleet.up()
    await fleet.registered()
    await fleet.until(lambda: len(fleet.proxy.listed) == 2, 300)
    assert endless in fleet.proxy.listed


@on_virtual_time
async def test_what_cannot_be_removed_is_only_reported():
    fleet = Fleet(capabilities=msgspec.structs.replace(AS_SGLANG, remove=False), served=EXCLUSIVE)
    await fleet.start()
    fleet.proxy.put(STRANGER)
    await fleet.until(lambda: fleet.facts(DriftFound), 10)
    await asyncio.sleep(60)
    assert foreign_facts(fleet) == []
    assert fleet.facts(DriftFound)[-1].foreign == (STRANGER,)


@on_virtual_time
async def test_two_fleets_on_one_router_never_touch_each_other():
    """Each sees the other's entries as foreign, through deaths and restarts."""
    one, two = Fleet(), Fleet()
    router = one.proxy
    others = [router.put(f"http://10.8.0.{number}:1", fleet="g", worker=W, incarnation=number) for number in (1, 2)]
    two.proxies = {"a": MemoryProxy("a", "g", two.clock, two.rng)}
    await one.start()
    await one.up()
    await one.registered()
    await one.down()
    await one.up(incarnation=2)
    await one.registered(incarnation=2)
    await asyncio.sleep(60)
    assert [entry for entry in router.listed if entry.fleet == "g"] == others
    assert one.facts(DriftFound)[-1].foreign == tuple(sorted(entry.url for entry in others))
    assert {call.what.fleet for call in one.calls("remove")} == {"f"}
