"""The plan: what one proxy lists against what it should list, step by step."""

import msgspec
import pytest
from support.core import FLEET, PROXY, folded
from support.plans import entry, plan, url_of

from rollbook.events import (
    Deregistering,
    Registered,
    Registering,
    RegistrationFailed,
    WorkerCordoned,
    WorkerDown,
    WorkerForgotten,
    WorkerUp,
)
from rollbook.projections.deciding.observed import observe
from rollbook.projections.deciding.plan import Add, Adopt, Remove, Settle
from rollbook.projections.ports import Entry, Listing
from rollbook.projections.state.ledger import ProxyRecord

W = "rollout-0-0"
UP1, UP2 = (WorkerUp(worker=W, incarnation=incarnation) for incarnation in (1, 2))
DOWN = WorkerDown(worker=W, incarnation=1, evidence="exited")
URL = url_of(W)


def told(fact, incarnation=1, url=URL, worker=W, **fields):
    return fact(proxy=PROXY.name, worker=worker, incarnation=incarnation, url=url, **fields)


def failed(action, incarnation=1):
    return told(RegistrationFailed, incarnation, action=action, reason="no such call", retryable=False)


# ---------------------------------------------------------------- one worker, one step


def test_wanted_and_not_listed_is_added():
    assert plan([UP1]).actions == (Add(W, 1),)


def test_wanted_and_listed_needs_nothing():
    assert plan([UP1, told(Registered)], entry(W, 1)).actions == ()


@pytest.mark.parametrize("fact", [None, told(Registering), told(Deregistering), told(Registered, url="http://old")])
def test_wanted_and_listed_without_an_outcome_in_the_log_is_adopted(fact):
    """[I5]: a crash between intent and outcome; another one's word is not needed for what the listing shows."""
    facts = [UP1] if fact is None else [UP1, fact]
    assert plan(facts, entry(W, 1)).actions == (Adopt(W, 1, URL, 0 if fact is None else 2),)


@pytest.mark.parametrize("fact", [told(Registered), told(Registering), told(Deregistering)])
def test_unwanted_and_listed_is_removed(fact):
    """[I2]."""
    listed = entry(W, 1)
    assert plan([UP1, DOWN, fact], listed).actions == (Remove(W, 1, listed, "serving: down (exited)"),)


@pytest.mark.parametrize("fact", [told(Registered), told(Registering), told(Deregistering)])
def test_unwanted_and_not_listed_is_settled(fact):
    assert plan([UP1, DOWN, fact]).actions == (Settle(W, 1, URL, 3),)


def test_unwanted_unlisted_and_unknown_to_the_log_needs_nothing():
    assert plan([UP1, DOWN]).actions == ()


def test_an_old_life_goes_before_the_new_one_comes():
    """Same URL or not: remove, then add."""
    old = entry(W, 1)
    assert plan([UP1, told(Registered), UP2], old).actions == (Remove(W, 1, old, "superseded by incarnation 2"),)
    assert plan([UP1, told(Registered), UP2]).actions == (Settle(W, 1, URL, 2), Add(W, 2))


@pytest.mark.parametrize("facts", [[UP1], [UP1, told(Registering)], [UP1, told(Registered)]])
def test_what_the_proxy_keeps_out_of_rotation_is_no_registration(facts):
    """[I1]: an add that was cut short, or a drain that was not wanted in the end; remove, then add."""
    kept_out = msgspec.structs.replace(entry(W, 1), in_rotation=False)
    assert plan(facts, kept_out).actions == (
        Remove(W, 1, kept_out, "the proxy keeps it out of rotation", unless_wanted=False),
    )
    assert plan([*facts, failed("deregister")], kept_out).actions == ()


def test_a_ghost_of_an_old_life_goes_and_the_current_entry_stays():
    """[I4]."""
    ghost = entry(W, 1, url="http://10.9.9.9:1")
    made = plan([UP1, UP2, told(Registered, 2)], entry(W, 2), ghost)
    assert made.actions == (Remove(W, 1, ghost, "superseded by incarnation 2"),)


def test_of_several_entries_of_one_life_the_one_that_the_log_names_stays():
    """[I4]."""
    spare = entry(W, 1, url="http://10.9.9.9:1")
    for listed in ([spare, entry(W, 1)], [entry(W, 1), spare]):
        assert plan([UP1, told(Registered)], *listed).actions == (
            Remove(W, 1, spare, "listed more than once", unless_wanted=False),
        )


def test_an_entry_that_is_reported_twice_is_there_once():
    """[I4]: removing the second would remove the only one."""
    assert plan([UP1, told(Registered)], entry(W, 1), entry(W, 1)).actions == ()
    assert plan([UP1, DOWN, told(Registered)], entry(W, 1), entry(W, 1)).actions == (
        Remove(W, 1, entry(W, 1), "serving: down (exited)"),
    )


def test_the_reason_of_a_removal_is_the_gate_or_the_newer_life():
    listed = entry(W, 1)
    cordoned = plan([UP1, WorkerCordoned(worker=W, by="ann", why="noisy")], listed).actions
    newer = plan([UP1, WorkerDown(worker=W, incarnation=2, evidence="exited")], listed).actions
    forgotten = plan([UP1, WorkerForgotten(worker=W, by="ann", why="gone")], listed).actions
    reasons = [action.reason for actions in (cordoned, newer, forgotten) for action in actions]
    assert reasons == [
        "not_cordoned: cordoned by ann: noisy",
        "superseded by incarnation 2",
        "not_forgotten: an operator had it forgotten",
    ]


def test_what_the_proxy_cannot_do_is_not_asked_for_again():
    """It is shown, never retried; another life is another matter."""
    listed = entry(W, 1)
    assert plan([UP1, failed("register")]).actions == ()
    assert plan([UP1, DOWN, failed("deregister")], listed).actions == ()
    assert plan([UP1, failed("deregister"), UP2], listed).actions == (Add(W, 2),)
    assert plan([UP1, failed("register"), UP2]).actions == (Settle(W, 1, URL, 2), Add(W, 2))
    assert plan([UP1, failed("register"), DOWN], listed).actions != ()
    assert plan([UP1, failed("deregister")], listed).actions == (Adopt(W, 1, URL, 2),)
    assert plan([UP1, failed("deregister")], listed, entry(W, 1, url="http://10.9.9.9:1")).actions == ()


# ---------------------------------------------------------------- which workers, and drift


def test_all_whom_roster_ledger_or_listing_know_are_looked_at_or_those_that_are_named():
    other = entry("rollout-9-0", 3)
    facts = [UP1, told(Registered, worker="rollout-5-0")]
    everything = plan(facts, other)
    assert {action.worker for action in everything.actions} == {W, "rollout-5-0", "rollout-9-0"}
    assert {action.worker for action in plan(facts, other, workers=["rollout-9-0", "nobody"]).actions} == {
        "rollout-9-0"
    }


def test_missing_is_what_the_log_says_is_registered_and_the_proxy_lost():
    assert plan([UP1, told(Registered)]).missing == (W,)
    assert plan([UP1, told(Registering)]).missing == ()
    assert plan([UP1, DOWN, told(Registered)]).missing == ()


def test_unexpected_is_a_life_of_ours_that_the_log_does_not_know_to_be_registered():
    assert plan([UP1], entry(W, 1)).unexpected == (W,)
    assert plan([UP1, UP2, told(Registered, 2)], entry(W, 2), entry(W, 1)).unexpected == (W,)
    assert plan([UP1, told(Registered)], entry(W, 1)).unexpected == ()
    assert plan([UP1, told(Registered), DOWN], entry(W, 1)).unexpected == ()


# ---------------------------------------------------------------- whose an entry is


def look(*entries, facts=()):
    return observe(FLEET, folded(*facts).ledger.look(PROXY.name), Listing(entries))


def test_entries_are_told_apart_by_tag():
    """[I11]."""
    mine, theirs, plain = entry(W, 1), entry(W, 1, fleet="g", url="http://g"), Entry(url="http://p", handle="p")
    found = look(mine, theirs, plain)
    assert {name: [own.entry for own in owned] for name, owned in found.owned.items()} == {W: [mine]}
    assert found.foreign == ("http://g", "http://p")
    assert {url: own is not None for url, own in found.urls.items()} == {
        URL: True,
        "http://g": False,
        "http://p": False,
    }


def test_entries_without_tags_are_told_apart_by_the_urls_in_the_log():
    """[I11]; the newest word on a URL counts."""
    plain = Entry(url=URL, handle=URL)
    facts = [told(Registered), told(Registered, 4, worker="rollout-7-0")]
    assert look(plain).foreign == (URL,)
    assert look(plain, facts=facts[:1]).owned[W][0].incarnation == 1
    assert set(look(plain, facts=facts).owned) == {"rollout-7-0"}
    assert look(entry(None, None, fleet="g"), facts=facts).foreign == (URL,)


@pytest.mark.parametrize(
    ("worker", "incarnation"),
    [("a b", 1), ("", 1), ("x" * 200, 1), ("a.b", 1), (W, 0), (W, -3), (W, None), (None, 1)],
)
def test_tags_that_no_worker_of_ours_can_have_make_an_entry_foreign(worker, incarnation):
    """[I10] [I11]: anyone may write labels; a fact about such a worker could not be written."""
    assert look(entry(worker, incarnation, url=URL)).foreign == (URL,)


def test_an_empty_listing_has_nothing():
    found = observe(FLEET, ProxyRecord(), Listing(()))
    assert (found.owned, found.foreign, found.urls) == ({}, (), {})
