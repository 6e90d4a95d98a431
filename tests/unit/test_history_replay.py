"""A replay agrees with what was kept of the log, or names the first worker that differs [I5]."""

import msgspec
import pytest
from support.core import CODEC
from support.histories import a_history
from support.past import told

from rollbook.events import Registered, Registering, RegistrationFailed, WorkerCordoned, WorkerDown, WorkerUp
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.otherwise import otherwise
from rollbook.projections.history.recoveries import recoveries
from rollbook.projections.history.replay import Kept, replay
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.ports import HistoryHole

W, V = "rollout-0-0", "rollout-1-0"


async def test_every_snapshot_on_the_way_agrees():
    past = await told(a_history(1, 100))
    await past.keep(20, 45, 90)
    found, state = await replay(past, CODEC, 80)
    assert [(check.sequence, check.agrees) for check in found.checks] == [(20, True), (45, True)]
    assert found.agrees
    assert (found.first, found.sequence, found.facts) == (1, 80, 80)
    assert found.digest == state.digest() == (await state_at(past, CODEC, 80)).digest()
    without, _ = await replay(past, CODEC, 80, check=False)
    assert (without.digest, without.checks) == (found.digest, ())


async def test_a_snapshot_of_another_state_is_named_with_its_first_worker():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerUp(worker=V, incarnation=1)])
    await past.say(WorkerDown(worker=V, incarnation=1, evidence="exited"))
    wrong = await state_at(past, CODEC, 3)
    wrong.roster.workers[V].phase = type(wrong.roster.workers[V].phase).SERVING
    await past.kept.save(await past.snapshot(3, wrong))
    found, _ = await replay(past, CODEC, 3)
    (check,) = found.checks
    assert not found.agrees
    assert check.kept != check.folded
    assert check.worker.name == V
    assert [(c.what, c.before, c.after) for c in check.worker.changes] == [("phase", "serving", "down")]


async def test_a_difference_that_no_worker_shows_is_named_too():
    past = await told([WorkerUp(worker=W, incarnation=1)])
    wrong = await state_at(past, CODEC, 1)
    wrong.roster.recent[W] = {"another": None}
    await past.kept.save(await past.snapshot(1, wrong))
    found, _ = await replay(past, CODEC, 1)
    assert not found.agrees
    assert found.checks[0].worker is None
    assert found.checks[0].other == ("only remembered ids or sequences",)


async def test_no_controller_is_passed_over_in_silence():
    """One that has folded what the log does not hold disagrees; one that is not comparable is said to be none."""
    past = await told(a_history(2, 30))
    others = [Kept("behind", 0, "x"), Kept("later", 28, "y"), Kept("beyond", 31, "z")]
    found, _ = await replay(past, CODEC, 25, others=others)
    assert [(check.origin, check.agrees, check.folded, check.skipped) for check in found.checks] == [
        ("behind", True, None, "it has folded up to 0, and this replay begins at 1"),
        ("later", True, None, "it has folded up to 28, and this replay ends at 25"),
        ("beyond", False, None, None),
    ]
    assert not found.agrees


async def test_a_running_controller_is_compared_by_its_digest():
    past = await told(a_history(2, 30))
    digest = (await state_at(past, CODEC, 25)).digest()
    found, _ = await replay(past, CODEC, 30, others=[Kept("controller-a", 25, digest), Kept("other", 26, digest)])
    assert [(check.origin, check.agrees) for check in found.checks] == [("controller-a", True), ("other", False)]


async def test_a_snapshot_of_another_version_is_not_compared_and_says_so():
    past = await told(a_history(1, 10))
    await past.kept.save(msgspec.structs.replace(await past.snapshot(5), schema=99))
    found, _ = await replay(past, CODEC, 10)
    assert "schema 99" in found.checks[0].skipped
    assert found.agrees


async def test_a_log_that_begins_later_is_folded_from_the_oldest_state_kept():
    past = await told(a_history(1, 60))
    whole, _ = await replay(past, CODEC, 60)
    await past.keep(20, 45)
    past.log.lose_head(20)
    found, _ = await replay(past, CODEC, 60)
    assert (found.first, found.digest) == (21, whole.digest)
    assert [check.sequence for check in found.checks] == [45]
    past.log.lose_head(50)
    with pytest.raises(HistoryHole):
        await replay(past, CODEC, 60)


def policy(*proxies, **pools):
    return Policy(fleet="f", pools=pools, proxies={one.name: one for one in proxies})


async def test_what_other_gates_would_want_against_what_was():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerUp(worker="reward-0-0", incarnation=1)])
    at = {"proxy": "a", "worker": W, "incarnation": 1, "url": "http://h:1"}
    await past.say(Registering(**at, cause=1), Registered(**at, cause=3))
    await past.say(WorkerCordoned(worker=V, by="ann", why="x"))
    state = await state_at(past, CODEC, 5)
    now = policy(ProxyPolicy(name="a", pools=("rollout",)))
    assert otherwise(state, now, now) == []
    moved = otherwise(state, now, policy(ProxyPolicy(name="a", pools=("reward",))))
    assert [(one.worker, one.registered, one.loses, one.gains) for one in moved] == [
        (W, True, True, False),
        ("reward-0-0", False, False, True),
    ]
    more = otherwise(state, now, policy(*now.proxies.values(), ProxyPolicy(name="b", pools=("rollout",))))
    assert [(one.proxy, one.worker, one.was) for one in more] == [("b", W, "selected: there is no such proxy")]


async def test_other_pools_keep_suspended_workers():
    from rollbook.events import WorkerSuspended

    past = await told([WorkerUp(worker=W, incarnation=1), WorkerSuspended(worker=W, incarnation=1, reason="update")])
    state = await state_at(past, CODEC, 2)
    proxy = ProxyPolicy(name="a", pools=("rollout",))
    found = otherwise(state, policy(proxy), policy(proxy, rollout=PoolPolicy(deregister_suspended=False)))
    assert [(one.was, one.would, one.gains) for one in found] == [("not_suspended: update", None, True)]


async def test_recoveries_are_from_the_first_down_to_registered_again():
    at = {"proxy": "a", "worker": W, "url": "http://h:1"}
    past = await told([WorkerUp(worker=W, incarnation=1), Registering(**at, incarnation=1)])
    await past.say(Registered(**at, incarnation=1, cause=2))
    await past.say(WorkerDown(worker=W, incarnation=1, evidence="exited"))  # 4
    await past.say(WorkerUp(worker=W, incarnation=2), WorkerDown(worker=W, incarnation=2, evidence="exited"))
    await past.say(WorkerUp(worker=W, incarnation=3), Registering(**at, incarnation=3))
    await past.say(Registered(**at, incarnation=3, cause=8), Registered(**at, incarnation=3, cause=8))
    (found,) = await recoveries(past, CODEC, 1, 10)
    assert (found.worker, found.incarnation, found.down_sequence, found.registered_sequence) == (W, 3, 4, 9)
    assert (found.seconds, found.evidence) == (5.0, "exited")
    assert await recoveries(past, CODEC, 7, 10) == []


async def test_who_was_never_registered_before_it_went_down_has_not_recovered():
    at = {"proxy": "router", "worker": W, "url": "http://h:1"}
    past = await told(
        [
            WorkerUp(worker=W, incarnation=1),
            Registering(**at, incarnation=1, cause=1),
            RegistrationFailed(**at, incarnation=1, cause=2, action="register", reason="no answer"),
            WorkerDown(worker=W, incarnation=1, evidence="exited"),
            WorkerUp(worker=W, incarnation=2),
            Registering(**at, incarnation=2, cause=5),
            Registered(**at, incarnation=2, cause=6),
        ]
    )
    assert await recoveries(past, CODEC, 1, 7) == []
