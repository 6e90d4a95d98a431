"""Starting again: after a crash with an intent open, from a snapshot, and with a log that is not what it was."""

import asyncio

import pytest
from support.core import CODEC
from support.fleet import BY, NEVER, Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import LogFaults, ProxyFaults
from rollbook.adapters.memory.log import MemoryLog
from rollbook.events import (
    Deregistered,
    Deregistering,
    Registered,
    Registering,
    RegistrationFact,
    WorkerCordoned,
    WorkerSuspected,
    WorkerUp,
)
from rollbook.projections.log.catchup import newest_state
from rollbook.projections.log.projector import LogRewound, Projector
from rollbook.projections.ports import HistoryHole
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told


def state(fleet):
    return fleet.controller.projector.state


def folded_anew(log):
    """The log from its first message on."""
    found = State()
    for stored in log.messages:
        found.apply(stored, CODEC)
    return found


def registrations(fleet):
    return [(type(fact), fact.incarnation) for fact in fleet.facts(RegistrationFact)]


# ---------------------------------------------------------------- crashes with an intent open


@on_virtual_time
async def test_an_add_that_was_done_when_the_controller_died_is_adopted():
    """[I5]: the entry is there, the outcome is written, no call is made."""
    fleet = Fleet()
    fleet.proxy.on_effect = lambda *_: fleet.kill()
    await fleet.start()
    await fleet.up()
    await fleet.until(fleet.listed)
    fleet.proxy.on_effect = None
    intent = fleet.recorded()[-1]
    assert isinstance(intent.fact, Registering)
    await fleet.start("two")
    await fleet.registered()
    assert len(fleet.calls("add")) == 1
    assert [fact.cause for fact in fleet.facts(Registered)] == [intent.sequence]


@pytest.mark.parametrize("wanted", [True, False])
@on_virtual_time
async def test_an_add_that_was_not_made_when_the_controller_died_is_redone_or_settled(wanted):
    """[I2] [I5]: by what is true now."""
    fleet = Fleet()
    fleet.proxy.on_call = lambda *_: fleet.kill()
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.calls("add"))
    fleet.proxy.on_call = None
    if not wanted:
        await fleet.say(WorkerCordoned(worker=W, **BY))
    await fleet.start("two")
    if wanted:
        await fleet.registered()
        assert registrations(fleet) == [(Registering, 1), (Registering, 1), (Registered, 1)]
    else:
        await fleet.until(lambda: fleet.facts(Deregistered))
        await asyncio.sleep(30)
        assert registrations(fleet) == [(Registering, 1), (Deregistered, 1)]
        assert state(fleet).ledger.look("a").registrations == {}
        assert fleet.listed() == []
    assert fleet.calls("remove") == []


@pytest.mark.parametrize("moment", ["called", "removed"])
@on_virtual_time
async def test_a_removal_under_way_when_the_controller_died_is_redone_or_settled(moment):
    """[I5]."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    if moment == "called":
        fleet.proxy.on_call = lambda *_: fleet.kill()
    else:
        fleet.proxy.on_effect = lambda *_: fleet.kill()
    await fleet.down()
    await fleet.until(lambda: not fleet.process.alive)
    fleet.proxy.on_call = fleet.proxy.on_effect = None
    assert state(fleet).ledger.look("a").registrations[W][1].told is Told.DEREGISTERING
    await fleet.start("two")
    await fleet.until(lambda: fleet.facts(Deregistered))
    assert fleet.listed() == []
    assert len(fleet.calls("remove")) == (2 if moment == "called" else 1)
    expected = [Deregistering, Deregistering, Deregistered] if moment == "called" else [Deregistering, Deregistered]
    assert [kind for kind, _ in registrations(fleet)][2:] == expected


@on_virtual_time
async def test_what_an_add_of_a_dead_controller_brings_later_is_taken_away():
    """[I1] [I2]: a ghost has our tags."""
    fleet = Fleet()
    fleet.proxy.faults = ProxyFaults(slowest_job=60)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.calls("add"))
    await asyncio.sleep(0.1)
    fleet.kill()
    fleet.proxy.faults = ProxyFaults()
    await fleet.down()
    ghosts = []
    fleet.proxy.on_effect = lambda effect, entry: ghosts.append((effect, entry.incarnation))
    await fleet.start("two")
    await fleet.until(lambda: len(ghosts) == 2, 120)
    assert ghosts == [("listed", 1), ("removed", 1)]
    assert fleet.listed() == []


# ---------------------------------------------------------------- snapshots


@on_virtual_time
async def test_a_snapshot_is_restored_and_only_the_rest_is_folded():
    """[I5]."""
    fleet = Fleet()
    await fleet.start("one")
    await fleet.up()
    await fleet.registered()
    await fleet.stop()
    at = fleet.log.messages[-1].sequence
    await fleet.say(WorkerUp(worker="rollout-1-0", incarnation=3))
    folded = []
    fleet.log.read = lambda after: folded.append(after) or MemoryLog.read(fleet.log, after)
    await fleet.start("two")
    assert ("snapshot.restored", {"sequence": at}) in fleet.told
    assert folded == [at]
    await asyncio.sleep(20)
    assert state(fleet).encode() == folded_anew(fleet.log).encode()


@on_virtual_time
async def test_snapshots_that_the_log_does_not_confirm_are_passed_over():
    """Of another log, of a log that went back, and of one that went back and on again."""
    fleet = Fleet()
    await fleet.start("one")
    await fleet.stop()
    first = len(fleet.log.messages)
    for number in range(3):
        await fleet.say(WorkerSuspected(worker=W, incarnation=1 + number))
    await fleet.start("two")
    await fleet.stop()
    fleet.log.lose_tail(first + 1)
    await fleet.start("three")
    told = [(event, keys.get("reason", "")[:35]) for event, keys in fleet.told if event.startswith("snapshot.re")]
    assert told[-2:] == [
        ("snapshot.refused", f"the log ends at {first + 1}: it lost its tail"),
        ("snapshot.restored", ""),
    ]
    await fleet.stop()
    fleet.log.lose_tail(first)
    for number in range(9):
        await fleet.say(WorkerSuspected(worker="rollout-9-0", incarnation=1 + number))
    fleet.told.clear()
    await fleet.start("four")
    assert {event for event, _ in fleet.told if event.startswith("snapshot.")} == {
        "snapshot.refused",
        "snapshot.restored",
    }
    assert state(fleet).roster.workers["rollout-9-0"].incarnation == 9
    assert W not in state(fleet).roster.workers
    await fleet.stop()
    fleet.told.clear()
    fleet.log._identity = "made anew"
    await fleet.start("five")
    assert {event for event, _ in fleet.told if event.startswith("snapshot.")} == {"snapshot.of_another_log"}
    # It holds what the other one held: a copy.
    assert state(fleet).encode() == folded_anew(fleet.log).encode()


# ---------------------------------------------------------------- a log that is not what it was


@on_virtual_time
async def test_facts_that_are_gone_stop_the_start():
    fleet = Fleet()
    await fleet.up()
    await fleet.up(incarnation=2)
    fleet.log.lose_head(2)
    with pytest.raises(HistoryHole, match=r"no sequence 1 \(it begins at 2\).*Two ways out"):
        await fleet.start()
    assert fleet.seat.owner is None


@on_virtual_time
async def test_facts_that_go_before_they_are_folded_end_the_controller():
    fleet = Fleet()
    await fleet.start()
    await fleet.until(lambda: fleet.controller.lanes["a"].idle)
    fleet.log.cut_off()
    await asyncio.sleep(5)
    last = fleet.log.messages[-1].sequence
    fleet.log.available = True
    for incarnation in (1, 2, 3):
        await fleet.say(WorkerUp(worker=W, incarnation=incarnation))
    fleet.log.lose_head(last + 3)
    with pytest.raises(HistoryHole, match=f"no sequence {last + 1}"):
        await fleet.running


@on_virtual_time
async def test_a_log_that_lost_its_tail_ends_the_controller_and_the_next_one_makes_it_right():
    """[I1]: notes of what is no longer in the log are dropped, and reading back does the rest."""
    fleet = Fleet()
    await fleet.start()
    before = len(fleet.log.messages)
    await fleet.up()
    await fleet.registered()
    fleet.log.cut_off()
    await asyncio.sleep(5)
    fleet.log.lose_tail(before)
    fleet.log.available = True
    with pytest.raises(LogRewound, match=rf"the log ends at (sequence )?{before}\b"):
        await fleet.running
    assert fleet.listed() != []
    await fleet.start("two")
    await fleet.until(lambda: not fleet.listed(), 20)
    await fleet.say(WorkerUp(worker=W, incarnation=1))
    await fleet.registered()


@pytest.mark.parametrize("written_since", [0, 1, 2, 9])
@on_virtual_time
async def test_i9_who_began_with_a_snapshot_and_read_nothing_since_knows_that_the_log_lost_its_tail(written_since):
    """As a monitor of a fleet in which nothing happens. Others stand where the tail was, and it folded them upon it."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await fleet.stop()
    projector = Projector(fleet.log, CODEC, fleet.clock, await newest_state(fleet.log, fleet.snapshots))
    end = projector.state.sequence
    assert end == len(fleet.log.messages)
    running = asyncio.create_task(projector.run())
    await projector.caught_up()
    await asyncio.sleep(5)
    fleet.log.cut_off()
    await asyncio.sleep(5)
    fleet.log.lose_tail(end - 1)
    fleet.log.available = True
    for _ in range(written_since):
        await fleet.say(WorkerUp(worker="rollout-1-0", incarnation=1))
    with pytest.raises(LogRewound):
        await running


@on_virtual_time
async def test_gaps_in_what_is_delivered_are_read_again():
    """[I8]: contiguous or not at all, in the fold."""
    fleet = Fleet(resync=NEVER)
    fleet.log.faults = LogFaults(drop_batch=0.4, end_reading=0.2, slowest_delivery=0.05, most_in_a_batch=3, heartbeat=1)
    for incarnation in range(1, 200):
        await fleet.say(WorkerUp(worker=W, incarnation=incarnation))
    sequences = []
    projector = Projector(fleet.log, CODEC, fleet.clock)
    projector.witness(lambda stored, *_: sequences.append(stored.sequence))
    running = asyncio.create_task(projector.run())
    await projector.caught_up()
    assert sequences == list(range(1, 200))
    assert projector.state.encode() == folded_anew(fleet.log).encode()
    running.cancel()


@on_virtual_time
async def test_a_fact_stored_between_two_questions_is_no_hole():
    """The reader ended just before the newest fact came in."""
    fleet = Fleet()

    async def nothing(after):
        for _ in ():
            yield ()

    async def get(sequence):
        found = await MemoryLog.get(fleet.log, sequence)
        await fleet.up()
        return found

    fleet.log.read, fleet.log.get = nothing, get
    projector = Projector(fleet.log, CODEC, fleet.clock)
    await projector._follow()


@on_virtual_time
async def test_waiting_for_a_sequence_ends_when_the_fold_has_passed_it():
    fleet = Fleet()
    fleet.log.faults = LogFaults(slowest_delivery=1)
    projector = Projector(fleet.log, CODEC, fleet.clock)
    running = asyncio.create_task(projector.run())
    passed = []

    async def wait(sequence):
        await projector.passed(sequence)
        passed.append((sequence, projector.state.sequence >= sequence))

    waiting = [asyncio.create_task(wait(sequence)) for sequence in (3, 1, 2, 3)]
    for incarnation in (1, 2, 3):
        await asyncio.sleep(5)
        await fleet.say(WorkerUp(worker=W, incarnation=incarnation))
    await asyncio.gather(*waiting)
    assert passed == [(1, True), (2, True), (3, True), (3, True)]
    await projector.passed(2)
    running.cancel()
