"""A lane on virtual time: what it writes and calls, in which order, when the proxy does as it is told."""

import asyncio

import msgspec
import pytest
from support.fleet import BY, NEVER, Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import LogFaults, ProxyFaults
from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.events import (
    Deregistered,
    Deregistering,
    DriftFound,
    FleetEnded,
    LeadershipTaken,
    ProxyFact,
    ProxyReachable,
    ReconcileHeld,
    ReconcileReleased,
    Registered,
    Registering,
    RegistrationFailed,
    WeightsLoaded,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerUncordoned,
    WorkerUp,
)


def proxy_facts(fleet):
    """What the lane wrote about registrations, as names and causes."""
    facts = [(r.sequence, r.fact) for r in fleet.recorded() if isinstance(r.fact, ProxyFact)]
    return [(sequence, type(fact), getattr(fact, "cause", None)) for sequence, fact in facts]


@on_virtual_time
async def test_intents_go_before_calls_and_outcomes_after_them():
    """[I5], with the fact that led to each."""
    fleet = Fleet(resync=NEVER)
    before_call = []
    fleet.proxy.on_call = lambda verb, _: before_call.append((verb, type(fleet.recorded()[-1].fact)))
    after_effect = []
    fleet.proxy.on_effect = lambda effect, _: after_effect.append((effect, type(fleet.recorded()[-1].fact)))
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await fleet.down()
    await fleet.until(lambda: fleet.facts(Deregistered))
    assert before_call == [("add", Registering), ("remove", Deregistering)]
    assert after_effect == [("listed", Registering), ("removed", Deregistering)]
    assert [(kind, cause) for _, kind, cause in proxy_facts(fleet)] == [
        (LeadershipTaken, None),
        (ProxyReachable, None),
        (Registering, 2),
        (Registered, 4),
        (Deregistering, 6),
        (Deregistered, 7),
    ]


@pytest.mark.parametrize(
    "others",
    [
        [WorkerDown(worker=W, incarnation=1, evidence="exited")],
        [WorkerCordoned(worker=W, **BY)],
        [WorkerUp(worker=W, incarnation=2)],
        [ReconcileHeld(proxy="a", **BY)],
        [ReconcileHeld(**BY)],
    ],
)
@on_virtual_time
async def test_what_lands_before_the_intent_prevents_the_add(others):
    """[I2]: the roster is asked again when the fold has passed the intent, however late facts are delivered."""
    fleet = Fleet()
    fleet.log.faults = LogFaults(slowest_delivery=0.1)
    await fleet.start()
    once = list(others)
    fleet.log.before = lambda fact: [once.pop() for _ in once[:]] if isinstance(fact, Registering) else []
    await fleet.up()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    await asyncio.sleep(20)
    assert once == []
    assert all(call.what.incarnation != 1 for call in fleet.calls("add"))
    failed = fleet.facts(RegistrationFailed)[0]
    assert failed.reason.startswith("not called: ")
    assert failed.cause == next(r.sequence for r in fleet.recorded() if isinstance(r.fact, Registering))


@pytest.mark.parametrize(
    ("unwanted", "others"),
    [
        (WorkerDown(worker=W, incarnation=1, evidence="timeout"), [WorkerUp(worker=W, incarnation=1)]),
        (WorkerCordoned(worker=W, **BY), [WorkerUncordoned(worker=W, **BY)]),
        (WorkerCordoned(worker=W, **BY), [ReconcileHeld(**BY)]),
    ],
)
@on_virtual_time
async def test_what_lands_before_the_intent_prevents_the_removal(unwanted, others):
    """[I4]: a wanted entry is not taken away, not even for a moment."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    fleet.log.faults = LogFaults(slowest_delivery=0.1)
    down = len(fleet.log.messages) + 1
    once = [msgspec.structs.replace(one, seen=down) if isinstance(one, WorkerUp) else one for one in others]
    fleet.log.before = lambda fact: [once.pop() for _ in once[:]] if isinstance(fact, Deregistering) else []
    assert await fleet.say(unwanted) == down
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    await asyncio.sleep(20)
    assert once == []
    assert fleet.calls("remove") == []
    assert fleet.facts(RegistrationFailed)[0].reason.startswith("not called: ")


@on_virtual_time
async def test_a_new_life_on_the_same_url_is_removed_then_added():
    """So that the router's circuit breaker and labels start fresh."""
    fleet = Fleet(resync=NEVER)
    await fleet.start()
    url = await fleet.up()
    await fleet.registered()
    await fleet.up(incarnation=2)
    await fleet.registered(incarnation=2)
    assert fleet.listed() == [(W, 2, url)]
    changes = [(call.verb, call.what.incarnation) for call in fleet.proxy.calls if call.verb in {"add", "remove"}]
    assert changes == [("add", 1), ("remove", 1), ("add", 2)]


@on_virtual_time
async def test_a_stale_down_takes_nothing_away():
    """[I3]."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up(incarnation=2)
    await fleet.registered(incarnation=2)
    await fleet.down(incarnation=1)
    await asyncio.sleep(30)
    assert fleet.calls("remove") == []


@on_virtual_time
async def test_an_unfinished_add_is_given_up_when_its_worker_dies():
    """[I2]; what appears later is removed."""
    fleet = Fleet()
    fleet.proxy.faults = ProxyFaults(slowest_job=8)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.calls("add"))
    await fleet.down()
    await fleet.until(lambda: fleet.facts(RegistrationFailed), 1)
    assert fleet.facts(RegistrationFailed)[0].reason == "abandoned: serving: down (exited)"
    await asyncio.sleep(30)
    assert fleet.listed() == []


@on_virtual_time
async def test_what_concerns_all_is_looked_at_again_also_for_those_in_flight():
    """The run ends at the moment when the add is done; no read-back comes to help."""
    fleet = Fleet(resync=NEVER)
    fleet.proxy.faults = ProxyFaults(slowest_job=0.5)
    tasks = []
    fleet.proxy.on_effect = lambda *_: tasks.append(asyncio.create_task(fleet.say(FleetEnded(run_id="one"))))
    await fleet.up()
    await fleet.start()
    await asyncio.sleep(60)
    assert tasks
    assert fleet.facts(Registered)
    assert fleet.listed() == []


@on_virtual_time
async def test_a_bar_that_is_raised_just_before_the_call_keeps_it_from_being_made():
    """While the address is asked for once more, between the intent and the call."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    sequence = await fleet.down()
    await fleet.until(lambda: not fleet.listed() and fleet.controller.lanes["a"].idle)
    await fleet.say(WeightsPublished(pool="rollout", version=4), WeightsLoaded(worker=W, incarnation=1, version=4))
    fleet.provider.seconds = 1.0
    await fleet.back(sequence)
    await fleet.until(lambda: len(fleet.facts(Registering)) == 2)
    await fleet.say(WeightsPublished(pool="rollout", version=5))
    await fleet.until(lambda: fleet.facts(RegistrationFailed), 3)
    assert "weights_current" in fleet.facts(RegistrationFailed)[-1].reason
    assert len(fleet.calls("add")) == 1


@on_virtual_time
async def test_a_lower_bar_admits_at_once_whoever_waited():
    """Not when the pause of the last refusal is over."""
    fleet = Fleet(resync=NEVER, backoff_first=NEVER, backoff_most=NEVER)
    await fleet.start()
    await fleet.say(WeightsPublished(pool="rollout", version=9))
    await fleet.up()
    await fleet.say(WeightsLoaded(worker=W, incarnation=1, version=5))
    await fleet.until(lambda: fleet.controller.lanes["a"].held)
    assert fleet.controller.lanes["a"].held[W].gate == "weights_current"
    await fleet.say(WeightsPublished(pool="rollout", version=5))
    await fleet.registered()
    assert fleet.clock.monotonic() < 5
    assert fleet.controller.lanes["a"].held == {}


@on_virtual_time
async def test_no_more_adds_at_once_than_the_proxy_takes():
    fleet = Fleet(capabilities=msgspec.structs.replace(AS_SGLANG, adds_in_flight=2))
    fleet.proxy.faults = ProxyFaults(slowest_job=0.2)
    under_way: list[int] = [0]
    fleet.proxy.on_call = lambda verb, _: under_way.append(under_way[-1] + (verb == "add"))
    fleet.proxy.on_effect = lambda effect, _: under_way.append(under_way[-1] - (effect == "listed"))
    await fleet.start()
    for number in range(12):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.facts(Registered)) == 12)
    assert max(under_way) == 2
    assert under_way[-1] == 0


@on_virtual_time
async def test_an_operator_stops_all_calls_and_lets_them_go_on():
    fleet = Fleet()
    await fleet.start()
    fleet.proxy.faults = ProxyFaults(slowest_job=0.5)
    for number in range(30):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.calls("add")) >= 6)
    sequence = await fleet.say(ReconcileHeld(**BY))
    await fleet.controller.projector.passed(sequence)
    made = len(fleet.calls("add"))
    assert made < 30
    await asyncio.sleep(60)
    assert len(fleet.calls("add")) == made
    await fleet.say(ReconcileReleased(**BY))
    await fleet.until(lambda: len(fleet.listed()) == 30, 20)


@on_virtual_time
async def test_drift_is_written_when_it_changes():
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await asyncio.sleep(60)
    assert fleet.facts(DriftFound) == []
    stranger = fleet.proxy.put("http://10.9.9.9:1")
    await asyncio.sleep(60)
    assert [drift.foreign for drift in fleet.facts(DriftFound)] == [("http://10.9.9.9:1",)]
    fleet.proxy.drop(stranger)
    fleet.proxy.restart()
    await asyncio.sleep(60)
    assert [(drift.missing, drift.foreign) for drift in fleet.facts(DriftFound)[1:]] == [((W,), ()), ((), ())]
    assert [entry[0] for entry in fleet.listed()] == [W]


@on_virtual_time
async def test_drift_that_is_known_is_not_written_again_by_the_next_controller():
    fleet = Fleet()
    fleet.proxy.put("http://10.9.9.9:1")
    await fleet.start()
    await fleet.until(lambda: fleet.facts(DriftFound))
    fleet.kill()
    await fleet.start("two")
    await asyncio.sleep(60)
    assert len(fleet.facts(DriftFound)) == 1
