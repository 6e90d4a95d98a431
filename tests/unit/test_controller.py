"""The controller on virtual time: its life, what it writes down for the fleet, and what ends it."""

import asyncio

import pytest
from support.core import FLEET
from support.fleet import Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import LogFaults
from rollbook.events import (
    Draft,
    LeadershipTaken,
    MessageQuarantined,
    Registered,
    Registering,
    WorkerResumed,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.events.times import rfc3339
from rollbook.projections.log.authority import Deposed, LeadershipLost
from rollbook.projections.ports import AlreadyLed
from rollbook.projections.state.worker import Phase

GARBAGE = Draft(f"rollbook.{FLEET}.worker.{W}", "garbage", b"\xff")


def worker(fleet, name=W):
    return fleet.controller.projector.state.roster.workers[name]


# ---------------------------------------------------------------- one leader


@on_virtual_time
async def test_a_second_controller_that_may_not_stand_by_is_refused_and_the_first_goes_on():
    """[I7]."""
    fleet = Fleet()
    await fleet.start("one")
    second = fleet.make("two", standby=False)
    with pytest.raises(AlreadyLed, match="led by one since"):
        await second.run()
    await fleet.up()
    await fleet.registered()
    assert [fact.owner for fact in fleet.facts(LeadershipTaken)] == ["one"]


@on_virtual_time
async def test_a_controller_that_is_stopped_lets_the_next_one_lead():
    fleet = Fleet()
    await fleet.start("one")
    await fleet.stop()
    assert fleet.told[-1][0] == "leader.released"
    await fleet.start("two")
    assert [(fact.owner, fact.epoch) for fact in fleet.facts(LeadershipTaken)] == [("one", 1), ("two", 2)]


@on_virtual_time
async def test_losing_leadership_ends_one_that_may_not_stand_by():
    """[I7]."""
    fleet = Fleet()
    await fleet.start(standby=False)
    fleet.seat.vacate("its claim ran out")
    with pytest.raises(LeadershipLost, match="its claim ran out; this controller stands down"):
        await fleet.running
    await fleet.up()
    await asyncio.sleep(60)
    assert fleet.calls("add") == []


@on_virtual_time
async def test_another_writer_deposes_it_before_the_next_call():
    """[I7]: the intent is refused, so the call is not made."""
    fleet = Fleet()
    await fleet.start(standby=False)
    await fleet.until(lambda: fleet.controller.lanes["a"].idle)
    await fleet.say(LeadershipTaken(proxy="a", owner="another", epoch=9))
    await fleet.up()
    with pytest.raises(Deposed, match="another has taken over proxy 'a'"):
        await fleet.running
    assert fleet.calls("add") == []
    assert fleet.facts(Registering) == []
    assert fleet.seat.owner is None


@pytest.mark.parametrize("how", ["stop", "cancel"])
@on_virtual_time
async def test_it_stops_cleanly_in_the_middle_of_its_work(how):
    fleet = Fleet("a", "b")
    await fleet.start()
    for number in range(20):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.facts(Registered)) > 5)
    if how == "stop":
        await fleet.stop()
    else:
        fleet.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fleet.running
    written, calls = len(fleet.log.messages), len(fleet.proxy.calls)
    assert [event for event, _ in fleet.told][-2:] == ["snapshot.saved", "leader.released"]
    await asyncio.sleep(60)
    assert (len(fleet.log.messages), len(fleet.proxy.calls)) == (written, calls)


@pytest.mark.parametrize("relist", [False, True])
@on_virtual_time
async def test_it_hears_that_it_is_to_stop_while_it_has_not_begun(relist):
    """A restore, and the reading of a whole log, can take minutes."""
    fleet = Fleet()
    await fleet.say(*(WorkerUp(worker=W, incarnation=number) for number in (1, 2)))
    reading = asyncio.Event()

    async def for_ever(*_, **__):
        reading.set()
        await asyncio.Event().wait()
        yield

    fleet.snapshots.newest_first = fleet.log.read = for_ever
    fleet.controller = fleet.make(relist=relist)
    running = asyncio.create_task(fleet.controller.run())
    await reading.wait()
    fleet.controller.stop()
    await asyncio.wait_for(running, 1)
    assert fleet.controller.projector is None


@on_virtual_time
async def test_an_error_that_nobody_expects_ends_it():
    """Nothing dies in silence, and nobody waits for ever."""
    fleet = Fleet()
    await fleet.start()

    def broken(fact):
        if isinstance(fact, Registering):
            raise ZeroDivisionError("a bug")
        return []

    fleet.log.before = broken
    await fleet.up()
    with pytest.raises(ZeroDivisionError):
        await fleet.running
    assert fleet.seat.owner is None


# ---------------------------------------------------------------- without the log


@on_virtual_time
async def test_while_the_log_is_away_no_call_is_made_and_then_it_goes_on():
    """[I5]: what cannot be written down is not done."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    fleet.log.cut_off()
    fleet.proxy.restart()
    await asyncio.sleep(120)
    assert len(fleet.calls("add")) == 1
    assert not fleet.controller.projector.connected
    fleet.log.available = True
    await fleet.until(fleet.listed, 5)
    await fleet.registered()
    assert fleet.controller.projector.connected


@on_virtual_time
async def test_an_append_whose_answer_is_lost_is_written_once():
    fleet = Fleet()
    fleet.log.faults = LogFaults(lose_answer=0.5, refuse=0.3, store_late=0.1)
    await fleet.start()
    fleet.place()
    fleet.log.faults, bad = LogFaults(), fleet.log.faults
    await fleet.up()
    fleet.log.faults = bad
    await fleet.registered()
    await asyncio.sleep(60)
    assert [len(fleet.facts(kind)) for kind in (LeadershipTaken, Registering, Registered)] == [1, 1, 1]


# ---------------------------------------------------------------- quarantine


@on_virtual_time
async def test_each_unreadable_message_is_quarantined_once_also_over_restarts():
    """[I9]."""
    fleet = Fleet()
    await fleet.log.append([GARBAGE, Draft(f"rollbook.{FLEET}.quarantine", "more", b"{}")])
    await fleet.start("one")
    await fleet.until(lambda: fleet.facts(MessageQuarantined))
    await asyncio.sleep(30)
    fleet.kill()
    await fleet.start("two")
    await asyncio.sleep(30)
    await fleet.stop()
    await fleet.start("three")
    await asyncio.sleep(30)
    [quarantined] = fleet.facts(MessageQuarantined)
    assert (quarantined.sequence, quarantined.subject, quarantined.reason) == (1, GARBAGE.subject, "not_json")
    assert fleet.controller.projector.state.unreadable == {}


@on_virtual_time
async def test_a_crash_while_quarantining_writes_nothing_twice():
    """[I9]."""
    fleet = Fleet()
    await fleet.log.append([GARBAGE])
    fleet.log.before = lambda fact: fleet.kill() or [] if isinstance(fact, MessageQuarantined) else []
    fleet.launch("one")
    await fleet.until(lambda: fleet.facts(MessageQuarantined))
    fleet.log.before = None
    await fleet.start("two")
    await asyncio.sleep(30)
    assert len(fleet.facts(MessageQuarantined)) == 1


@on_virtual_time
async def test_a_quarantine_whose_answer_is_lost_is_written_once():
    """[I9]: it is looked for before it is tried again."""
    fleet = Fleet()
    await fleet.log.append([GARBAGE])
    appends = []

    def lose_the_answer(fact):
        if isinstance(fact, MessageQuarantined):
            appends.append(fact)
            fleet.log.faults = LogFaults(lose_answer=1, slowest_delivery=20)
        return []

    fleet.log.before = lose_the_answer
    await fleet.start()
    await fleet.until(lambda: appends)
    await asyncio.sleep(60)
    assert len(fleet.facts(MessageQuarantined)) == 1


@on_virtual_time
async def test_a_flood_of_garbage_is_quarantined_in_pieces_and_stops_nothing():
    """[I9]."""
    fleet = Fleet()
    await fleet.log.append([Draft(GARBAGE.subject, f"garbage-{number}", b"?") for number in range(250)])
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await asyncio.sleep(5)
    assert sorted(fact.sequence for fact in fleet.facts(MessageQuarantined)) == list(range(1, 251))


# ---------------------------------------------------------------- suspensions


@on_virtual_time
async def test_a_suspension_ends_when_its_time_is_over_and_the_worker_comes_back():
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    until = rfc3339(fleet.clock.now() + 30)
    await fleet.say(WorkerSuspended(worker=W, incarnation=1, reason="offload", until=until))
    await fleet.until(lambda: not fleet.listed(), 5)
    await asyncio.sleep(20)
    assert worker(fleet).suspension is not None
    await fleet.registered()
    [resumed] = fleet.facts(WorkerResumed)
    assert (resumed.incarnation, resumed.reason) == (1, "its time was over")
    assert fleet.clock.monotonic() == pytest.approx(30, abs=3)


@pytest.mark.parametrize("until", [None, "next week", "2030-01-01T00:00:00", "9999-12-31T23:59:59.999-23:59", ""])
@on_virtual_time
async def test_a_suspension_without_a_time_that_comes_stays(until):
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.say(WorkerSuspended(worker=W, incarnation=1, until=until))
    await asyncio.sleep(600)
    assert worker(fleet).suspension is not None
    assert not fleet.running.done()


@on_virtual_time
async def test_a_suspension_that_was_renewed_meanwhile_is_not_ended():
    """The resumption carries the sequence at which it was decided; what came since refuses it."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    soon, later = (rfc3339(fleet.clock.now() + seconds) for seconds in (10, 300))
    renewal = WorkerSuspended(worker=W, incarnation=1, until=later)
    once = [renewal]
    fleet.log.before = lambda fact: [once.pop() for _ in once[:]] if isinstance(fact, WorkerResumed) else []
    await fleet.say(WorkerSuspended(worker=W, incarnation=1, until=soon))
    await asyncio.sleep(100)
    assert once == []
    assert fleet.facts(WorkerResumed) == []
    assert worker(fleet).suspension.until == later
    assert worker(fleet).phase is Phase.SERVING


@pytest.mark.parametrize("noisy", ["quarantine", "another sleeper"])
@on_virtual_time
async def test_i9_who_writes_without_end_where_the_leader_wants_to_keeps_nobody_asleep(noisy):
    """Every fact of the leader's about it is refused, because something has come in between."""
    fleet = Fleet()

    def meanwhile(fact):
        if isinstance(fact, MessageQuarantined) and noisy == "quarantine":
            return [MessageQuarantined(sequence=999, subject="x", reason="empty")]
        if isinstance(fact, WorkerResumed) and fact.worker == W and noisy != "quarantine":
            return [WorkerSuspected(worker=W, incarnation=1)]
        return []

    await fleet.start()
    await fleet.log.append([GARBAGE])
    fleet.log.before = meanwhile
    other = "rollout-1-0"
    for number, name in enumerate((W, other)):
        await fleet.up(name, port=8000 + number)
        await fleet.say(WorkerSuspended(worker=name, incarnation=1, ttl=10.0))
    await fleet.until(lambda: [fact.worker for fact in fleet.facts(WorkerResumed)][-1:] == [other], 30)
    assert worker(fleet, other).suspension is None
