"""[I12] Removals that nobody saw a reason for: so many go, the others are asked, and who answers stays and is shown."""

import asyncio
import collections
import itertools

import msgspec
import pytest
from support.core import FLEET
from support.fleet import BY, Fleet, on_virtual_time
from support.look import look

from rollbook.events import (
    Deregistered,
    Deregistering,
    FleetEnded,
    FleetObserved,
    RegistrationFailed,
    RemovalWithheld,
    WorkerCordoned,
    WorkerDown,
    WorkerSuspended,
)
from rollbook.projections.lanes import guard, notes, rollcall
from rollbook.projections.looking.status import Standing
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import Failed, Identity

MINUTE = 60.0


def left(fleet):
    return [worker for worker, _, _ in fleet.listed()]


def count_questions(fleet):
    """URL → the moments at which its worker is asked from now on."""
    asked = collections.defaultdict(list)
    check = fleet.readiness.check

    async def counted(url, path, identity=None):
        asked[url].append(fleet.clock.monotonic())
        return await check(url, path, identity)

    fleet.readiness.check = counted
    return asked


async def all_down(fleet, names, evidence="timeout", *, dead=()):
    for name in dead:
        fleet.readiness.close(f"http://10.0.0.1:{8000 + names.index(name)}")
    for name in names:
        await fleet.down(name, evidence=evidence)


@on_virtual_time
async def test_a_monitor_that_is_cut_off_empties_half_of_a_proxy_and_no_more():
    """Who answers stays, for as long as it answers; and is written down once."""
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(8)
    await all_down(fleet, names)
    await asyncio.sleep(10 * MINUTE)
    assert len(left(fleet)) == 4
    withheld = fleet.facts(RemovalWithheld)
    assert withheld[-1] == RemovalWithheld(proxy="a", pool="rollout", workers=tuple(left(fleet)), budget=4)
    assert len(withheld) <= 2
    assert set(fleet.controller.lanes["a"].withheld) == set(left(fleet))
    status = await look(fleet)
    assert not status.converged
    standings = {worker.name: worker.registrations[0] for worker in status.workers}
    assert {name for name, one in standings.items() if one.state is Standing.WITHHELD} == set(left(fleet))
    assert "it answers" in standings[left(fleet)[0]].reason


@on_virtual_time
async def test_who_does_not_answer_goes_beyond_the_budget_too():
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(8)
    await all_down(fleet, names, dead=names[1:])
    await fleet.until(lambda: len(left(fleet)) <= 1, 30)
    assert set(left(fleet)) <= {names[0]}


@on_virtual_time
async def test_a_withheld_worker_goes_when_it_stops_answering():
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    await all_down(fleet, [name])
    await asyncio.sleep(MINUTE)
    assert left(fleet) == [name]
    fleet.readiness.close("http://10.0.0.1:8000")
    await fleet.until(lambda: not left(fleet), rollcall.LONGEST_REST + 10)
    await fleet.until(lambda: fleet.facts(RemovalWithheld)[-1].workers == (), 10)
    assert fleet.controller.lanes["a"].withheld == {}


@on_virtual_time
async def test_who_answers_is_asked_ever_more_rarely_and_for_all_proxies_together():
    fleet = Fleet("a", "b", "c", "d", served={"removal_budget": 0.0})
    await fleet.start()
    names = await fleet.pool_up(4)
    asked = count_questions(fleet)
    await all_down(fleet, names)
    await asyncio.sleep(MINUTE)
    assert all(set(lane.withheld) == set(names) for lane in fleet.controller.lanes.values())
    for url, moments in asked.items():
        assert 4 <= len(moments) <= 8, (url, moments)
    await asyncio.sleep(10 * MINUTE)
    for moments in asked.values():
        pauses = [later - earlier for earlier, later in itertools.pairwise(moments[6:])]
        assert all(rollcall.LONGEST_REST / 2 <= pause <= rollcall.LONGEST_REST + 10 for pause in pauses), pauses
    assert len({moments[-1] for moments in asked.values()}) > 1, "not all at once"


@on_virtual_time
async def test_an_answer_is_shared_and_a_silence_is_not():
    """Who answers is asked once for all proxies; nobody is removed from one because of what was heard for another."""
    fleet = Fleet("a", "b", "c", "d", served={"removal_budget": 0.0}, call_deadline=4.0)
    await fleet.start()
    [name] = await fleet.pool_up(1)
    asked = count_questions(fleet)
    fleet.readiness.seconds = 3.0
    await all_down(fleet, [name])
    await fleet.until(lambda: all(lane.withheld for lane in fleet.controller.lanes.values()))
    assert [len(moments) for moments in asked.values()] == [1]
    await all_down(fleet, [name], dead=[name])
    await fleet.until(lambda: not any(fleet.listed(proxy) for proxy in "abcd"), 30)
    assert [len(moments) for moments in asked.values()] == [1 + 4]


@pytest.mark.parametrize("evidence", ["exited", "timeout"])
@on_virtual_time
async def test_a_new_word_about_a_withheld_worker_is_heard_at_once(evidence):
    """What is certain needs no question; what is not is asked again, though the worker answered a moment ago."""
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    await all_down(fleet, [name])
    await asyncio.sleep(5 * MINUTE)
    await all_down(fleet, [name], evidence, dead=[name])
    await fleet.until(lambda: not left(fleet), 2)


@on_virtual_time
async def test_a_person_who_forces_does_not_wait_until_a_worker_is_asked_again():
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    await all_down(fleet, [name])
    await asyncio.sleep(5 * MINUTE)
    fleet.controller.lanes["a"].force_once("ann")
    await fleet.until(lambda: not left(fleet), 2)


@pytest.mark.parametrize("evidence", ["exited", "actor_dead", "refused", "planned", "operator"])
@on_virtual_time
async def test_direct_evidence_needs_no_budget_and_asks_nobody(evidence):
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    names = await fleet.pool_up(8)
    fleet.provider.available = False
    await all_down(fleet, names, evidence)
    await fleet.until(lambda: not left(fleet), 5)
    assert fleet.facts(RemovalWithheld) == []


@pytest.mark.parametrize("fact", [WorkerCordoned(worker="rollout-0-0", **BY), FleetEnded(run_id="one")])
@on_virtual_time
async def test_what_a_person_decided_needs_no_budget(fact):
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    await fleet.say(fact)
    await fleet.until(lambda: name not in left(fleet), 5)


@on_virtual_time
async def test_a_newer_life_is_direct_evidence():
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    await fleet.up(name, incarnation=2, port=8000)
    await fleet.registered(name, 2)


@pytest.mark.parametrize(("size", "budget", "stay"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (1, 0.0, 1), (4, 1.0, 0)])
@on_virtual_time
async def test_small_pools_work_sensibly(size, budget, stay):
    """One of one may go; of two, one."""
    fleet = Fleet(served={"removal_budget": budget})
    await fleet.start()
    names = await fleet.pool_up(size)
    await all_down(fleet, names)
    await asyncio.sleep(MINUTE / 2)
    assert len(left(fleet)) == stay


@on_virtual_time
async def test_a_listing_that_omits_everybody_empties_nothing():
    """A provider that lists nothing, as after its own restart."""
    fleet = Fleet(served={"removal_budget": 0.25})
    await fleet.start()
    names = await fleet.pool_up(8)
    ends = await fleet.log.state()
    await fleet.say(FleetObserved(observer="ray", pools=("rollout",), as_of=ends.last_sequence, workers=()))
    await asyncio.sleep(5 * MINUTE)
    assert len(left(fleet)) == len(names) - 2


@on_virtual_time
async def test_an_empty_log_does_not_empty_a_proxy():
    """Entries of ours that no fact explains, as after a lost stream."""
    fleet = Fleet()
    for number in range(8):
        fleet.place(f"rollout-{number}-0", port=8000 + number)
        fleet.proxy.put(f"http://10.0.0.1:{8000 + number}", fleet=FLEET, worker=f"rollout-{number}-0", incarnation=1)
    await fleet.start()
    await asyncio.sleep(5 * MINUTE)
    assert len(left(fleet)) == 4


@on_virtual_time
async def test_a_stranger_who_answers_there_does_not_keep_an_entry():
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    url = fleet.place(name, identity=Identity(name, header="x-worker"))
    fleet.readiness.serve(url, who="rollout-9-0")
    await all_down(fleet, [name])
    await fleet.until(lambda: not left(fleet), 10)


@on_virtual_time
async def test_force_exceeds_the_budget_once_and_says_who_forced():
    fleet = Fleet(served={"removal_budget": 0.25})
    await fleet.start()
    names = await fleet.pool_up(8)
    await all_down(fleet, names)
    await asyncio.sleep(10)
    assert len(left(fleet)) == 6
    fleet.controller.lanes["a"].force_once("ann")
    await fleet.until(lambda: not left(fleet), 10)
    reasons = [fact.reason for fact in fleet.facts(Deregistering)]
    assert sum(reason.endswith("; forced by ann") for reason in reasons) == 6
    await fleet.until(lambda: fleet.facts(RemovalWithheld)[-1].workers == (), 10)
    for number, name in enumerate(names):
        await fleet.up(name, incarnation=2, port=8000 + number)
    await fleet.until(lambda: len(left(fleet)) == 8)
    for name in names:
        await fleet.down(name, incarnation=2, evidence="timeout")
    await asyncio.sleep(10)
    assert len(left(fleet)) == 8, "this minute's budget is used up"


@on_virtual_time
async def test_i12_what_a_person_forced_at_a_proxy_that_was_away_is_not_kept_for_its_return():
    """He was told that nothing could be done; what is thought to be dead hours later is not what he looked at."""
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(8)
    lane = fleet.controller.lanes["a"]
    fleet.proxy.available = False
    await fleet.until(lambda: lane.refusals)
    before = lane.refusals
    lane.force_once("ann")
    await fleet.until(lambda: lane.refusals > before)
    await asyncio.sleep(10 * MINUTE)
    await all_down(fleet, names)
    await asyncio.sleep(MINUTE)
    fleet.proxy.available = True
    await asyncio.sleep(10 * MINUTE)
    assert not any("forced by" in fact.reason for fact in fleet.facts(Deregistering))
    assert len(left(fleet)) == 4


@on_virtual_time
async def test_a_person_who_forces_reaches_those_who_are_being_asked():
    fleet = Fleet(served={"removal_budget": 0.0}, call_deadline=20)
    await fleet.start()
    names = await fleet.pool_up(4)
    fleet.readiness.seconds = 15
    await all_down(fleet, names)
    await asyncio.sleep(1)
    fleet.controller.lanes["a"].force_once("ann")
    await fleet.until(lambda: not left(fleet), 20)


@on_virtual_time
async def test_the_next_controller_goes_on_withholding():
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(8)
    await all_down(fleet, names)
    await asyncio.sleep(10)
    stay = left(fleet)
    assert len(stay) == 4
    await fleet.stop()
    await fleet.start("two")
    await asyncio.sleep(5 * MINUTE)
    assert left(fleet) == stay
    assert len(fleet.facts(RemovalWithheld)) <= 2


@on_virtual_time
async def test_the_next_controller_withholds_also_those_whom_no_fact_had_room_to_name(monkeypatch):
    monkeypatch.setattr(notes, "MOST_NAMED", 2)
    monkeypatch.setattr(guard, "MOST_NAMED", 2)
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(8)
    await all_down(fleet, names)
    await asyncio.sleep(10)
    stay = left(fleet)
    assert (len(stay), len(fleet.facts(RemovalWithheld)[-1].workers)) == (4, 2)
    await fleet.stop()
    await fleet.start("two")
    await asyncio.sleep(5 * MINUTE)
    assert left(fleet) == stay


@on_virtual_time
async def test_who_cannot_be_asked_waits_for_the_budget():
    fleet = Fleet(served={"removal_budget": 0.25})
    fleet.policy.pools["rollout"] = PoolPolicy(ready_path=None)
    await fleet.start()
    names = await fleet.pool_up(8)
    await all_down(fleet, names)
    await asyncio.sleep(MINUTE / 2)
    assert len(left(fleet)) == 6
    await fleet.until(lambda: not left(fleet), 8 * MINUTE)


@on_virtual_time
async def test_nothing_inferred_goes_before_the_provider_was_listed_and_what_is_certain_does():
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(4)
    await fleet.stop()
    fleet.provider.available = False
    await fleet.start("two")
    await all_down(fleet, names[:1])
    await fleet.down(names[1])
    await fleet.until(lambda: names[1] not in left(fleet), 5)
    await asyncio.sleep(2 * MINUTE)
    assert left(fleet) == [names[0], *names[2:]]
    assert "has not been listed yet" in fleet.controller.lanes["a"].withheld[names[0]]
    fleet.provider.available = True
    await fleet.until(lambda: names[0] not in left(fleet), 30)
    assert fleet.controller.lanes["a"].withheld == {}


@on_virtual_time
async def test_a_worker_that_is_up_again_is_not_withheld_any_more():
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    sequence = await fleet.down(name, evidence="timeout")
    await fleet.until(lambda: fleet.facts(RemovalWithheld))
    await fleet.back(sequence, name)
    await fleet.until(lambda: fleet.facts(RemovalWithheld)[-1].workers == (), 15)
    assert fleet.facts(Deregistered) == []
    assert (await look(fleet)).converged


@on_virtual_time
async def test_what_was_certain_before_the_intent_is_asked_about_if_it_is_not_any_more():
    """A suspended worker is thought to be dead just before it is removed: that is another reason, and it answers."""
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    [name] = await fleet.pool_up(1)
    lost = WorkerDown(worker=name, incarnation=1, evidence="timeout")
    fleet.log.before = lambda fact: [lost] if isinstance(fact, Deregistering) else []
    await fleet.say(WorkerSuspended(worker=name, incarnation=1))
    await fleet.until(lambda: fleet.facts(RemovalWithheld))
    assert left(fleet) == [name]
    assert not fleet.calls("remove")


@on_virtual_time
async def test_what_was_let_pass_as_certain_is_no_guess_when_its_turn_comes():
    """Second tries wait for each other; what was planned when it was let pass may be inferred by then."""
    fleet = Fleet(removals_in_flight=4, resync=1.0, backoff_first=0.1, backoff_most=0.1)  # one second try at a time
    served = msgspec.structs.replace(fleet.policy.proxies["a"], removal_budget=0.0)
    fleet.policy = msgspec.structs.replace(fleet.policy, proxies={"a": served})
    await fleet.start()
    names = await fleet.pool_up(2)
    remove, goes_on = fleet.proxy.remove, asyncio.Event()

    async def refused(_):
        return Failed("busy")

    async def waiting(entry):
        await goes_on.wait()
        return await remove(entry)

    fleet.proxy.remove = refused
    for name in names:
        await fleet.say(WorkerSuspended(worker=name, incarnation=1, reason="update"))
    await fleet.until(lambda: {fact.worker for fact in fleet.facts(RegistrationFailed)} == set(names))
    fleet.proxy.remove = waiting
    await asyncio.sleep(1)  # one is being called, the other waits for its turn
    for name in names:
        await fleet.down(name, evidence="timeout")
    await asyncio.sleep(0.5)
    goes_on.set()
    await asyncio.sleep(30)
    assert len(left(fleet)) == 1, "it answers, and only the one whose call was under way could not be held back"
