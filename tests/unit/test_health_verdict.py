"""What answers amount to: thresholds of each kind, the first wait, and what is asked at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.events import DIRECT_EVIDENCE
from rollbook.projections.health.verdict import Down, Finding, Outcome, Suspect, Tally, Up, judge, threshold, watched
from rollbook.projections.policy import HealthPolicy
from rollbook.projections.state.worker import Phase, Suspension, new_worker

LATE = 1_000.0
POLICY = HealthPolicy()
FAILURES = [one for one in Outcome if one not in {Outcome.OK, Outcome.UNKNOWN}]


def worker(phase=Phase.SERVING, **marks):
    found = new_worker("rollout-0-0")
    found.incarnation = 1
    found.phase = phase
    for name, value in marks.items():
        setattr(found, name, value)
    return found


def say(tally, of, *outcomes, policy=POLICY, now=LATE, trusted=True):
    """The verdicts on these outcomes in turn, applied to the worker as the fold would."""
    said = []
    for outcome in outcomes:
        verdict = judge(tally, policy, of, Finding(outcome, str(outcome)), now=now, trusted=trusted)
        said.append(verdict)
        match verdict:
            case Suspect(reason):
                of.suspicion = reason
            case Down(evidence, _):
                of.phase, of.evidence, of.suspicion = Phase.DOWN, evidence, None
            case Up():
                of.phase, of.evidence, of.suspicion = Phase.SERVING, None, None
    return said


def answered(**fields):
    return Tally(1, 0.0, answered=True, **fields)


def kinds(verdicts):
    return [None if one is None else type(one) for one in verdicts]


@pytest.mark.parametrize(
    ("outcome", "evidence", "times"),
    [
        (Outcome.GONE, "actor_dead", 1),
        (Outcome.REFUSED, "refused", 2),
        (Outcome.SLOW, "timeout", 3),
        (Outcome.BUSY, "unhealthy", 12),
        (Outcome.UNHEALTHY, "unhealthy", 3),
    ],
)
def test_each_way_of_failing_has_its_own_threshold_and_evidence(outcome, evidence, times):
    said = say(answered(), worker(), *[outcome] * times)
    assert kinds(said) == ([Suspect] + [None] * (times - 2) + [Down] if times > 1 else [Down])
    assert said[-1].evidence == evidence
    assert (evidence in DIRECT_EVIDENCE) is (outcome in {Outcome.GONE, Outcome.REFUSED})


def test_ways_of_failing_are_counted_apart_and_a_good_answer_clears_all():
    tally = answered()
    said = say(tally, worker(), Outcome.SLOW, Outcome.REFUSED, Outcome.SLOW, Outcome.UNHEALTHY, Outcome.UNHEALTHY)
    assert kinds(said) == [Suspect, None, None, None, None]
    assert kinds(say(tally, worker(), Outcome.OK, Outcome.SLOW, Outcome.SLOW)) == [None, Suspect, None]


def test_what_could_not_be_asked_counts_for_nothing():
    tally = answered(failures={Outcome.SLOW: 2})
    assert say(tally, worker(), *[Outcome.UNKNOWN] * 9) == [None] * 9
    assert tally == answered(failures={Outcome.SLOW: 2})


def test_a_threshold_of_0_is_never_reached():
    policy = HealthPolicy(slow_threshold=0)
    assert kinds(say(answered(), worker(), *[Outcome.SLOW] * 99, policy=policy)) == [Suspect] + [None] * 98


def test_one_that_is_suspected_already_is_not_suspected_again():
    assert kinds(say(answered(), worker(suspicion="another monitor"), Outcome.SLOW)) == [None]


@pytest.mark.parametrize("of", [worker(Phase.STARTING), worker(Phase.DOWN), worker(suspicion="slow")])
def test_up_follows_the_success_threshold_where_it_is_news(of):
    policy = HealthPolicy(success_threshold=3)
    outcomes = [Outcome.OK, Outcome.OK, Outcome.SLOW, Outcome.OK, Outcome.OK, Outcome.OK, Outcome.OK]
    said = say(answered(), of, *outcomes, policy=policy)
    assert [type(one) is Up for one in said] == [False] * 5 + [True, False]


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.DRAINING])
def test_up_is_not_said_of_who_is_up_or_drains(phase):
    assert say(answered(), worker(phase), *[Outcome.OK] * 5) == [None] * 5


def test_the_first_wait_ends_with_the_first_good_answer():
    tally = Tally(1, 0.0)
    policy = HealthPolicy(first_wait=60)
    of = worker()
    assert say(tally, of, *[Outcome.SLOW] * 9, policy=policy, now=59.9) == [None] * 9
    assert kinds(say(tally, of, Outcome.OK, Outcome.SLOW, policy=policy, now=10)) == [None, Suspect]
    assert kinds(say(Tally(1, 0.0), worker(), Outcome.SLOW, policy=policy, now=60)) == [Suspect]


def test_during_the_first_wait_a_serving_worker_must_accept_connections():
    refused = [Outcome.REFUSED] * 2
    assert kinds(say(Tally(1, 0.0), worker(), *refused, now=1)) == [Suspect, Down]
    assert say(Tally(1, 0.0), worker(Phase.STARTING), *refused, now=1) == [None, None]


def test_a_pool_that_never_answered_may_be_looked_for_at_the_wrong_place():
    assert say(Tally(1, 0.0), worker(), *[Outcome.REFUSED] * 9, now=1, trusted=False) == [None] * 9


def test_an_actor_that_is_dead_is_dead_while_it_starts():
    assert kinds(say(Tally(1, 0.0), worker(Phase.STARTING), Outcome.GONE, now=1)) == [Down]


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40), st.data())
def test_nobody_is_down_before_one_way_of_failing_reached_its_threshold_since_the_last_good_answer(outcomes, data):
    limits = st.integers(0, 4)
    policy = HealthPolicy(
        dead_threshold=data.draw(st.integers(1, 4)),
        slow_threshold=data.draw(limits),
        busy_threshold=data.draw(limits),
        unhealthy_threshold=data.draw(limits),
        success_threshold=data.draw(st.integers(1, 4)),
    )
    tally, of = answered(), worker()
    for number, outcome in enumerate(outcomes):
        verdict = judge(tally, policy, of, Finding(outcome), now=LATE, trusted=True)
        heard = [one for one in outcomes[: number + 1] if one is not Outcome.UNKNOWN]
        good = max((at for at, one in enumerate(heard) if one is Outcome.OK), default=-1)
        since = heard[good + 1 :]
        reached = any(0 < threshold(policy, one) <= since.count(one) for one in FAILURES)
        if isinstance(verdict, Down):
            assert reached
        elif outcome in FAILURES:
            assert not 0 < threshold(policy, outcome) <= since.count(outcome)
        assert not isinstance(verdict, Up)


@pytest.mark.parametrize(
    ("of", "asked"),
    [
        (worker(Phase.STARTING), True),
        (worker(), True),
        (worker(Phase.DRAINING), True),
        (worker(Phase.ABSENT), False),
        (worker(Phase.RETIRED), False),
        (worker(suspension=Suspension("weights", None, 1)), False),
        (worker(entrypoint=False), False),
        *((worker(Phase.DOWN, evidence=one), True) for one in ("refused", "timeout", "unhealthy", "lease_expired")),
        *((worker(Phase.DOWN, evidence=one), False) for one in ("exited", "actor_dead", "operator", "planned")),
    ],
)
def test_who_is_asked(of, asked):
    assert watched(of, HealthPolicy()) is asked
    assert not watched(of, HealthPolicy(probe="off"))


def test_all_ranks_are_asked_where_that_is_said():
    assert watched(worker(entrypoint=False), HealthPolicy(every_rank=True))
