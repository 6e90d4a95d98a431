"""Who has a URL, when several want it or somebody else has it."""

import asyncio

import msgspec
import pytest
from support.fleet import NEVER, Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.events import (
    Deregistered,
    Deregistering,
    Registering,
    RegistrationFact,
    RegistrationFailed,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.deciding.gates import Gate
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Remove
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.lanes.outcomes import RETRY
from rollbook.projections.ports import Entry, Listing

OLD, NEW = W, "rollout-1-0"


@pytest.mark.parametrize("seconds", [0.0, 0.3])
@on_virtual_time
async def test_the_newest_life_gets_the_url_and_keeps_it(seconds):
    """[I3]: nobody said that the older worker is gone, and the provider gives both the same address."""
    fleet = Fleet()
    fleet.proxy.faults = ProxyFaults(slowest_call=seconds, slowest_job=seconds)
    await fleet.start()
    url = await fleet.up(OLD)
    await fleet.registered(OLD)
    await fleet.up(NEW)
    await fleet.registered(NEW)
    adds = len(fleet.calls("add"))
    await asyncio.sleep(300)
    assert fleet.listed() == [(NEW, 1, url)]
    assert len(fleet.calls("add")) == adds == 2
    held = fleet.controller.lanes["a"].held
    assert (held[OLD].gate, held[OLD].reason) == (Gate.ADDRESS_FREE, f"{url} belongs to {NEW}, whose life 1 is newer")


@on_virtual_time
async def test_an_older_worker_does_not_take_a_url_that_a_newer_one_waits_for():
    """[I3]: the newer life is not ready yet, when the entry of the older one is gone already."""
    fleet = Fleet()
    await fleet.start()
    url = await fleet.up(OLD)
    await fleet.registered(OLD)
    removed = asyncio.Event()
    fleet.proxy.on_effect = lambda effect, _: removed.set() if effect == "removed" else None
    await fleet.up(NEW)
    await removed.wait()
    fleet.proxy.available = False
    await asyncio.sleep(30)
    fleet.proxy.available = True
    await fleet.registered(NEW)
    await asyncio.sleep(60)
    assert fleet.listed() == [(NEW, 1, url)]
    assert [call.what.worker for call in fleet.calls("add")].count(OLD) == 1


@on_virtual_time
async def test_one_change_of_a_url_at_a_time():
    """[I3]: both come up at once, and the router is slow."""
    fleet = Fleet(confirm_deadline=60)
    fleet.proxy.faults = ProxyFaults(slowest_job=4)
    url = await fleet.up(OLD)
    await fleet.up(NEW)
    await fleet.start()
    await fleet.registered(NEW)
    await asyncio.sleep(60)
    assert fleet.listed() == [(NEW, 1, url)]
    kinds = [type(recorded.fact) for recorded in fleet.recorded() if isinstance(recorded.fact, RegistrationFact)]
    intents = {Registering, Deregistering}
    assert [kind in intents for kind in kinds] == [True, False] * (len(kinds) // 2)


@on_virtual_time
async def test_the_address_is_the_one_at_the_moment_of_the_call():
    """[I6]: it moved while it waited for its turn."""
    fleet = Fleet(capabilities=msgspec.structs.replace(AS_SGLANG, adds_in_flight=1))
    fleet.proxy.faults = ProxyFaults(slowest_job=3)
    await fleet.up(OLD, port=1)
    await fleet.up(NEW, port=2)
    await fleet.start()
    await fleet.until(lambda: fleet.calls("add"))
    await asyncio.sleep(0.1)
    moved = fleet.place(NEW, port=3)
    await fleet.registered(NEW)
    assert [call.what.url for call in fleet.calls("add")] == ["http://10.0.0.1:1", moved]


@on_virtual_time
async def test_what_belongs_here_stays_when_the_newer_life_is_gone_before_the_call():
    """[I4]: it falls between the decision and the call."""
    fleet = Fleet()
    await fleet.start()
    url = await fleet.up(OLD)
    await fleet.registered(OLD)
    once = [WorkerDown(worker=NEW, incarnation=1, evidence="exited")]
    fleet.log.before = lambda fact: [once.pop() for _ in once[:]] if isinstance(fact, Deregistering) else []
    await fleet.up(NEW)
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    await asyncio.sleep(60)
    assert once == []
    assert fleet.facts(RegistrationFailed)[0].reason == f"not called: {NEW} does not need its url any more"
    assert fleet.calls("remove") == []
    assert fleet.listed() == [(OLD, 1, url)]
    await fleet.registered(OLD)


@on_virtual_time
async def test_the_url_is_free_again_when_the_newer_life_is_gone_or_elsewhere():
    fleet = Fleet()
    await fleet.start()
    url = await fleet.up(OLD)
    await fleet.registered(OLD)
    await fleet.up(NEW)
    await fleet.registered(NEW)
    await fleet.down(NEW)
    await fleet.registered(OLD)
    other = await fleet.up(NEW, incarnation=2, port=9000)
    await fleet.registered(NEW, 2)
    await asyncio.sleep(60)
    assert fleet.listed() == [(OLD, 1, url), (NEW, 2, other)]


@on_virtual_time
async def test_two_workers_that_swap_their_urls():
    fleet = Fleet()
    await fleet.start()
    await fleet.up(OLD, port=1)
    await fleet.up(NEW, port=2)
    await fleet.registered(OLD)
    await fleet.registered(NEW)
    fleet.place(OLD, 2, port=2)
    fleet.place(NEW, 2, port=1)
    await fleet.say(WorkerUp(worker=OLD, incarnation=2), WorkerUp(worker=NEW, incarnation=2))
    await fleet.registered(OLD, 2)
    await fleet.registered(NEW, 2)
    await asyncio.sleep(60)
    assert fleet.listed() == [(OLD, 2, "http://10.0.0.1:2"), (NEW, 2, "http://10.0.0.1:1")]


@on_virtual_time
async def test_somebody_elses_entry_is_left_alone_and_holds_the_worker_back():
    """[I11]."""
    fleet = Fleet()
    await fleet.start()
    url = fleet.place()
    stranger = fleet.proxy.put(url)
    await fleet.up()
    await fleet.until(lambda: W in fleet.controller.lanes["a"].held)
    await asyncio.sleep(60)
    held = fleet.controller.lanes["a"].held[W]
    assert (held.gate, held.reason) == (Gate.ADDRESS_FREE, f"{url} is listed by somebody else's entry")
    assert fleet.calls("add") + fleet.calls("remove") == []
    fleet.proxy.drop(stranger)
    await fleet.registered()
    assert fleet.controller.lanes["a"].held == {}


@on_virtual_time
async def test_another_fleets_entry_is_left_alone():
    """[I11]."""
    fleet = Fleet()
    fleet.proxy.put("http://10.9.9.9:1", fleet="g", worker=W, incarnation=1)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await fleet.down()
    await fleet.until(lambda: fleet.facts(Deregistered))
    assert fleet.listed() == [(W, 1, "http://10.9.9.9:1")]


@on_virtual_time
async def test_a_removal_is_not_made_on_a_listing_from_before_the_url_changed_hands():
    """[I3]: where a proxy knows its entries by URL only, it would take away the wrong one."""
    fleet = Fleet(resync=NEVER)
    await fleet.start()
    url = await fleet.up(NEW)
    await fleet.registered(NEW)
    steps = fleet.controller.lanes["a"]._flights._steps
    old = Entry(url=url, handle=url, fleet="f", worker=OLD, incarnation=1)
    seen, observed = Seen(0, Listing((old,))), Observed({}, (), {})
    outcome = await steps.carry_out(Remove(OLD, 1, old, "planned long ago"), seen, observed, again=False)
    assert outcome == RETRY
    assert fleet.calls("remove") == []


@on_virtual_time
async def test_a_duplicate_is_taken_away_and_one_entry_stays():
    """[I4]."""
    fleet = Fleet()
    await fleet.start()
    url = await fleet.up()
    await fleet.registered()
    fleet.proxy.put("http://10.9.9.9:1", fleet="f", worker=W, incarnation=1)
    await fleet.until(lambda: fleet.listed() == [(W, 1, url)])
    await asyncio.sleep(60)
    assert [entry.url for entry in (call.what for call in fleet.calls("remove"))] == ["http://10.9.9.9:1"]
    await fleet.registered()
