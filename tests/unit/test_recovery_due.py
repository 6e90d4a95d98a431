"""What is due, pure: budget, backoff, parallel cells, claims and who waits his turn."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import Book

from rollbook.events import (
    FleetEnded,
    FleetObserved,
    ObservedWorker,
    Recorded,
    RecoveryFailed,
    RecoveryStarted,
    WorkerCordoned,
    WorkerDown,
    WorkerStarted,
    WorkerUncordoned,
    WorkerUp,
)
from rollbook.events.times import rfc3339
from rollbook.projections.policy import RecoveryPolicy
from rollbook.projections.recovery.due import backoff, claimed, decide, is_its_turn
from rollbook.projections.state.worker import Phase

W, V = "rollout-0-0", "rollout-1-0"
NOW = 1_800_000_000.0
POLICY = RecoveryPolicy(attempts=3, window=100.0, backoff_first=2.0, backoff_most=10.0, parallel=1, claim=50.0)
POLICIES = {"rollout": POLICY}


def down(worker=W, incarnation=1, evidence="exited", **rest):
    return WorkerDown(worker=worker, incarnation=incarnation, evidence=evidence, **rest)


def up(worker=W, incarnation=1):
    return WorkerUp(worker=worker, incarnation=incarnation)


def claim(worker=W, incarnation=1, at=NOW, attempt=1, seconds=POLICY.claim):
    until = rfc3339(at + seconds)
    return RecoveryStarted(worker=worker, incarnation=incarnation, attempt=attempt, at=rfc3339(at), until=until)


def failed(worker=W, incarnation=1, **rest):
    return RecoveryFailed(worker=worker, incarnation=incarnation, **rest)


def book(*facts):
    made = Book()
    made.all(*facts)
    return made


def due(made, now=NOW, policies=POLICIES):
    return [one.names for one in decide(made.roster, policies, now).due]


def test_what_is_down_is_due_at_once_and_what_serves_is_not():
    made = book(up(), up(V), down())
    (one,) = decide(made.roster, POLICIES, NOW).due
    assert (one.first, one.incarnation, one.names, one.attempt) == (W, 1, (W,), 1)


def test_what_was_stopped_as_planned_is_left_alone():
    assert due(book(up(), down(evidence="planned"))) == []


def test_a_pool_without_a_policy_or_without_restarts_is_left_alone():
    made = book(up(), down())
    assert due(made, policies={}) == []
    assert due(made, policies={"rollout": msgspec.structs.replace(POLICY, restart=False)}) == []


def test_a_run_that_has_ended_is_left_alone():
    assert due(book(up(), down(), FleetEnded(run_id="r"))) == []


def test_a_cordoned_worker_is_left_alone_until_it_is_uncordoned():
    made = book(up(), down(), WorkerCordoned(worker=W, by="ann", why="its GPU"))
    assert due(made) == []
    made.say(WorkerUncordoned(worker=W, by="ann", why="replaced"))
    assert due(made) == [(W,)]


def test_one_rank_down_is_the_whole_cell_and_the_first_one_carries_the_claim():
    ranks = ["rollout-0-0", "rollout-0-1", "rollout-0-2"]
    made = book(*map(up, ranks), down("rollout-0-1", evidence="timeout"))
    (one,) = decide(made.roster, POLICIES, NOW).due
    assert (one.first, one.names) == ("rollout-0-0", tuple(ranks))


def test_a_claimed_cell_is_nobody_elses_and_the_roster_says_whose_it_is():
    made = book(up(), down(), claim())
    assert due(made) == []
    found = made.roster.workers[W].restarts.claim
    assert (found.by, found.incarnation, found.attempt, found.sequence) == ("test", 1, 1, 3)


def test_a_claim_lasts_over_the_start_of_the_new_life_until_it_is_up():
    made = book(up(), down(), claim(), WorkerStarted(worker=W, incarnation=2))
    assert made.roster.workers[W].restarts.claim is not None
    made.say(up(incarnation=2))
    assert made.roster.workers[W].restarts.claim is None
    assert not made.roster.workers[W].restarts.unfinished


def test_a_life_that_was_to_be_replaced_and_answers_again_does_not_end_the_claim():
    made = book(up(), down(evidence="timeout"), claim())
    made.say(WorkerUp(worker=W, incarnation=1, seen=3))
    assert made.roster.workers[W].restarts.claim is not None


def test_a_listing_that_shows_the_cell_serving_ends_the_claim_too():
    made = book(up(), down(), claim())
    line = ObservedWorker(worker=W, incarnation=2)
    made.say(FleetObserved(observer="ray", pools=("rollout",), as_of=3, workers=(line,)))
    assert made.roster.workers[W].restarts.claim is None


def test_restarts_of_a_manager_by_itself_are_no_claims():
    made = book(up(), down(), RecoveryStarted(worker=W, incarnation=1, attempt=7))
    assert made.roster.workers[W].restarts is None


def test_a_half_restart_stays_due_although_its_ranks_were_ended_as_planned():
    made = book(up(), down(), claim(), WorkerStarted(worker=W, incarnation=2), down(W, 2, "planned"), failed(W, 2))
    assert due(made, NOW + 2) == [(W,)]
    made.all(WorkerStarted(worker=W, incarnation=3), up(W, 3), down(W, 3, "planned"))
    assert due(made, NOW + 50) == []


def test_the_wait_doubles_up_to_its_bound():
    assert [backoff(POLICY, count) for count in (1, 2, 3, 4, 9)] == [2, 4, 8, 10, 10]
    made = book(up(), down(), claim(), failed())
    found = decide(made.roster, POLICIES, NOW + 1)
    assert (found.due, found.wake_at) == ((), NOW + 2)
    made.all(claim(at=NOW + 2, attempt=2), failed())
    assert decide(made.roster, POLICIES, NOW + 5).wake_at == NOW + 6
    assert decide(made.roster, POLICIES, NOW + 6).due[0].attempt == 3


def test_a_crash_loop_ends_in_a_cordon_which_an_operator_lifts():
    made = book(up())
    for number in range(3):
        made.all(down(incarnation=number + 1, reason="out of memory"), claim(incarnation=number + 1, at=NOW + number))
        made.say(up(incarnation=number + 2))
    made.say(down(incarnation=4, reason="out of memory"))
    found = decide(made.roster, POLICIES, NOW + 20)
    (one,) = found.exhausted
    assert found.due == ()
    assert (one.first, one.incarnation, one.attempts) == (W, 4, 3)
    assert one.reason == f"crash loop: 3 restarts within 100 s, and no end: {W} is down: out of memory"
    made.say(failed(incarnation=4, attempt=3, reason=one.reason, cordoned=True))
    assert made.roster.cordons[W].why == one.reason
    assert decide(made.roster, POLICIES, NOW + 20) == type(found)()
    made.say(WorkerUncordoned(worker=W, by="ann", why="more memory"))
    assert decide(made.roster, POLICIES, NOW + 20).due[0].attempt == 1


def test_attempts_before_the_window_do_not_count():
    made = book(up(), down())
    for number in range(3):
        made.all(claim(at=NOW + number), failed())
    assert decide(made.roster, POLICIES, NOW + 50).exhausted
    assert decide(made.roster, POLICIES, NOW + 103).due[0].attempt == 1


def test_no_more_cells_at_a_time_than_the_policy_says_longest_down_first():
    made = book(up(V), up(), down(V), down())
    assert due(made) == [(V,)]
    made.say(claim(V))
    assert due(made) == []
    assert due(made, policies={"rollout": msgspec.structs.replace(POLICY, parallel=2)}) == [(W,)]


def test_who_claimed_later_waits_for_his_turn():
    made = book(up(), up(V), down(), down(V), claim(V), claim())
    assert is_its_turn(made.roster, V, POLICY)
    assert not is_its_turn(made.roster, W, POLICY)
    made.say(failed(V))
    assert is_its_turn(made.roster, W, POLICY)
    assert not is_its_turn(made.roster, V, POLICY)


def test_the_claims_that_there_are_stand_by_their_first_workers():
    made = book(up(), down(), claim(), up(V))
    assert {name: (one.sequence, one.until) for name, one in claimed(made.roster).items()} == {
        W: (3, rfc3339(NOW + 50))
    }
    made.say(failed())
    assert claimed(made.roster) == {}


def test_a_restart_that_a_person_interrupts_is_finished():
    """[I1] its workers had been taken down for the restart, as planned; without the claim they stayed so for ever."""
    other = "rollout-0-1"
    made = book(up(), up(other), down(other), WorkerCordoned(worker=W, by="ann", why="x"), claim())
    made.say(WorkerUncordoned(worker=W, by="ann", why="x"))
    made.all(WorkerStarted(worker=other, incarnation=2), up(other, 2))
    assert (made.roster.workers[W].phase, made.roster.workers[W].evidence) == (Phase.DOWN, "planned")
    assert due(made) == [(W, other)]
    assert claimed(made.roster) == {}
    made.all(claim(), up(incarnation=2))
    assert due(made) == []
    made.say(down(W, 2, "planned"))
    assert due(made) == []


FIRST, LATER = "rollout-2-0", "rollout-2-1"


def test_i3_a_cell_that_is_claimed_is_not_claimed_again_when_its_first_worker_is_heard_of_late():
    """The claim stands on who was the first one then: a second recoverer would have restarted the cell beside it."""
    made = book(up(LATER), down(LATER), claim(LATER))
    assert due(made) == []
    made.say(up(FIRST))
    assert due(made) == []
    made.say(down(FIRST))
    assert due(made) == []
    made.say(failed(LATER))
    assert due(made, NOW + 1) == []  # its back-off, too
    assert due(made, NOW + 2) == [(FIRST, LATER)]


def test_i3_of_two_who_claimed_one_cell_the_first_restarts_it_alone():
    """Each on the worker that was the first one when it looked."""
    made = book(up(LATER), down(LATER), up(FIRST), claim(LATER), claim(FIRST))
    policy = msgspec.structs.replace(POLICY, parallel=8)
    assert is_its_turn(made.roster, LATER, policy)
    assert not is_its_turn(made.roster, FIRST, policy)
    made.say(failed(LATER))
    assert is_its_turn(made.roster, FIRST, policy)


def test_a_first_worker_that_is_heard_of_late_gives_a_crash_loop_no_new_budget():
    made = book(up(LATER))
    for number in range(POLICY.attempts):
        made.all(down(LATER), claim(LATER, at=NOW + number), failed(LATER, reason="no GPU"))
    made.say(up(FIRST))
    (one,) = decide(made.roster, POLICIES, NOW + 50).exhausted
    assert (one.first, one.attempts, one.reason.rpartition(": ")[2]) == (LATER, 3, "no GPU")
    made.all(failed(LATER, cordoned=True), WorkerUncordoned(worker=LATER, by="ann", why="repaired"))
    (one,) = decide(made.roster, POLICIES, NOW + 50).due
    assert (one.first, one.names, one.attempt) == (LATER, (FIRST, LATER), 1)


def test_a_stale_recoverer_says_nothing_about_a_newer_life():
    """I3."""
    made = book(up(), down(), claim(), up(incarnation=2), down(incarnation=2), claim(incarnation=2))
    assert made.say(failed(incarnation=1)).ignored is not None
    assert made.roster.workers[W].restarts.claim is not None


FACTS = st.sampled_from(["up", "down", "stopped", "claim", "failed", "started", "cordon", "uncordon", "expire"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(FACTS, st.integers(0, 3), st.integers(0, 2)), max_size=40), st.integers(1, 3))
def test_whatever_happens_the_decision_keeps_its_promises(steps, parallel):
    policies = {"rollout": msgspec.structs.replace(POLICY, parallel=parallel)}
    made, now = Book(), NOW
    for what, which, later in steps:
        now += later
        worker = f"rollout-{which // 2}-{which % 2}"
        known = made.roster.workers.get(worker)
        life = known.incarnation if known else 1
        fact = {
            "up": up(worker, life),
            "down": down(worker, life, "timeout"),
            "stopped": down(worker, life, "planned"),
            "claim": claim(worker, life, now),
            "failed": failed(worker, life),
            "started": WorkerStarted(worker=worker, incarnation=life + 1),
            "cordon": WorkerCordoned(worker=worker, by="ann", why="test"),
            "uncordon": WorkerUncordoned(worker=worker, by="ann", why="test"),
            "expire": failed(worker, life, cordoned=True, reason="enough"),
        }[what]
        made.say(fact)
        found = decide(made.roster, policies, now)
        assert found == decide(made.roster, policies, now)
        workers = made.roster.workers
        claims = [one for one in workers.values() if one.restarts is not None and one.restarts.claim is not None]
        assert len(found.due) <= max(0, parallel - len(claims))
        assert found.wake_at is None or found.wake_at > now
        for one in found.due:
            ranks = [workers[name] for name in one.names]
            assert any(rank.phase is Phase.DOWN for rank in ranks)
            assert not any(rank.name in made.roster.cordons for rank in ranks)
            assert workers[one.first].restarts is None or workers[one.first].restarts.claim is None
            assert 1 <= one.attempt <= POLICY.attempts
        assert not {one.first for one in found.due} & {one.first for one in found.exhausted}
        turns = [one.name for one in claims if is_its_turn(made.roster, one.name, policies["rollout"])]
        assert len({workers[name].cell for name in turns}) == len(turns)
        assert len(turns) == min(len({one.cell for one in claims}), parallel)


def test_the_holder_is_the_author_as_the_envelope_says():
    made = book(up(), down())
    made.roster.apply(Recorded(9, "x", "", "rollbook://f/recoverer-b", claim()))
    assert made.roster.workers[W].restarts.claim.by == "recoverer-b"
