"""Who answered a request, and whether it should have: the pure part of `verify`."""

import pytest
from support.core import POLICY, PROXY, Book

from rollbook.events import FleetEnded, WorkerCordoned, WorkerDown, WorkerUp
from rollbook.projections.looking.verification import (
    Answerer,
    Belonging,
    Verdict,
    Who,
    answerers,
    identify,
    with_counts,
)
from rollbook.projections.ports import Identity

W, OTHER = "rollout-0-0", "rollout-1-0"
HEADER = "X-Engine-Id"
IDS = {W: Identity(value="id-w", header=HEADER), OTHER: Identity(value="id-o", header=HEADER)}


def belonging(*facts):
    book = Book()
    for fact in facts:
        book.say(fact)
    return Belonging.of(book.roster, POLICY, PROXY)


def up(worker=W, incarnation=1, **fields):
    return WorkerUp(worker=worker, incarnation=incarnation, **fields)


def down(worker=W, incarnation=1):
    return WorkerDown(worker=worker, incarnation=incarnation, evidence="exited")


def cordon(worker=W):
    return WorkerCordoned(worker=worker, by="ann", why="test")


def who(worker=W, incarnation=None):
    return Who(worker, incarnation, worker)


# ---------------------------------------------------------------- who it was


@pytest.mark.parametrize(
    ("headers", "body", "found"),
    [
        ({"x-engine-id": "id-o"}, None, Who(OTHER, None, "id-o")),
        ({"x-engine-id": "a stranger's"}, {"worker": W}, Who(None, None, "a stranger's")),
        ({"x-rollbook-worker": W, "x-rollbook-incarnation": "7"}, None, Who(W, 7, W)),
        ({"x-rollbook-worker": W, "x-rollbook-incarnation": "seven"}, None, Who(W, None, W)),
        ({"x-rollbook-worker": W, "x-rollbook-incarnation": "9" * 5000}, None, Who(W, None, W)),
        ({"x-rollbook-worker": "\udcff" * 300}, None, Who("?" * 200, None, "?" * 200)),
        ({"x-engine-id": "\udcff"}, None, Who(None, None, "?")),
        ({}, {"worker": W, "incarnation": 3, "choices": []}, Who(W, 3, W)),
        ({}, {"worker": ["not", "a", "name"]}, None),
        ({}, {"choices": []}, None),
        ({}, None, None),
    ],
)
def test_who_says_to_have_answered(headers, body, found):
    assert identify(headers, body, IDS) == found


def test_a_worker_known_by_a_page_of_its_own_says_nothing_in_an_answer():
    ids = {W: Identity(value="id-w", path="/server_info", field="id")}
    assert identify({"id": "id-w"}, {"id": "id-w"}, ids) is None


# ---------------------------------------------------------------- whether it should have


@pytest.mark.parametrize(
    ("facts", "life", "verdict", "reason"),
    [
        ((up(),), who(), Verdict.RIGHT, None),
        ((up(),), who(incarnation=1), Verdict.RIGHT, None),
        ((up(),), who(incarnation=2), Verdict.RIGHT, None),
        ((up(), down()), who(), Verdict.DEAD, "down"),
        ((up(), down(), up(incarnation=2)), who(incarnation=1), Verdict.DEAD, "superseded by incarnation 2"),
        ((up(), FleetEnded(run_id="r")), who(), Verdict.DEAD, "ended"),
        ((up(), cordon()), who(), Verdict.UNWANTED, "cordoned by ann"),
        ((up("reward-0-0"),), who("reward-0-0"), Verdict.UNWANTED, "reward"),
        ((up(),), who("nobody"), Verdict.FOREIGN, "no worker of this fleet is 'nobody'"),
        ((up(),), Who(None, None, "strange"), Verdict.FOREIGN, "no worker of this fleet is 'strange'"),
    ],
)
def test_verdicts(facts, life, verdict, reason):
    found, why = belonging(*facts).judge(life)
    assert found is verdict
    assert why is None if reason is None else reason in why


def test_nobody_is_wrong_for_what_happened_meanwhile():
    before, after = belonging(up()), belonging(up(), down(), up(incarnation=2), cordon())
    [found] = answerers([who(incarnation=1)], before, after)
    assert (found.verdict, found.reason) == (Verdict.RIGHT, None)
    before, after = belonging(up(), down()), belonging(up(), down(), up(incarnation=2))
    [found] = answerers([who(incarnation=2)], before, after)
    assert found.verdict is Verdict.RIGHT


def test_who_was_wrong_before_and_is_still_is_wrong():
    state = belonging(up(), down())
    [found] = answerers([who(incarnation=1)], state, belonging(up(), down(), up(incarnation=2)))
    assert (found.verdict, found.reason) == (Verdict.DEAD, "superseded by incarnation 2")


def test_the_wrong_ones_come_first_and_the_silent_ones_are_counted_together():
    state = belonging(up(), up(OTHER), down(OTHER))
    found = answerers([who(), None, who(OTHER), None, who()], state, state)
    assert [(one.worker, one.requests, one.verdict) for one in found] == [
        (OTHER, 1, Verdict.DEAD),
        (W, 2, Verdict.RIGHT),
        (None, 2, Verdict.UNKNOWN),
    ]


# ---------------------------------------------------------------- counts


def silent(requests):
    return (Answerer(worker=None, incarnation=None, requests=requests, verdict=Verdict.UNKNOWN, how="not known"),)


def counted(requests, counts, *facts):
    state = belonging(*facts)
    return [
        (one.worker, one.requests, one.verdict, one.how) for one in with_counts(silent(requests), counts, state, state)
    ]


def test_counts_say_who_answered_and_what_is_left_stays_unknown():
    found = counted(10, {W: (1, 4), OTHER: (1, 3)}, up(), up(OTHER), down(OTHER))
    assert found == [
        (OTHER, 3, Verdict.DEAD, "counted"),
        (W, 4, Verdict.RIGHT, "counted"),
        (None, 3, Verdict.UNKNOWN, "not known"),
    ]


def test_requests_of_others_are_not_taken_for_ours():
    assert counted(5, {W: (1, 400), OTHER: (1, 7)}, up(), up(OTHER)) == [(W, 5, Verdict.RIGHT, "counted")]


def test_a_count_says_nothing_about_who_said_so_himself():
    state = belonging(up())
    found = answerers([who(), who()], state, state)
    assert with_counts(found, {W: (1, 2)}, state, state) == found
