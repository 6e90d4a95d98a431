"""What a lane does with registered workers whose weights are not good enough any more, by the pool's own word."""

import msgspec
from support.fleet import Fleet, on_virtual_time

from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.events import (
    Deregistering,
    ReconcileHeld,
    ReconcileReleased,
    WeightsLoaded,
    WeightsPublished,
    WorkerResumed,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.lanes import desk
from rollbook.projections.looking.look import Look
from rollbook.projections.looking.preview import Change
from rollbook.projections.looking.status import Standing
from rollbook.projections.looking.survey import Survey
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import Capabilities


async def pool_of(size, *, capabilities=AS_SGLANG, **pool):
    """So many workers, all registered with version 1."""
    fleet = Fleet(resync=1.0, capabilities=capabilities)
    fleet.policy = msgspec.structs.replace(fleet.policy, pools={"rollout": PoolPolicy(**pool)})
    await fleet.start()
    await fleet.say(WeightsPublished(pool="rollout", version=1))
    names = [f"rollout-{number}-0" for number in range(size)]
    for number, name in enumerate(names):
        fleet.place(name, port=8000 + number)
        await fleet.say(loaded(name, 1), WorkerUp(worker=name, incarnation=1))
    for name in names:
        await fleet.registered(name)
    return fleet, names


def loaded(worker, version, incarnation=1):
    return WeightsLoaded(worker=worker, incarnation=incarnation, version=version)


def there(fleet):
    return {entry.worker for entry in fleet.proxy.listed}


async def look(fleet):
    leading = fleet.controller.leading
    given = {"proxies": fleet.proxies, "admission": leading.admission}
    taken = await Look(fleet.policy, leading.projector.state, provider=fleet.provider, **given).take("")
    plan = await Survey(fleet.policy, leading.projector.state, **given).take("")
    return taken, {worker.name: worker.registrations[0] for worker in taken.workers}, plan


@on_virtual_time
async def test_by_default_a_new_version_takes_nobody_out_and_lets_no_older_one_in():
    fleet, names = await pool_of(3)
    await fleet.say(WeightsPublished(pool="rollout", version=2))
    fleet.place(names[0], incarnation=2, port=8000)
    await fleet.say(WorkerUp(worker=names[0], incarnation=2))
    await fleet.until(lambda: there(fleet) == set(names[1:]))
    await fleet.clock.sleep(30)
    taken, at, plan = await look(fleet)
    assert taken.converged
    assert not plan.differs
    assert taken.weights == {"rollout": 2}
    assert at[names[0]].state is Standing.PENDING_WEIGHTS
    assert (at[names[1]].state, at[names[1]].gate) == (Standing.REGISTERED, "weights_current")
    await fleet.say(loaded(names[0], 2, incarnation=2))
    await fleet.registered(names[0], incarnation=2)
    assert [fact.worker for fact in fleet.facts(Deregistering)] == [names[0]]


@on_virtual_time
async def test_replacements_let_as_many_go_and_who_loaded_it_stays():
    """[I4] at no moment less than half of them are there; who has left comes back with the new version."""
    fleet, names = await pool_of(4, stale="replace")
    await fleet.say(WeightsPublished(pool="rollout", version=2))
    await fleet.clock.sleep(10)
    assert there(fleet) == set(names)
    await fleet.say(loaded(names[2], 2))
    await fleet.until(lambda: len(there(fleet)) == 3)
    assert there(fleet) == {names[1], names[2], names[3]}
    await fleet.clock.sleep(30)
    assert len(there(fleet)) == 3  # nobody else came
    removal = fleet.facts(Deregistering)[-1]
    assert removal.reason == "weights_current: it holds version 1 of the weights; version 2 is published"
    await fleet.say(loaded(names[0], 2))
    await fleet.until(lambda: there(fleet) == {names[0], names[2]})
    for name in names:
        await fleet.say(loaded(name, 2))
    await fleet.until(lambda: there(fleet) == set(names))
    await fleet.clock.sleep(30)
    assert there(fleet) == set(names)


@on_virtual_time
async def test_all_go_at_once_where_the_pool_says_so():
    fleet, names = await pool_of(3, stale="remove")
    await fleet.say(loaded(names[0], 2), WeightsPublished(pool="rollout", version=2))
    await fleet.until(lambda: there(fleet) == {names[0]})
    _, at, _ = await look(fleet)
    assert {at[name].state for name in names[1:]} == {Standing.PENDING_WEIGHTS}


@on_virtual_time
async def test_status_and_plan_tell_who_leaves_while_an_operator_holds_it():
    fleet, names = await pool_of(3, stale="replace")
    await fleet.say(ReconcileHeld(by="ann", why="upgrade"), WeightsPublished(pool="rollout", version=2))
    await fleet.say(loaded(names[2], 2))
    await fleet.clock.sleep(5)
    assert there(fleet) == set(names)
    taken, at, plan = await look(fleet)
    assert not taken.converged
    states = [at[name].state for name in names]
    assert states == [Standing.UNWANTED, Standing.REGISTERED, Standing.REGISTERED]
    assert [(line.worker, line.would) for line in plan.lines] == [(names[0], Change.DEREGISTER)]
    assert "version 2 is published" in plan.lines[0].reason
    await fleet.say(ReconcileReleased(by="ann", why="done"))
    await fleet.until(lambda: there(fleet) == set(names[1:]))


@on_virtual_time
async def test_who_leaves_for_its_weights_is_drained_where_the_router_can():
    fleet, names = await pool_of(2, capabilities=Capabilities(drain=True), stale="remove")
    await fleet.say(loaded(names[0], 2), WeightsPublished(pool="rollout", version=2))
    await fleet.until(lambda: there(fleet) == {names[0]})
    assert [call.what.worker for call in fleet.calls("drain")] == [names[1]]


@on_virtual_time
async def test_who_loads_it_right_before_the_call_stays():
    """[I4] asked again after the intent."""
    fleet, names = await pool_of(2, stale="remove")
    fleet.log.before = lambda fact: [loaded(names[1], 2)] if isinstance(fact, Deregistering) else []
    await fleet.say(loaded(names[0], 2), WeightsPublished(pool="rollout", version=2))
    await fleet.until(lambda: fleet.facts(Deregistering))
    await fleet.clock.sleep(10)
    assert there(fleet) == set(names)
    assert fleet.calls("remove") == []


@on_virtual_time
async def test_who_slept_in_an_update_that_failed_waits_until_its_version_is_published_once_more():
    """As docs/trainer.md says."""
    fleet, names = await pool_of(2)
    await fleet.say(*(WorkerSuspended(worker=name, incarnation=1) for name in names))
    await fleet.say(WeightsPublished(pool="rollout", version=2))
    await fleet.until(lambda: not there(fleet))
    await fleet.say(*(WorkerResumed(worker=name, incarnation=1) for name in names))
    await fleet.clock.sleep(30)
    _, at, _ = await look(fleet)
    assert {one.state for one in at.values()} == {Standing.PENDING_WEIGHTS}
    await fleet.say(WeightsPublished(pool="rollout", version=1))
    await fleet.until(lambda: there(fleet) == set(names))


@on_virtual_time
async def test_who_leaves_is_looked_up_once_for_each_state_of_the_log_however_many_leave(monkeypatch):
    """Each look walks the whole roster, and all who are drained ask again and again."""
    fleet, names = await pool_of(20, capabilities=msgspec.structs.replace(AS_SGLANG, drain=True), stale="remove")
    for entry in fleet.proxy.listed:
        fleet.proxy.load(entry, 3)
    looked_up, outdated = [], desk.outdated

    def counted(state, policy, proxy):
        looked_up.append(state.sequence)
        return outdated(state, policy, proxy)

    monkeypatch.setattr(desk, "outdated", counted)
    published = await fleet.say(WeightsPublished(pool="rollout", version=2))
    await fleet.until(lambda: not there(fleet))
    assert {fact.worker for fact in fleet.facts(Deregistering)} == set(names)
    assert published in looked_up
    assert len(looked_up) == len(set(looked_up))
