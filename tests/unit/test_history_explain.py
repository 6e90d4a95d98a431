"""The story of a worker: it ends where the fold ends, and every step names what it came from."""

import pytest
from support.core import CODEC, FLEET, POLICY
from support.histories import NAMES, a_history
from support.past import Told, told

from rollbook.events import (
    CellDeclared,
    Deregistered,
    Deregistering,
    DriftFound,
    FleetObserved,
    LeadershipTaken,
    ObservedWorker,
    ProxyReachable,
    ReconcileHeld,
    RecoveryStarted,
    Registered,
    Registering,
    RegistrationFailed,
    WeightsLoaded,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerForgotten,
    WorkerStarted,
    WorkerUncordoned,
    WorkerUp,
)
from rollbook.projections.history import story as story_module
from rollbook.projections.history.judged import verdict
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.story import Asked, UnknownToTheLog, explain
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.state import ledger

W, V = "rollout-0-0", "rollout-1-0"
HISTORIES_POLICY = Policy(
    fleet=POLICY.fleet,
    pools={"rollout": PoolPolicy(), "reward": PoolPolicy()},
    proxies={name: ProxyPolicy(name=name, pools=("rollout", "reward")) for name in ("a", "b")},
)
AT = {"proxy": "router", "worker": W, "url": "http://h:1"}


async def story(past, worker=W, *, policy=POLICY, proxy=None, to=None, lives=None):
    end = (await past.ends())[1]
    asked = Asked(worker=worker, proxy=proxy, to=end if to is None else to, lives=lives, policy=policy)
    return await explain(past, CODEC, asked)


def events(narrative):
    return {event.sequence: event for life in narrative.lives for event in life.events}


async def a_recovery():
    past = Told()
    await past.say(WorkerUp(worker=V, incarnation=1))  # 1: nobody asked about it
    await past.say(WorkerStarted(worker=W, incarnation=1), WorkerUp(worker=W, incarnation=1))  # 2, 3
    await past.say(Registering(**AT, incarnation=1, cause=3), Registered(**AT, incarnation=1, cause=4))  # 4, 5
    await past.say(WorkerDown(worker=W, incarnation=1, seen=3, evidence="exited", reason="oom"))  # 6
    past.clock.time += 30
    await past.say(Deregistering(**AT, incarnation=1, cause=6), Deregistered(**AT, incarnation=1, cause=7))  # 7, 8
    await past.say(WorkerUp(worker=W, incarnation=2, seen=6))  # 9
    await past.say(WorkerDown(worker=W, incarnation=1, seen=6, evidence="timeout"))  # 10: late
    await past.say(Registering(**AT, incarnation=2, cause=9), Registered(**AT, incarnation=2, cause=11))  # 11, 12
    return past


async def test_a_rank_that_no_recoverer_spoke_of_says_where_its_restarts_are_told():
    past, other = Told(), "rollout-0-1"
    cell = {"cell_size": 2, "cell_incarnation": 1}
    await past.say(WorkerUp(worker=W, incarnation=1, **cell), WorkerUp(worker=other, incarnation=1, **cell))
    assert (await story(past, other)).notes == ()
    await past.say(WorkerDown(worker=other, incarnation=1, evidence="exited", **cell))
    await past.say(RecoveryStarted(worker=W, incarnation=1, at="2026-01-01T00:00:00Z", until="2026-01-01T00:10:00Z"))
    assert "`rollbook explain rollout-0-0` says" in (await story(past, other)).notes[0]
    assert (await story(past, W)).notes == ()


async def test_a_recovery_is_told_in_lives_with_causes_and_delays():
    found = await story(await a_recovery())
    assert [(life.incarnation, [e.sequence for e in life.events]) for life in found.lives] == [
        (1, [2, 3, 4, 5, 6, 7, 8]),
        (2, [9, 10, 11, 12]),
    ]
    by = events(found)
    assert by[6].effects == ("serving → down (exited: oom)",)
    assert (by[7].step.cause, by[7].step.because, by[7].step.seconds) == (6, 6, 31.0)
    assert by[7].step.slowest
    assert [e.sequence for e in by.values() if e.step is not None and e.step.slowest] == [7]
    assert (by[8].step.cause, by[8].step.seconds) == (7, 1.0)
    assert [(p.action, p.because, p.decided, p.answered, p.result, p.in_all) for p in found.passages] == [
        ("register", 3, 4, 5, "confirmed", 2.0),
        ("deregister", 6, 7, 8, "confirmed", 32.0),
        ("register", 9, 11, 12, "confirmed", 3.0),
    ]
    (now,) = found.now
    assert (now.verdict.wanted, now.told, now.url, now.since) == (True, "registered", "http://h:1", 12)


async def test_a_stale_fact_is_shown_with_what_superseded_it():
    late = events(await story(await a_recovery()))[10]
    assert "older incarnation" in late.ignored
    assert late.superseded_by == 9
    assert late.verdicts == ()


async def test_a_late_up_names_the_down_that_its_author_had_not_seen():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerDown(worker=W, incarnation=1, evidence="exited")])
    await past.say(WorkerUp(worker=W, incarnation=1, seen=1))
    late = events(await story(past))[3]
    assert "had not seen" in late.ignored
    assert late.superseded_by == 2


async def test_what_an_operator_had_forgotten_names_the_forgetting():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerForgotten(worker=W, by="ann", why="x")])
    await past.say(WorkerUp(worker=W, incarnation=1))
    by = events(await story(past))
    assert by[2].effects == ("struck off the roster",)
    assert by[3].superseded_by == 2


async def test_gates_are_told_one_by_one_up_to_the_first_that_fails():
    past = await told([WorkerStarted(worker=W, incarnation=1), WorkerUp(worker=W, incarnation=1)])
    await past.say(WorkerCordoned(worker=W, by="ann", why="ECC"), WorkerUncordoned(worker=W, by="ann", why="fixed"))
    await past.say(WeightsPublished(pool="rollout", version=2), WeightsLoaded(worker=W, incarnation=1, version=2))
    by = events(await story(past))
    shown = {n: [(g.gate, g.passed) for g in e.verdicts[0].gates][-1] for n, e in by.items() if e.verdicts}
    assert shown == {
        1: ("serving", False),
        2: ("weights_current", True),
        3: ("not_cordoned", False),
        4: ("weights_current", True),
        5: ("weights_current", False),
        6: ("weights_current", True),
    }
    assert [g.gate for g in by[1].verdicts[0].gates] == ["not_forgotten", "selected", "entrypoint", "serving"]
    assert by[3].verdicts[0].failed.reason == "cordoned by ann: ECC"


async def test_a_lane_that_acts_after_drift_or_an_operator_names_them_and_not_an_old_up():
    past = await told([WorkerUp(worker=W, incarnation=1), Registering(**AT, incarnation=1, cause=1)])
    await past.say(Registered(**AT, incarnation=1, cause=2))
    past.clock.time += 3600
    await past.say(ProxyReachable(proxy="router"), DriftFound(proxy="router", missing=(W,)))  # 4, 5
    await past.say(Registering(**AT, incarnation=1, cause=1), Registered(**AT, incarnation=1, cause=6))
    by = events(await story(past))
    assert by[5].effects == ("the proxy lost it",)
    assert (by[6].step.cause, by[6].step.because, by[6].step.seconds) == (1, 5, 1.0)


async def test_a_failed_call_is_a_step_of_its_own_and_the_retry_comes_after_it():
    past = await told([WorkerUp(worker=W, incarnation=1), Registering(**AT, incarnation=1, cause=1)])
    await past.say(RegistrationFailed(**AT, incarnation=1, cause=2, action="register", reason="503"))
    await past.say(Registering(**AT, incarnation=1, cause=1))
    found = await story(past)
    assert [(p.because, p.result) for p in found.passages] == [(1, "failed"), (3, "unanswered")]
    assert found.now[0].told == "registering"


async def test_holds_and_other_proxies_are_told_where_they_matter():
    policy = Policy(
        fleet="f",
        pools={"rollout": PoolPolicy()},
        proxies={
            "router": ProxyPolicy(name="router", pools=("rollout",)),
            "other": ProxyPolicy(name="other", pools=("reward",)),
        },
    )
    past = await told([WorkerUp(worker=W, incarnation=1), LeadershipTaken(proxy="other", owner="x", epoch=1)])
    await past.say(ReconcileHeld(by="ann", why="upgrade"), ReconcileHeld(proxy="other", by="ann", why="upgrade"))
    found = await story(past, policy=policy)
    assert list(events(found)) == [1, 3]
    assert events(found)[3].effects == ("router is held by ann: upgrade",)
    assert [stands.verdict.proxy for stands in found.now] == ["router"]
    only = await story(past, policy=policy, proxy="other")
    assert only.now[0].verdict.failed.gate == "selected"


async def test_a_sibling_of_its_cell_opens_and_closes_its_gate():
    cell = {"cell_size": 2, "cell_incarnation": 1}
    past = await told(
        [WorkerUp(worker=W, incarnation=1, **cell), WorkerUp(worker="rollout-0-1", incarnation=1, **cell)]
    )
    await past.say(WorkerDown(worker="rollout-0-1", incarnation=1, evidence="exited", **cell))
    by = events(await story(past))
    assert [e.verdicts[0].wanted for e in by.values()] == [False, True, False]
    assert by[3].about == "rollout-0-1"


async def test_the_other_half_of_a_pair_opens_and_closes_its_gate():
    """Why a newcomer waited although all was well with it: the last worker of the other pool had gone."""
    pools = {"prefill": PoolPolicy(paired_with="decode"), "decode": PoolPolicy()}
    router = ProxyPolicy(name="router", pools=("prefill", "decode"))
    policy = Policy(fleet=FLEET, pools=pools, proxies={"router": router})
    past = await told([WorkerUp(worker="decode-0-0", incarnation=1), WorkerUp(worker="prefill-0-0", incarnation=1)])
    await past.say(WorkerUp(worker="prefill-1-0", incarnation=1))
    for name in ("prefill-0-0", "prefill-1-0"):
        await past.say(WorkerDown(worker=name, incarnation=1, evidence="exited"))
    by = events(await story(past, "decode-0-0", policy=policy))
    shown = {number: (event.about, event.verdicts[0].failed) for number, event in by.items()}
    assert {number: (about, held and held.gate) for number, (about, held) in shown.items()} == {
        1: ("decode-0-0", "pair_ready"),
        2: ("prefill-0-0", None),
        5: ("prefill-1-0", "pair_ready"),
    }
    assert shown[5][1].reason == "no worker of pool 'prefill', which requests need too, could take any there"


async def test_a_listing_that_omits_it_is_told_as_what_ended_it():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerUp(worker=V, incarnation=1)])
    lines = (ObservedWorker(worker=V, incarnation=1),)
    await past.say(FleetObserved(observer="ray", pools=("rollout",), as_of=2, workers=lines))
    await past.say(FleetObserved(observer="ray", pools=("rollout",), as_of=3, workers=lines))
    by = events(await story(past))
    assert list(by) == [1, 3]
    assert by[3].effects == ("serving → down (not_observed: ray did not list it)",)


async def test_the_story_can_end_at_an_earlier_moment():
    past = await a_recovery()
    found = await story(past, to=6)
    assert (found.phase, found.incarnation, found.sequence) == ("down", 1, 6)
    assert found.now[0].told == "registered"


async def test_nobody_of_that_name_is_said_with_the_nearest():
    past = await a_recovery()
    with pytest.raises(UnknownToTheLog, match="did you mean rollout-0-0"):
        await story(past, "rollout-0-00")
    with pytest.raises(UnknownToTheLog, match="known are: router"):
        await story(past, proxy="ruter")


async def test_without_a_configuration_the_log_shows_which_proxies_it_is_brought_to():
    past = await a_recovery()
    await past.say(LeadershipTaken(proxy="idle", owner="x", epoch=1))
    found = await story(past, policy=None)
    assert [(stands.verdict.proxy, stands.verdict.wanted) for stands in found.now] == [("router", True)]
    assert events(found)[4].verdicts[0].wanted
    other = await story(past, V, policy=None)
    assert [stands.verdict.proxy for stands in other.now] == ["router"], "others of its pool are brought there"


async def test_only_the_newest_lives():
    past = await a_recovery()
    whole, last = await story(past), await story(past, lives=1)
    assert [(life.incarnation, len(life.events)) for life in last.lives] == [(2, 4)]
    assert last.now == whole.now
    assert [p.decided for p in last.passages] == [11]
    assert (await story(past, lives=9)).lives == whole.lives


async def test_a_cell_that_was_only_declared_as_several_has_siblings_too():
    past = await told([CellDeclared(pool="rollout", cell="0", size=2, cell_incarnation=1)])
    for name in (W, "rollout-0-1"):
        await past.say(WorkerUp(worker=name, incarnation=1, cell_incarnation=1))
    by = events(await story(past))
    assert [event.verdicts[0].wanted for event in by.values()] == [False, True]


async def test_a_log_that_forgot_its_beginning_tells_the_rest_and_says_so():
    past = await a_recovery()
    await past.keep(8)
    past.log.lose_head(8)
    found = await story(past)
    assert "archived" in found.notes[0]
    assert [life.incarnation for life in found.lives] == [2]
    assert found.phase == "serving"


@pytest.mark.parametrize("seed", range(6))
async def test_the_story_of_each_worker_ends_as_the_fold_of_everything_ends(seed):
    """Told from the facts of one worker's subjects alone, and the same roster and verdicts come out [I5]."""
    past = await told(a_history(seed))
    policy = Policy(
        fleet="f",
        pools={"rollout": PoolPolicy()},
        proxies={name: ProxyPolicy(name=name, pools=("rollout", "reward")) for name in ("a", "b")},
    )
    for to in (60, 300):
        state = await state_at(past, CODEC, to)
        for name in NAMES:
            worker = state.roster.workers.get(name)
            if worker is None:
                continue
            found = await story(past, name, policy=policy, to=to)
            assert (found.phase, found.incarnation) == (worker.phase, worker.incarnation)
            expected = [verdict(state.roster, policy, served, name) for served in policy.proxies.values()]
            shown = [stands.verdict for stands in found.now]
            assert shown == [one for one in expected if one.failed is None or one.failed.gate != "selected"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noted", [1, 2, 5, 20])
async def test_a_story_is_the_same_however_much_of_it_the_ledger_notes(seed, noted, monkeypatch):
    """[I5]: what it does not note is read."""
    history = a_history(seed, 250)
    all_noted = await told(history)
    end = (await all_noted.ends())[1]
    stories = {}
    for worker in NAMES:
        for to, proxy in ((end, None), (end // 2, None), (end, "a")):
            asked = Asked(worker=worker, proxy=proxy, to=to, policy=HISTORIES_POLICY)
            stories[worker, to, proxy] = await explain(all_noted, CODEC, asked)
    monkeypatch.setattr(ledger, "MOST_NOTED", noted)
    monkeypatch.setattr(story_module, "MOST_NOTED", noted)
    few_noted = await told(history)
    for (worker, to, proxy), expected in stories.items():
        asked = Asked(worker=worker, proxy=proxy, to=to, policy=HISTORIES_POLICY)
        assert await explain(few_noted, CODEC, asked) == expected


async def test_a_story_is_looked_up_and_the_proxies_subjects_are_not_read(monkeypatch):
    past = await a_recovery()
    read, before = past.read, []

    def remember(first, last, subjects=()):
        before.append((first, last, subjects))
        return read(first, last, subjects)

    monkeypatch.setattr(past, "read", remember)
    await past.keep(12)
    before.clear()
    await story(past)
    assert not [subject for _, _, subjects in before for subject in subjects if subject.startswith("rollbook.f.proxy.")]
