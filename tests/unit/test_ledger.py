"""The ledger's fold: what each proxy was told about each life, and what it answered."""

import pytest
from support.core import TIME

from rollbook.events import (
    Deregistered,
    Deregistering,
    DriftFound,
    LeadershipTaken,
    ProxyReachable,
    ProxyUnreachable,
    Recorded,
    Registered,
    Registering,
    RegistrationFailed,
    RemovalWithheld,
    WorkerUp,
)
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.projections.state.ledger import FARTHEST_EPOCH, Ledger, ProxyRecord, Registration, Told
from rollbook.projections.state.roster import NOTHING

W, URL = "rollout-0-0", "http://10.0.0.1:8000"


def about(fact, incarnation=1, proxy="a", worker=W, url=URL, **fields):
    return fact(proxy=proxy, worker=worker, incarnation=incarnation, url=url, **fields)


def failed(action="register", reason="refused", retryable=True, **fields):
    return about(RegistrationFailed, action=action, reason=reason, retryable=retryable, **fields)


def fold(*facts):
    ledger = Ledger()
    for sequence, fact in enumerate(facts, 1):
        ledger.apply(Recorded(sequence, f"id-{sequence}", TIME, "test", fact))
    return ledger


def lives(*facts, proxy="a", worker=W):
    return fold(*facts).look(proxy).registrations.get(worker, {})


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        (about(Registering, reason="belongs here"), Told.REGISTERING),
        (about(Registered), Told.REGISTERED),
        (about(Deregistering, reason="serving: down"), Told.DEREGISTERING),
        (failed(), Told.FAILED),
        (failed(retryable=False), Told.ADD_UNSUPPORTED),
        (failed(action="deregister", retryable=False), Told.REMOVE_UNSUPPORTED),
    ],
)
def test_the_last_word_counts(fact, told):
    found = lives(about(Registering), fact)[1]
    assert (found.told, found.url, found.sequence, found.time) == (told, URL, 2, TIME)


def test_an_intent_without_outcome_stays_open():
    """[I5]: ours, to be read again or redone."""
    assert lives(about(Registering))[1].told is Told.REGISTERING
    assert lives(about(Registered), about(Deregistering))[1].told is Told.DEREGISTERING


def test_reasons_and_failures_in_a_row():
    first = lives(about(Registering, reason="belongs here"))[1]
    second = lives(about(Registering), failed(), about(Registering), failed(action="deregister", reason="busy"))[1]
    third = lives(failed(), about(Registered))[1]
    assert (first.reason, first.failures) == ("belongs here", 0)
    assert (second.reason, second.failures) == ("deregister: busy", 2)
    assert (third.reason, third.failures) == ("", 0)


def test_a_deregistered_life_is_dropped_and_no_other():
    """[I3]: a late removal of the old life leaves the new one as it was."""
    found = lives(about(Registered), about(Registered, incarnation=2), about(Deregistered, incarnation=1))
    assert set(found) == {2}
    assert fold(about(Registered), about(Deregistered)).look("a").registrations == {}
    assert fold(about(Deregistered)).look("a").registrations == {}


def test_proxies_are_told_apart():
    ledger = fold(about(Registered), about(Registering, proxy="b", url="http://b"))
    assert ledger.look("a").registrations[W][1].told is Told.REGISTERED
    assert ledger.look("b").registrations[W][1] == Registration(Told.REGISTERING, "http://b", 2, TIME)
    assert (ledger.look("a").sequence, ledger.look("b").sequence) == (1, 2)


def test_looking_at_an_unknown_proxy_changes_nothing():
    ledger = Ledger()
    assert ledger.look("a") == ProxyRecord()
    assert ledger.proxies == {}


def test_reachability_and_version():
    record = fold(ProxyReachable(proxy="a", version="1"), ProxyUnreachable(proxy="a", reason="refused")).look("a")
    assert (record.reachable, record.reason, record.version) == (False, "refused", "1")
    record = fold(ProxyUnreachable(proxy="a", reason="refused"), ProxyReachable(proxy="a", version="2")).look("a")
    assert (record.reachable, record.reason, record.version, record.since) == (True, "", "2", TIME)


def test_the_owner_and_what_is_foreign():
    record = fold(LeadershipTaken(proxy="a", owner="me", epoch=3), DriftFound(proxy="a", foreign=("http://x",))).look(
        "a"
    )
    assert (record.owner, record.epoch, record.foreign, record.sequence) == ("me", 3, ("http://x",), 2)


@pytest.mark.parametrize("epoch", [MAX_INTEGER, FARTHEST_EPOCH + 4])
def test_i7_an_absurd_epoch_deposes_nobody_and_leaves_epochs_to_outrank_it(epoch):
    def taken(owner, epoch):
        return LeadershipTaken(proxy="a", owner=owner, epoch=epoch)

    record = fold(taken("one", 3), taken("forged", epoch)).look("a")
    assert (record.owner, record.epoch, record.sequence) == ("one", 3, 2)
    assert fold(taken("one", 3), taken("two", FARTHEST_EPOCH + 3)).look("a").owner == "two"


@pytest.mark.parametrize(
    "fact", [LeadershipTaken(proxy="a", owner="me", epoch=2), ProxyReachable(proxy="a", version="2")]
)
@pytest.mark.parametrize("action", ["register", "deregister"])
def test_what_was_unsupported_is_tried_again_by_a_new_controller_and_at_a_new_proxy(fact, action):
    found = lives(failed(action=action, reason="no such call", retryable=False), fact)[1]
    told = Told.ADD_UNSUPPORTED if action == "register" else Told.REMOVE_UNSUPPORTED
    assert (found.told, found.reason, found.again) == (told, f"{action}: no such call", True)


def test_whose_registration_changed_is_said():
    ledger = Ledger()

    def change(fact):
        return ledger.apply(Recorded(1, "id", TIME, "test", fact))

    assert change(about(Registering)).workers == (W,)
    assert change(ProxyReachable(proxy="a")) == NOTHING
    assert change(RemovalWithheld(proxy="a", pool="rollout", workers=(W,), budget=1)) == NOTHING
    assert change(WorkerUp(worker=W, incarnation=1)) == NOTHING
