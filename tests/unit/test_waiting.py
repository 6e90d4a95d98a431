"""What is routed and what is gone, by the log's word, with the reason for everyone who is missing."""

import pytest
from support.core import folded

from rollbook.events import (
    Deregistered,
    Deregistering,
    FleetStarted,
    ProxyUnreachable,
    ReconcileHeld,
    Registered,
    Registering,
    RegistrationFailed,
    WorkerCordoned,
    WorkerDown,
    WorkerForgotten,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.looking.waiting import Goal, WrongGoal, look

W, OTHER = "rollout-0-0", "rollout-1-0"
BY = {"by": "ann", "why": "test"}
POOLS = {"a": ("rollout",), "b": ("rollout",), "c": ("reward",)}
A = {"a": ("rollout",)}


def up(worker=W, incarnation=1, **more):
    return WorkerUp(worker=worker, incarnation=incarnation, **more)


def said(fact, worker=W, incarnation=1, proxy="a", **more):
    return fact(proxy=proxy, worker=worker, incarnation=incarnation, url="http://h:1", **more)


def progress(*facts, pools=A, **goal):
    return look(folded(*facts), Goal(**goal), pools)


def test_registered_at_every_proxy_that_serves_its_pool_is_routed():
    facts = [up(), said(Registered)]
    found = progress(*facts, pools=POOLS)
    assert (found.reached, found.missing) == (False, {W: "not registered at b yet"})
    assert str(found) == "0 of 1"
    assert progress(*facts, said(Registered, proxy="b"), pools=POOLS).there == (W,)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([WorkerStarted(worker=W, incarnation=1)], "starting"),
        ([up(), WorkerDown(worker=W, incarnation=1, evidence="exited", reason="oom")], "down (exited: oom)"),
        ([up()], "not registered at a yet"),
        ([up(), said(Registering, reason="x")], "a: registering (x)"),
        ([up(), said(RegistrationFailed, action="register", reason="no")], "a: failed (register: no)"),
        ([up(), said(Registered), up(incarnation=2)], "not registered at a yet"),
        ([up(), said(Registered), ProxyUnreachable(proxy="a", reason="gone")], "a does not answer: gone"),
        ([up(), WorkerCordoned(worker=W, **BY)], "cordoned by ann: test"),
        ([up(), ReconcileHeld(**BY)], "a is held by ann: test"),
        (
            [up(), WorkerSuspended(worker=W, incarnation=1, reason="offload")],
            "not registered at a yet (asleep: offload)",
        ),
        ([up(pool="judge")], "no proxy serves its pool"),
    ],
)
def test_who_is_not_routed_has_a_reason(facts, reason):
    found = progress(*facts)
    assert (found.reached, found.missing) == (False, {W: reason})


def test_all_means_all_that_are_there_and_one_at_the_least():
    assert not progress().reached
    assert progress().wanted == 1
    facts = [up(), said(Registered), up(OTHER)]
    assert str(progress(*facts)) == "1 of 2"
    assert progress(*facts, at_least=1).reached
    assert not progress(*facts, at_least=3).reached
    assert progress(*facts, WorkerRetired(worker=OTHER, incarnation=1)).reached


def test_only_the_pool_and_only_who_takes_requests_count():
    facts = [up(), said(Registered), up("reward-0-0"), up("rollout-0-1", cell_size=2, cell_incarnation=1)]
    assert progress(*facts, pool="rollout").reached
    assert not progress(*facts).reached


def test_one_worker_in_this_life_or_a_later_one():
    facts = [up(incarnation=2), said(Registered, incarnation=2)]
    assert progress(*facts, worker=W, incarnation=1).reached
    assert progress(*facts, worker=W, incarnation=2).reached
    assert progress(*facts, worker=W, incarnation=3).missing == {W: "its life is 2"}
    assert progress(*facts, worker=OTHER).missing == {OTHER: "the log knows no such worker"}


def test_where_nobody_says_who_serves_whom_registered_anywhere_is_routed():
    assert progress(up(), pools=None).missing == {W: "no controller has run yet"}
    assert progress(up(), said(Registered, proxy="z"), pools=None).reached
    assert not progress(up(), said(Registered, proxy="z"), up(incarnation=2), pools=None).reached


def test_gone_is_when_nothing_is_left_open_intents_included():
    facts = [up(), said(Registered), WorkerDown(worker=W, incarnation=1, evidence="exited")]
    assert progress(*facts, state="gone").missing == {W: "a: registered (life 1, http://h:1)"}
    facts.append(said(Deregistering))
    assert progress(*facts, state="gone").missing == {W: "a: deregistering (life 1, http://h:1)"}
    facts.append(said(Deregistered))
    assert progress(*facts, state="gone").reached
    assert progress(state="gone").reached


def test_what_is_left_at_a_proxy_that_was_taken_out_of_the_configuration_is_waited_for_by_nobody():
    facts = [up(), said(Registered, proxy="renamed")]
    assert progress(*facts, state="gone").reached
    assert not progress(*facts, state="gone", pools=None).reached


def test_an_old_life_is_gone_when_only_a_new_one_is_left():
    facts = [up(), said(Registered), up(incarnation=2), said(Registered, incarnation=2)]
    assert not progress(*facts, state="gone", worker=W, incarnation=1).reached
    facts.append(said(Deregistered))
    assert progress(*facts, state="gone", worker=W, incarnation=1).reached
    assert not progress(*facts, state="gone", worker=W).reached


def test_what_is_forgotten_and_still_registered_is_not_gone():
    facts = [up(), said(Registered), WorkerForgotten(worker=W, **BY)]
    assert not progress(*facts, state="gone").reached
    assert progress(*facts, said(Deregistered), state="gone").reached


def test_a_new_run_waits_for_its_own_workers():
    facts = [FleetStarted(run_id="1"), up(), said(Registered), FleetStarted(run_id="2")]
    assert not progress(*facts).reached


@pytest.mark.parametrize(
    "goal",
    [
        {"worker": W, "pool": "rollout"},
        {"worker": W, "at_least": 2},
        {"incarnation": 1},
        {"at_least": 0},
        {"state": "gone", "at_least": 1},
    ],
)
def test_a_goal_that_contradicts_itself_is_refused(goal):
    with pytest.raises(WrongGoal):
        Goal(**goal)
