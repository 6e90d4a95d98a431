"""The roster's fold of what concerns the whole fleet: runs, and the listings that heal lost edges."""

import msgspec
import pytest
from support.core import Book, bare

from rollbook.events import (
    CellDeclared,
    FleetEnded,
    FleetObserved,
    FleetStarted,
    ObservedWorker,
    ObserverSilent,
    ReconcileHeld,
    RecoveryStarted,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerForgotten,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.projections.state.bounds import LONGEST_KEPT
from rollbook.projections.state.worker import Phase

A, B, C = "rollout-0-0", "rollout-1-0", "reward-0-0"
BY = {"by": "ann", "why": "test"}


def up(worker, incarnation=1, **fields):
    return WorkerUp(worker=worker, incarnation=incarnation, **fields)


def listing(as_of, *lines, observer="manager", pools=("rollout",)):
    """Lines are names, (name, incarnation) or (name, incarnation, serving)."""
    workers = []
    for line in lines:
        name, incarnation, serving = (*((line,) if isinstance(line, str) else line), 1, True)[:3]
        workers.append(ObservedWorker(worker=name, incarnation=incarnation, serving=serving))
    return FleetObserved(observer=observer, pools=pools, as_of=as_of, workers=tuple(workers))


def phases(book):
    return {name: worker.phase for name, worker in book.roster.workers.items()}


# ---------------------------------------------------------------- runs


def test_a_reason_of_any_length_leaves_the_state_small():
    """[I9]: a snapshot of it must be taken and read; the log has the reasons whole."""
    long = "x" * 800_000
    book = Book()
    book.all(*(up(f"rollout-{number}-0") for number in range(100)))
    book.all(
        WorkerSuspected(worker=A, incarnation=1, reason=long),
        WorkerSuspended(worker=A, incarnation=1, reason=long, until=long),
        WorkerDown(worker=B, incarnation=1, evidence="exited", reason=long),
        WorkerCordoned(worker=A, by=long, why=long),
        ReconcileHeld(by=long, why=long),
        FleetEnded(run_id="one", reason=long),
    )
    assert len(msgspec.msgpack.encode(book.roster)) < 200 * 2 * LONGEST_KEPT
    book.say(FleetStarted(run_id=long))
    assert {len(worker.reason) for worker in book.roster.workers.values()} <= set(range(2 * LONGEST_KEPT))


def test_a_run_retires_the_workers_of_earlier_runs_and_resets_the_bar():
    book = Book()
    book.all(up(A), WeightsPublished(pool="rollout", version=3), WorkerCordoned(worker=B, **BY))
    assert book.say(FleetStarted(run_id="one")).everything
    assert (phases(book), book.roster.bars, book.roster.run_id) == ({A: Phase.RETIRED}, {}, "one")
    assert B in book.roster.cordons
    assert book.say(up(A)).ignored
    book.say(up(A, 2))
    assert phases(book) == {A: Phase.SERVING}


def test_a_run_that_has_begun_does_not_begin_again():
    book = Book()
    book.all(FleetStarted(run_id="one"), up(A))
    assert "begun already" in book.say(FleetStarted(run_id="one")).ignored
    assert phases(book) == {A: Phase.SERVING}


def test_the_end_of_the_run_retires_everything():
    book = Book()
    book.all(FleetStarted(run_id="one"), up(A), up(B))
    assert book.say(FleetEnded(run_id="one", reason="done")).everything
    assert phases(book) == {A: Phase.RETIRED, B: Phase.RETIRED}
    assert (book.roster.ended, book.roster.workers[A].reason) == (True, "done")
    book.say(FleetStarted(run_id="two"))
    assert book.roster.ended is False


def test_a_run_that_has_ended_may_begin_again_under_its_name():
    """A trainer that goes on from its checkpoint; or somebody ended it by mistake."""
    book = Book()
    book.all(FleetStarted(run_id="one"), up(A), FleetEnded(run_id="one"))
    assert book.say(FleetStarted(run_id="one")).everything
    assert (book.roster.ended, book.roster.ending) == (False, None)
    book.say(up(A, 2))
    assert phases(book) == {A: Phase.SERVING}


def test_the_late_end_of_an_earlier_run_ends_nothing():
    """[I3]."""
    book = Book()
    book.all(FleetStarted(run_id="one"), FleetStarted(run_id="two"), up(A))
    change = book.say(FleetEnded(run_id="one"))
    assert "run two has begun since" in change.ignored
    assert (phases(book), book.roster.ended) == ({A: Phase.SERVING}, False)


def test_the_end_of_a_run_whose_beginning_nobody_told():
    book = Book()
    book.all(up(A), FleetEnded(run_id="one"))
    assert phases(book) == {A: Phase.RETIRED}


def test_a_silent_observer_puts_nobody_down():
    book = Book()
    book.say(up(A))
    before = bare(book.roster)
    book.say(ObserverSilent(observer="manager", silent_seconds=60))
    assert bare(book.roster) == before


# ---------------------------------------------------------------- what a listing omits


def test_what_a_listing_omits_is_down_and_what_it_lists_lives():
    book = Book()
    book.all(up(A), up(B))
    change = book.say(listing(2, A))
    assert phases(book) == {A: Phase.SERVING, B: Phase.DOWN}
    assert (book.roster.workers[B].evidence, change.workers) == ("not_observed", (B,))


def test_lives_begun_after_the_listing_began_are_not_touched():
    book = Book()
    book.all(up(A), up(B), up(B, 2))
    book.say(listing(2))
    assert phases(book) == {A: Phase.DOWN, B: Phase.SERVING}


def test_other_pools_are_not_touched():
    book = Book()
    book.all(up(A), up(C))
    book.say(listing(2, (C, 9)))
    assert phases(book) == {A: Phase.DOWN, C: Phase.SERVING}
    assert book.roster.workers[C].incarnation == 1


@pytest.mark.parametrize("as_of", [1, 2])
def test_an_older_listing_of_the_same_observer_is_ignored(as_of):
    book = Book()
    book.all(up(A), up(B), listing(2, A, B))
    assert "older listing" in book.say(listing(as_of)).ignored
    assert phases(book) == {A: Phase.SERVING, B: Phase.SERVING}


def test_a_listing_from_the_future_is_ignored_and_spoils_no_later_one():
    """Its `as_of` would put down lives begun since, and make every true listing of its observer an older one."""
    book = Book()
    book.all(up(A), up(B))
    assert "no sequence of this log" in book.say(listing(MAX_INTEGER)).ignored
    assert "no sequence of this log" in book.say(listing(4)).ignored
    assert phases(book) == {A: Phase.SERVING, B: Phase.SERVING}
    book.say(listing(4, A))
    assert phases(book) == {A: Phase.SERVING, B: Phase.DOWN}


def test_observers_are_told_apart():
    book = Book()
    book.all(up(A), up(C), listing(3, A))
    book.say(listing(2, observer="other", pools=("reward",)))
    assert phases(book) == {A: Phase.SERVING, C: Phase.DOWN}


def test_what_ended_otherwise_is_not_put_down_again():
    book = Book()
    book.all(up(A), WorkerRetired(worker=A, incarnation=1))
    assert book.say(listing(2)).workers == ()
    assert phases(book) == {A: Phase.RETIRED}


def test_an_older_life_in_the_listing_means_that_the_newer_one_is_gone():
    book = Book()
    book.all(up(A), up(A, 2))
    book.say(listing(2, (A, 1)))
    assert (phases(book), book.roster.workers[A].incarnation) == ({A: Phase.DOWN}, 2)


# ---------------------------------------------------------------- what it lists


def test_a_listed_life_that_nobody_told_begins():
    book = Book()
    book.say(listing(0, A, (B, 4, False)))
    assert phases(book) == {A: Phase.SERVING, B: Phase.STARTING}
    assert book.roster.workers[B].incarnation == 4
    assert book.roster.cells == {"rollout/0": [A], "rollout/1": [B]}
    book.say(listing(1, (A, 2), (B, 4)))
    assert (phases(book), book.roster.workers[A].incarnation) == ({A: Phase.SERVING, B: Phase.SERVING}, 2)


def test_a_starting_life_that_is_listed_as_serving_serves():
    book = Book()
    book.all(WorkerStarted(worker=A, incarnation=1), listing(1, A))
    assert phases(book) == {A: Phase.SERVING}


def test_what_was_only_not_observed_is_healed_by_a_later_listing():
    book = Book()
    book.all(up(A), listing(1))
    assert phases(book) == {A: Phase.DOWN}
    book.say(listing(2, A))
    assert (phases(book), book.roster.workers[A].evidence) == ({A: Phase.SERVING}, None)


def test_a_listing_begun_before_it_was_put_down_heals_nothing():
    book = Book()
    book.all(up(A), listing(1), listing(1, A, observer="slow"))
    assert phases(book) == {A: Phase.DOWN}


@pytest.mark.parametrize(
    "fact",
    [
        WorkerDown(worker=A, incarnation=1, evidence="actor_dead"),
        WorkerDown(worker=A, incarnation=1, evidence="timeout"),
    ],
)
def test_the_dead_are_not_healed_whatever_came_first(fact):
    """[I2]: it was said to be dead, before or after it was missing in a listing."""
    first, second = Book(), Book()
    first.all(up(A), fact, listing(2), listing(3, A))
    second.all(up(A), listing(1), fact, listing(3, A))
    assert phases(first) == phases(second) == {A: Phase.DOWN}


def test_a_listing_begun_before_the_last_word_heals_nothing():
    """[I2]: somebody began to replace it after the listing began."""
    book = Book()
    book.all(up(A), listing(1), RecoveryStarted(worker=A, incarnation=1))
    book.say(listing(2, A))
    assert phases(book) == {A: Phase.DOWN}


def test_draining_and_retired_lives_stay_what_they_are():
    book = Book()
    book.all(up(A), WorkerRetired(worker=A, incarnation=1), listing(2, A))
    assert phases(book) == {A: Phase.RETIRED}


def test_forgotten_workers_return_by_a_higher_life_only():
    book = Book()
    book.all(up(A, 3), WorkerForgotten(worker=A, **BY), listing(2, (A, 3)))
    assert phases(book) == {}
    book.say(listing(3, (A, 4)))
    assert (phases(book), book.roster.tombstones) == ({A: Phase.SERVING}, {})


def test_declared_cells_belong_to_their_run_and_a_late_declaration_changes_nothing():
    book = Book()
    book.say(CellDeclared(pool="rollout", cell="0", size=2, cell_incarnation=7))
    late = book.say(CellDeclared(pool="rollout", cell="0", size=4, cell_incarnation=6))
    assert late.ignored == "a later cell incarnation is declared"
    assert (book.roster.declared["rollout/0"].size, book.roster.declared["rollout/0"].cell_incarnation) == (2, 7)
    book.say(FleetStarted(run_id="one"))
    assert book.roster.declared == {}
