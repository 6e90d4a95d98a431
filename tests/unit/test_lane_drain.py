"""Before somebody's planned removal, running requests may end: for as long as it was said, and not if it is dead."""

import asyncio

import msgspec
import pytest
from support.fleet import BY, NEVER, Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.events import (
    Deregistered,
    Deregistering,
    DrainRequested,
    FleetEnded,
    ReconcileHeld,
    WorkerCordoned,
    WorkerDown,
    WorkerDraining,
    WorkerRetired,
    WorkerSuspended,
    WorkerUncordoned,
)
from rollbook.projections.ports import Failed, ProxyUnavailable

DRAINS = msgspec.structs.replace(AS_SGLANG, drain=True)


async def busy(*, running=3, served=None, **paces):
    """A fleet of one worker that is registered and at work."""
    fleet = Fleet(capabilities=DRAINS, served=served or {}, **paces)
    fleet.proxy.faults = ProxyFaults(longest_request=NEVER)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    fleet.proxy.load(fleet.proxy.listed[0], running)
    return fleet


def changes(fleet):
    return [call.verb for call in fleet.proxy.calls if call.verb in {"drain", "remove"}]


@pytest.mark.parametrize(
    "fact",
    [
        WorkerDraining(worker=W, incarnation=1),
        DrainRequested(worker=W, **BY),
        WorkerCordoned(worker=W, **BY),
        WorkerSuspended(worker=W, incarnation=1),
        WorkerRetired(worker=W, incarnation=1),
        WorkerDown(worker=W, incarnation=1, evidence="planned"),
        WorkerDown(worker=W, incarnation=1, evidence="operator"),
        FleetEnded(run_id="one"),
    ],
)
@on_virtual_time
async def test_what_is_meant_to_go_goes_when_its_requests_have_ended(fact):
    fleet = await busy()
    await fleet.say(fact)
    await fleet.until(lambda: fleet.calls("drain"))
    assert [told.drain_seconds for told in fleet.facts(Deregistering)] == [30.0]
    await asyncio.sleep(20)
    assert changes(fleet) == ["drain"]
    fleet.proxy.load(fleet.proxy.listed[0], 0)
    await fleet.until(lambda: fleet.facts(Deregistered), 2)
    assert changes(fleet) == ["drain", "remove"]


@pytest.mark.parametrize(
    ("fact", "served", "seconds"),
    [
        (WorkerCordoned(worker=W, **BY), {}, 30),
        (WorkerCordoned(worker=W, **BY), {"drain_deadline": 5.0}, 5),
        (DrainRequested(worker=W, **BY, deadline_seconds=12.0), {}, 12),
        (WorkerDraining(worker=W, incarnation=1, deadline_seconds=7.0), {}, 7),
        (DrainRequested(worker=W, **BY, deadline_seconds=0.0), {}, 0),
        (WorkerCordoned(worker=W, **BY), {"drain_deadline": 0.0}, 0),
    ],
)
@on_virtual_time
async def test_it_is_waited_for_as_long_as_was_said(fact, served, seconds):
    fleet = await busy(served=served)
    await fleet.say(fact)
    began = fleet.clock.monotonic()
    await fleet.until(lambda: fleet.facts(Deregistered))
    assert seconds <= fleet.clock.monotonic() - began <= seconds + 1
    assert changes(fleet) == (["drain", "remove"] if seconds else ["remove"])


@pytest.mark.parametrize("evidence", ["exited", "actor_dead", "refused", "timeout"])
@on_virtual_time
async def test_who_is_dead_is_not_drained(evidence):
    fleet = await busy()
    await fleet.down(evidence=evidence)
    await fleet.until(lambda: fleet.facts(Deregistered), 2)
    assert changes(fleet) == ["remove"]


@on_virtual_time
async def test_who_dies_while_it_drains_is_removed_at_once():
    fleet = await busy()
    await fleet.say(WorkerDraining(worker=W, incarnation=1))
    await fleet.until(lambda: fleet.calls("drain"))
    await asyncio.sleep(3)
    await fleet.down()
    await fleet.until(lambda: fleet.facts(Deregistered), 1)


@on_virtual_time
async def test_drains_hold_back_no_other_removal():
    fleet = Fleet(capabilities=DRAINS, removals_in_flight=2)
    fleet.proxy.faults = ProxyFaults(longest_request=NEVER)
    await fleet.start()
    names = await fleet.pool_up(20)
    for entry in fleet.proxy.listed:
        fleet.proxy.load(entry, 1)
    await fleet.say(*(WorkerCordoned(worker=name, **BY) for name in names[:18]))
    await fleet.until(lambda: len(fleet.calls("drain")) == 18, 2)
    await fleet.down(names[18])
    await fleet.down(names[19])
    await fleet.until(lambda: len(fleet.facts(Deregistered)) == 2, 1)
    assert len(fleet.proxy.listed) == 18


@on_virtual_time
async def test_who_is_wanted_again_while_it_drains_is_put_back_into_rotation():
    """[I1]: an entry that gets no requests is no registration."""
    fleet = await busy()
    await fleet.say(WorkerCordoned(worker=W, **BY))
    await fleet.until(lambda: fleet.calls("drain"))
    await fleet.say(WorkerUncordoned(worker=W, **BY))
    await fleet.until(lambda: [entry.in_rotation for entry in fleet.proxy.listed] == [True], 10)
    await fleet.registered()
    assert len(fleet.calls("add")) == 2


@on_virtual_time
async def test_a_hold_while_it_drains_stops_the_removal():
    fleet = await busy(served={"drain_deadline": 5.0})
    await fleet.say(WorkerCordoned(worker=W, **BY))
    await fleet.until(lambda: fleet.calls("drain"))
    await fleet.say(ReconcileHeld(**BY))
    await asyncio.sleep(60)
    assert changes(fleet) == ["drain"]


@on_virtual_time
async def test_a_controller_that_dies_while_it_drains_leaves_the_rest_to_the_next():
    fleet = await busy()
    await fleet.say(WorkerCordoned(worker=W, **BY))
    await fleet.until(lambda: fleet.calls("drain"))
    await fleet.stop()
    await fleet.start("two")
    fleet.proxy.load(fleet.proxy.listed[0], 0)
    await fleet.until(lambda: not fleet.proxy.listed, 10)
    await fleet.until(lambda: fleet.controller.lanes["a"].idle)


@on_virtual_time
async def test_a_drain_that_fails_is_no_reason_to_keep_it():
    fleet = await busy()

    async def no(entry):
        return Failed("no such backend")

    fleet.proxy.drain = no
    await fleet.say(WorkerCordoned(worker=W, **BY))
    await fleet.until(lambda: not fleet.proxy.listed, 2)


@on_virtual_time
async def test_a_drain_whose_answer_is_lost_is_waited_for_all_the_same():
    """The router may have begun it; and if it has not, the requests that run are to have their time nevertheless."""
    fleet = await busy()

    async def lost(entry):
        raise ProxyUnavailable("the answer was lost")

    fleet.proxy.drain = lost
    await fleet.say(WorkerCordoned(worker=W, **BY))
    await asyncio.sleep(20)
    assert changes(fleet) == []
    fleet.proxy.load(fleet.proxy.listed[0], 0)
    await fleet.until(lambda: fleet.facts(Deregistered), 2)
