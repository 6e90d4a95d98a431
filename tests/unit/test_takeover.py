"""[I7] One writer on virtual time: standing by, taking over, leases that end, and a leader that wakes up too late."""

import asyncio
import math

import pytest
from support.core import FLEET
from support.fleet import NEVER, Fleet, W, on_virtual_time

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.faults import LogFaults, ProxyFaults
from rollbook.adapters.memory.leadership import Seat
from rollbook.events import LeadershipTaken, Registered, Registering, RegistrationFailed
from rollbook.projections.log.projector import LogRewound

LEASE = 5.0
DEADLINE = 3.0
CHANGES = ("add", "remove", "drain")


class Fleets(Fleet):
    """A fleet whose leadership is a lease, and who called its proxies and when."""

    def __init__(self, *proxies, **paces):
        super().__init__(*proxies, **({"call_deadline": DEADLINE} | paces))
        self.seat = Seat(FLEET, LEASE)
        self.changes = []
        for proxy in self.proxies.values():
            proxy.on_call = self.called

    def called(self, verb, what):
        process = virtual.current()
        if process is not None and verb in CHANGES:
            self.changes.append((process.name, verb, self.clock.monotonic()))

    async def second(self, owner="two"):
        """Another controller, which stands by; the first one's parts."""
        first = self.controller, self.process, self.running
        self.launch(owner)
        await self.until(lambda: self.controller.led_by is not None)
        return first

    async def leads(self, controller):
        await self.until(controller.started.is_set)

    def taken(self):
        """(owner, epoch) of every takeover of the first proxy."""
        return [(fact.owner, fact.epoch) for fact in self.facts(LeadershipTaken) if fact.proxy == self.proxy.name]

    def words(self, event):
        return [keys for told, keys in self.told if told == event]


# ---------------------------------------------------------------- standing by


@on_virtual_time
async def test_a_second_controller_stands_by_with_a_warm_roster_and_says_so():
    fleet = Fleets()
    await fleet.start("one")
    await fleet.second()
    await fleet.up()
    await fleet.until(fleet.listed)
    await asyncio.sleep(10 * LEASE)
    assert [keys["led_by"] for keys in fleet.words("controller.standing_by")] == ["one"]
    two = fleet.controller
    assert two.led_by == "one"
    assert two.leading is None
    assert two.lanes == {}
    assert two.projector.state.sequence == len(fleet.log.messages)
    assert W in two.projector.state.roster.workers
    assert {who for who, _, _ in fleet.changes} == {"one"}
    assert fleet.taken() == [("one", 1)]


@on_virtual_time
async def test_after_a_clean_stop_it_acts_at_once():
    fleet = Fleets()
    await fleet.start("one")
    one, _, running = await fleet.second()
    one.stop()
    await running
    began = fleet.clock.monotonic()
    await fleet.leads(fleet.controller)
    assert fleet.clock.monotonic() - began < LEASE / 10
    await fleet.up()
    await fleet.registered()
    assert fleet.taken() == [("one", 1), ("two", 2)]
    assert [who for who, _, _ in fleet.changes] == ["two"]


@on_virtual_time
async def test_after_a_kill_it_acts_when_the_lease_has_ended():
    fleet = Fleets()
    await fleet.start("one")
    _, process, _ = await fleet.second()
    await asyncio.sleep(12.3)
    process.kill()
    began = fleet.clock.monotonic()
    await fleet.leads(fleet.controller)
    assert 0 < fleet.clock.monotonic() - began <= LEASE + 0.1


@on_virtual_time
async def test_of_several_that_stand_by_one_leads_at_a_time():
    fleet = Fleets()
    controllers = []
    for number in range(5):
        fleet.launch(f"owner-{number}")
        controllers.append((fleet.controller, fleet.process))
    for left in range(5, 0, -1):
        await fleet.until(lambda: any(one.started.is_set() for one, _ in controllers))
        [leader] = [each for each in controllers if each[0].started.is_set()]
        assert len(controllers) == left
        leader[1].kill()
        controllers.remove(leader)
    epochs = [epoch for _, epoch in fleet.taken()]
    assert epochs == sorted(set(epochs))
    assert len(epochs) == 5


@on_virtual_time
async def test_one_that_stands_by_can_be_stopped():
    fleet = Fleets()
    await fleet.start("one")
    await fleet.second()
    await fleet.stop()
    assert fleet.seat.owner == "one"
    assert not fleet.words("leader.released")


@on_virtual_time
async def test_a_log_that_lost_its_tail_ends_one_that_stands_by():
    fleet = Fleets()
    await fleet.start("one")
    await fleet.second()
    await fleet.up()
    await asyncio.sleep(1)
    fleet.log.lose_tail(1)
    with pytest.raises(LogRewound):
        await fleet.running


# ---------------------------------------------------------------- the lease


@on_virtual_time
async def test_a_lease_that_could_not_be_renewed_stops_the_lanes_and_the_controller_leads_again_afterwards():
    fleet = Fleets()
    controller = await fleet.start("one")
    await fleet.until(lambda: controller.lanes["a"].idle)
    fleet.seat.available = False
    await fleet.until(lambda: not controller.started.is_set())
    [lost] = fleet.words("leader.lost")
    assert "could not be renewed within 5 s; this controller stands down" in lost["reason"]
    await fleet.up()
    await asyncio.sleep(30)
    assert fleet.changes == []
    assert not fleet.running.done()
    fleet.seat.available = True
    await fleet.registered()
    assert fleet.taken() == [("one", 1), ("one", 2)]


@on_virtual_time
async def test_no_call_begins_with_less_than_its_deadline_left():
    fleet = Fleets()
    controller = await fleet.start("one")
    await fleet.until(lambda: controller.lanes["a"].idle)
    fleet.seat.available = False
    await asyncio.sleep(LEASE - DEADLINE + 0.5)
    await fleet.up()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    assert "of the lease are left, and the call may take 3 s" in fleet.facts(RegistrationFailed)[0].reason
    assert fleet.changes == []
    fleet.seat.available = True
    await fleet.registered()
    assert fleet.taken() == [("one", 1)]


@on_virtual_time
async def test_a_new_leader_lists_again_one_call_deadline_later():
    """What its predecessor let slip has landed by then."""
    fleet = Fleets(resync=NEVER)
    await fleet.start("one")
    one, _, running = await fleet.second()
    await fleet.up()
    await fleet.until(fleet.listed)
    one.stop()
    await running
    await fleet.leads(fleet.controller)
    began = fleet.clock.monotonic()
    await asyncio.sleep(DEADLINE - 0.5)
    fleet.proxy.restart()
    await asyncio.sleep(0.4)
    assert fleet.listed() == []
    await fleet.until(fleet.listed, 2)
    assert fleet.clock.monotonic() - began < DEADLINE + 1
    fleet.proxy.restart()
    await asyncio.sleep(100)
    assert fleet.listed() == []


# ---------------------------------------------------------------- fencing


@on_virtual_time
async def test_epochs_in_the_log_rise_also_when_the_leases_were_deleted():
    fleet = Fleets()
    await fleet.start("one")
    await fleet.say(LeadershipTaken(proxy="elsewhere", owner="another", epoch=41))
    await fleet.stop()
    fleet.seat.epoch = 0
    await fleet.start("two")
    assert fleet.taken() == [("one", 1), ("two", 42)]
    assert fleet.words("leader.outranked") == [{"owner": "two", "epoch": 1, "highest": 41}]


@on_virtual_time
async def test_a_takeover_of_a_lower_epoch_deposes_nobody():
    fleet = Fleets()
    await fleet.start("one")
    await fleet.stop()
    await fleet.start("two")
    await fleet.say(LeadershipTaken(proxy="a", owner="one", epoch=1))
    await fleet.up()
    await fleet.registered()
    assert not fleet.words("leader.lost")
    assert fleet.taken() == [("one", 1), ("two", 2), ("one", 1)]
    assert fleet.controller.projector.state.ledger.look("a").owner == "two"


@on_virtual_time
async def test_one_that_is_deposed_stands_by():
    fleet = Fleets()
    controller = await fleet.start("one")
    await fleet.until(lambda: controller.lanes["a"].idle)
    await fleet.say(LeadershipTaken(proxy="a", owner="another", epoch=7))
    await fleet.up()
    await fleet.until(lambda: fleet.words("leader.lost"))
    assert "another has taken over proxy 'a'" in fleet.words("leader.lost")[0]["reason"]
    await fleet.registered()
    assert fleet.taken() == [("one", 1), ("another", 7), ("one", 8)]


SLOW = LogFaults(slowest_append=0.05, slowest_delivery=0.02)
"""So that a step takes many rounds of the loop, and a stop falls between any two of them."""


async def stopped_in_the_middle(after, seconds):
    """A leader with work to do is stopped `after` seconds into it and wakes up `seconds` later; the fleet then."""
    fleet = Fleets("a", "b", resync=1.0)
    fleet.log.faults = SLOW
    for proxy in fleet.proxies.values():
        proxy.faults = ProxyFaults(slowest_call=0.03)
    await fleet.start("one")
    one = await fleet.second()
    for number in range(6):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await asyncio.sleep(after)
    one[1].pause()
    await asyncio.sleep(seconds)
    if seconds > 2 * LEASE:
        assert fleet.controller.started.is_set()
    taken = len(fleet.log.messages)
    changed = len(fleet.changes)
    one[1].resume()
    await asyncio.sleep(60)
    return fleet, one, taken, changed


@pytest.mark.parametrize("moment", range(60))
def test_a_leader_that_wakes_after_its_lease_calls_nobody_writes_nothing_and_stands_by(moment):
    async def main():
        fleet, (one, process, running), taken, changed = await stopped_in_the_middle(moment * 0.011, 3 * LEASE)
        assert process.name not in {who for who, _, _ in fleet.changes[changed:]}
        writers = {recorded.source for recorded in fleet.recorded() if recorded.sequence > taken}
        assert f"rollbook://{FLEET}/one" not in writers
        assert not running.done()
        assert one.led_by == "two"
        for name in fleet.proxies:
            assert len(fleet.listed(name)) == 6
        fleet.process.kill()
        await fleet.leads(one)

    virtual.run(main())


@pytest.mark.parametrize("seconds", [LEASE - 2, LEASE - 1, LEASE - 0.2, LEASE, LEASE + 0.1, LEASE + 0.3, LEASE + 1])
@pytest.mark.parametrize("moment", range(0, 60, 7))
def test_about_the_end_of_the_lease_two_never_act_together(moment, seconds):
    async def main():
        fleet, _, _, _ = await stopped_in_the_middle(moment * 0.011, seconds)
        first_of_two = next((at for who, _, at in fleet.changes if who == "two"), math.inf)
        assert all(at < first_of_two for who, _, at in fleet.changes if who == "one")
        seen = ""
        for recorded in fleet.recorded():
            if isinstance(recorded.fact, LeadershipTaken | Registering | Registered) and recorded.fact.proxy == "a":
                if isinstance(recorded.fact, LeadershipTaken):
                    seen = recorded.source
                assert recorded.source == seen
        for name in fleet.proxies:
            assert len(fleet.listed(name)) == 6

    virtual.run(main())


# ---------------------------------------------------------------- companions


@on_virtual_time
async def test_companions_live_as_long_as_leadership():
    fleet = Fleets()
    log = []

    async def companion(leading):
        log.append(("began", leading.epoch, sorted(leading.lanes), leading.owner))
        try:
            await asyncio.Event().wait()
        finally:
            log.append(("ended", leading.epoch))

    async def brief(leading):
        log.append(("brief", leading.epoch))

    fleet.companions = [companion, brief]
    controller = await fleet.start("one")
    assert controller.leading is not None
    await asyncio.sleep(1)
    fleet.seat.vacate("taken away")
    await asyncio.sleep(1)
    await fleet.leads(controller)
    await asyncio.sleep(1)
    await fleet.stop()
    first = [("began", 1, ["a"], "one"), ("brief", 1), ("ended", 1)]
    assert log == [*first, ("began", 2, ["a"], "one"), ("brief", 2), ("ended", 2)]


@on_virtual_time
async def test_a_companion_that_fails_ends_the_controller():
    fleet = Fleets()

    async def companion(leading):
        raise ZeroDivisionError("a bug")

    fleet.companions = [companion]
    fleet.launch("one")
    with pytest.raises(ZeroDivisionError):
        await fleet.running
    assert fleet.seat.owner is None
