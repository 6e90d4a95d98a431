"""The roster's fold, fact by fact: lives, marks, operators' decisions, cells, weights."""

import random

import pytest
from support.core import Book, bare

from rollbook.events import (
    CellDeclared,
    DrainRequested,
    FleetObserved,
    FleetStarted,
    ObservedWorker,
    ReconcileHeld,
    ReconcileReleased,
    RecoveryFailed,
    RecoveryStarted,
    WeightsLoaded,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerDraining,
    WorkerForgotten,
    WorkerResumed,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUncordoned,
    WorkerUp,
)
from rollbook.projections.state.repetition import REMEMBERED_IDS, repeated
from rollbook.projections.state.roster import MOST_OBSERVERS, Decision
from rollbook.projections.state.transitions import NOT_SEEN
from rollbook.projections.state.worker import Phase

W = "rollout-0-0"
BY = {"by": "ann", "why": "test"}
WORKER_FACTS = (
    WorkerStarted, WorkerUp, WorkerDown, WorkerSuspected, WorkerSuspended, WorkerResumed, WorkerDraining, WorkerRetired,
    WeightsLoaded, RecoveryStarted,
)  # fmt: skip
DECISIONS = (WorkerCordoned, WorkerUncordoned, WorkerForgotten, DrainRequested)


def up(incarnation=1, worker=W, **fields):
    return WorkerUp(worker=worker, incarnation=incarnation, **fields)


def down(incarnation=1, worker=W, evidence="exited", **fields):
    return WorkerDown(worker=worker, incarnation=incarnation, evidence=evidence, **fields)


def rank(number, cell_incarnation=1, fact=WorkerUp, incarnation=1, size=2):
    return fact(
        worker=f"rollout-3-{number}", incarnation=incarnation, cell_size=size, cell_incarnation=cell_incarnation
    )


# ---------------------------------------------------------------- an Up after a Down


@pytest.mark.parametrize(("seen", "alive"), [(0, False), (1, False), (2, True), (3, False), (7, False)])
def test_an_up_revives_only_if_its_author_had_seen_the_down(seen, alive):
    """[I2]. What is not before the Up itself was seen in an earlier log of this name."""
    book = Book()
    book.all(up(), down())
    change = book.say(up(seen=seen))
    assert book.roster.workers[W].phase is (Phase.SERVING if alive else Phase.DOWN)
    assert change.ignored == (None if alive else NOT_SEEN)


def test_an_up_that_saw_an_earlier_down_does_not_revive_what_died_again():
    """[I2]: it is late with regard to the last Down, which it cannot have known."""
    book = Book()
    book.all(up(), down(evidence="unhealthy"), down(evidence="actor_dead"))
    assert book.say(up(seen=2)).ignored == NOT_SEEN
    assert book.roster.workers[W].phase is Phase.DOWN
    assert book.say(up(seen=3)).ignored is None


def test_a_recovery_that_began_or_failed_is_not_a_down():
    book = Book()
    fields = {"worker": W, "incarnation": 1}
    book.all(up(), down(), RecoveryStarted(**fields), RecoveryFailed(**fields))
    assert book.say(up(seen=2)).ignored is None


def test_direct_evidence_replaces_inferred_evidence_and_is_kept():
    book = Book()
    book.all(up(), down(evidence="timeout", reason="slow"), down(evidence="exited", reason="code 1"))
    assert (book.roster.workers[W].evidence, book.roster.workers[W].reason) == ("exited", "code 1")
    book.say(down(evidence="lease_expired", reason="quiet"))
    assert (book.roster.workers[W].evidence, book.roster.workers[W].reason) == ("exited", "code 1")


def test_a_recovery_ends_a_serving_life_as_planned():
    book = Book()
    book.all(up(), RecoveryStarted(worker=W, incarnation=1))
    assert (book.roster.workers[W].phase, book.roster.workers[W].evidence) == (Phase.DOWN, "planned")


def test_since_stays_at_the_fact_that_brought_it_into_the_phase():
    book = Book()
    book.all(up(), up(), down(), down())
    worker = book.roster.workers[W]
    assert (worker.since_sequence, worker.ended, worker.last, worker.began) == (3, 4, 4, 1)


# ---------------------------------------------------------------- repeated ids


def test_a_repeated_id_changes_nothing():
    book = Book()
    book.say(up(), "one")
    before = bare(book.roster)
    change = book.say(down(), "one")
    assert change.ignored == "a repeated id"
    assert bare(book.roster) == before


def test_the_last_32_ids_of_each_worker_are_remembered():
    book = Book()
    book.say(up(), "first")
    for number in range(REMEMBERED_IDS - 1):
        book.say(up(), f"n{number}")
    book.say(up(worker="other"), "o1")
    assert book.say(down(), "first").ignored == "a repeated id"
    book.say(up(), "one too many")
    assert REMEMBERED_IDS == 32
    assert len(book.roster.recent[W]) == 32
    assert book.say(down(), "first").ignored is None


def test_ids_are_remembered_for_operators_and_the_fleet_too():
    book = Book()
    book.say(WorkerCordoned(worker=W, **BY), "c")
    book.say(WeightsPublished(pool="rollout", version=1), "w")
    assert book.say(WorkerCordoned(worker=W, **BY), "c").ignored == "a repeated id"
    assert book.say(WeightsPublished(pool="rollout", version=2), "w").ignored == "a repeated id"
    assert book.roster.bars["rollout"].version == 1


def test_ids_of_lives_that_no_fact_can_change_are_not_kept():
    """Where names are never used again, the state and its snapshots would grow by 32 ids for each, for ever."""
    book = Book()
    book.all(up(), up(worker="other"), WorkerCordoned(worker=W, **BY), WorkerRetired(worker=W, incarnation=1))
    assert set(book.roster.recent) == {"other"}
    book.all(WorkerForgotten(worker="other", **BY))
    assert book.roster.recent == {}
    book.all(up(worker="late"), down(), FleetStarted(run_id="two"))
    assert set(book.roster.recent) == {""}
    assert set(book.roster.decided) == {W, "other"}


@pytest.mark.parametrize("seed", range(40))
def test_what_comes_again_changes_nothing_though_not_all_ids_are_kept(seed):
    rng = random.Random(seed)
    book, kept, told = Book(), {}, {}
    for number in range(150):
        fact_id = rng.choice(list(told)) if told and rng.random() < 0.3 else f"n{number}"
        fact = told.setdefault(fact_id, any_fact(rng, book))
        about = getattr(fact, "worker", "")
        again = repeated(kept, f"{about} {fact.FAMILY}", fact_id)
        before = bare(book.roster)
        book.say(fact, fact_id)
        assert not again or bare(book.roster) == before, fact


def any_fact(rng, book):
    worker, incarnation, seen = rng.choice([W, "other"]), rng.randint(1, 4), rng.randint(0, book.sequence)
    about = {"worker": worker, "incarnation": incarnation, "seen": seen}
    kind = rng.choice([*WORKER_FACTS, *DECISIONS, FleetStarted, FleetObserved])
    if kind in DECISIONS:
        return kind(worker=worker, **BY)
    if kind is FleetStarted:
        return kind(run_id=rng.choice("abc"))
    if kind is FleetObserved:
        listed = (ObservedWorker(worker, incarnation, True),) if rng.random() < 0.5 else ()
        return kind(observer=rng.choice("xy"), pools=("rollout",), as_of=seen, workers=listed)
    more = {WorkerDown: {"evidence": rng.choice(["exited", "timeout"])}, WeightsLoaded: {"version": 1}}
    return kind(**about, **more.get(kind, {}))


def test_so_many_observers_are_remembered():
    book = Book()
    book.all(*(up(worker=f"w-{number}-0") for number in range(3)))
    for number in range(MOST_OBSERVERS + 5):
        book.say(FleetObserved(observer=f"o{number}", pools=("rollout",), as_of=1 + number, workers=()))
        book.say(FleetObserved(observer="always", pools=("rollout",), as_of=1 + number, workers=()))
    assert len(book.roster.observers) == MOST_OBSERVERS
    assert {"always", f"o{MOST_OBSERVERS + 4}"} <= book.roster.observers.keys()


# ---------------------------------------------------------------- what a new life keeps


def test_a_cordon_survives_a_new_life_and_suspension_suspicion_and_draining_do_not():
    book = Book()
    book.all(
        up(),
        WeightsLoaded(worker=W, incarnation=1, version=4),
        WorkerCordoned(worker=W, **BY),
        WorkerSuspended(worker=W, incarnation=1, reason="offload"),
        WorkerSuspected(worker=W, incarnation=1, reason="slow"),
        WorkerDraining(worker=W, incarnation=1),
    )
    old = book.roster.workers[W]
    assert (old.phase, old.suspicion, old.suspension.reason, old.weights) == (Phase.DRAINING, "slow", "offload", 4)
    book.say(up(2))
    new = book.roster.workers[W]
    assert (new.phase, new.suspicion, new.suspension, new.weights) == (Phase.SERVING, None, None, None)
    assert book.roster.cordons == {W: Decision("ann", "test", 3)}


def test_a_death_ends_suspension_and_suspicion():
    book = Book()
    book.all(up(), WorkerSuspended(worker=W, incarnation=1), WorkerSuspected(worker=W, incarnation=1), down())
    assert (book.roster.workers[W].suspicion, book.roster.workers[W].suspension) == (None, None)


def test_resumed_ends_suspension_and_suspicion_and_up_ends_suspicion():
    book = Book()
    book.all(up(), WorkerSuspended(worker=W, incarnation=1), WorkerSuspected(worker=W, incarnation=1), up())
    assert book.roster.workers[W].suspicion is None
    assert book.roster.workers[W].suspension is not None
    book.say(WorkerResumed(worker=W, incarnation=1))
    assert book.roster.workers[W].suspension is None


# ---------------------------------------------------------------- the operator


def test_an_unknown_worker_can_be_cordoned_and_uncordoned():
    book = Book()
    assert book.say(WorkerCordoned(worker="later", **BY)).workers == ("later",)
    assert "later" in book.roster.cordons
    assert "later" not in book.roster.workers
    assert book.say(WorkerUncordoned(worker="later", **BY)).workers == ("later",)
    assert book.say(WorkerUncordoned(worker="later", **BY)).ignored


def test_a_forgotten_worker_leaves_a_tombstone_and_only_a_higher_life_returns():
    book = Book()
    book.all(up(3), WorkerForgotten(worker=W, **BY))
    assert (book.roster.workers, book.roster.tombstones, book.roster.cells) == ({}, {W: 3}, {})
    for incarnation in (1, 3):
        assert "forgotten" in book.say(up(incarnation)).ignored
    assert book.say(up(4)).ignored is None
    assert (book.roster.workers[W].incarnation, book.roster.tombstones) == (4, {})


def test_forgetting_an_unknown_worker_is_ignored():
    book = Book()
    assert "nothing is known" in book.say(WorkerForgotten(worker=W, **BY)).ignored
    assert book.roster.tombstones == {}


def test_a_drain_request_concerns_the_current_life_only():
    book = Book()
    book.all(up(), DrainRequested(worker=W, **BY))
    assert book.roster.workers[W].phase is Phase.DRAINING
    assert book.say(up(seen=2)).ignored
    book.say(up(2))
    assert book.roster.workers[W].phase is Phase.SERVING


def test_a_drain_request_about_a_worker_nobody_knows_says_so():
    book = Book()
    assert book.say(DrainRequested(worker=W, **BY)).ignored == "nothing is known of this worker"
    book.all(up(), WorkerForgotten(worker=W, **BY))
    assert "forgotten" in book.say(DrainRequested(worker=W, **BY)).ignored


def test_reconciliation_is_held_and_released_for_one_proxy_or_all():
    book = Book()
    assert book.say(ReconcileHeld(proxy="a", **BY)).everything
    assert book.say(ReconcileHeld(**BY)).everything
    assert set(book.roster.held) == {"a", ""}
    assert book.say(ReconcileReleased(**BY)).everything
    assert book.say(ReconcileReleased(**BY)).ignored
    assert set(book.roster.held) == {"a"}


# ---------------------------------------------------------------- weights


def test_weights_loaded_during_a_false_alarm_count_when_it_is_over():
    """Nobody reports the same version twice, so an ignored report would keep the worker out until the next version."""
    book = Book()
    book.all(up(), down(evidence="timeout"), WeightsLoaded(worker=W, incarnation=1, version=7), up(seen=2))
    worker = book.roster.workers[W]
    assert (worker.phase, worker.weights) == (Phase.SERVING, 7)


def test_the_bar_is_the_version_published_last_by_sequence():
    book = Book()
    for version in (10, 5):
        assert book.say(WeightsPublished(pool="rollout", version=version)).everything
    assert book.roster.bars["rollout"].version == 5


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("fact", [down(worker="rollout-3-1"), WorkerRetired(worker="rollout-3-1", incarnation=1)])
def test_what_happens_to_one_rank_concerns_the_whole_cell(fact):
    book = Book()
    book.all(rank(0), rank(1))
    assert set(book.say(fact).workers) == {"rollout-3-0", "rollout-3-1"}


def test_a_rank_of_a_cell_whose_size_only_the_declaration_says_concerns_the_cell_too():
    book = Book()
    book.say(CellDeclared(pool="rollout", cell="3", size=2, cell_incarnation=1))
    book.all(rank(0, size=1), rank(1, size=1))
    assert set(book.say(down(worker="rollout-3-1")).workers) == {"rollout-3-0", "rollout-3-1"}


def test_a_declaration_concerns_the_known_workers_of_the_cell():
    book = Book()
    book.say(rank(0))
    assert book.say(CellDeclared(pool="rollout", cell="3", size=2, cell_incarnation=2)).workers == ("rollout-3-0",)
    assert book.say(CellDeclared(pool="rollout", cell="9", size=2, cell_incarnation=2)).workers == ()


def test_forgetting_a_rank_concerns_the_rest_of_the_cell():
    book = Book()
    book.all(rank(0), rank(1))
    assert set(book.say(WorkerForgotten(worker="rollout-3-1", **BY)).workers) == {"rollout-3-0", "rollout-3-1"}
    assert book.roster.cells == {"rollout/3": ["rollout-3-0"]}


# ---------------------------------------------------------------- free names


def test_a_free_name_gets_its_place_from_the_facts():
    book = Book()
    book.say(WorkerStarted(worker="gpu-seven", incarnation=1))
    assert (book.roster.workers["gpu-seven"].pool, book.roster.cells) == (None, {})
    book.say(up(worker="gpu-seven", pool="rollout", cell="7", rank=1))
    worker = book.roster.workers["gpu-seven"]
    assert (worker.pool, worker.cell, worker.rank, worker.entrypoint) == ("rollout", "7", 1, False)
    assert book.roster.cells == {"rollout/7": ["gpu-seven"]}


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_worker_that_moves_leaves_its_old_cell(incarnation):
    """Within a life and with a new one; both cells are concerned."""
    book = Book()
    book.all(*(up(worker=name, pool="rollout", cell="1") for name in ("a", "b")))
    change = book.say(up(incarnation, worker="b", pool="rollout", cell="2"))
    assert book.roster.cells == {"rollout/1": ["a"], "rollout/2": ["b"]}
    assert set(change.workers) == {"a", "b"}
    book.say(WorkerForgotten(worker="b", **BY))
    assert book.roster.cells == {"rollout/1": ["a"]}


def test_who_takes_requests_is_said_once_and_stays():
    book = Book()
    book.say(WorkerStarted(worker="helper", incarnation=1, pool="rollout", cell="1", entrypoint=False))
    book.all(up(worker="helper"), up(2, worker="helper"))
    assert book.roster.workers["helper"].entrypoint is False
    book.say(up(2, worker="helper", entrypoint=True))
    assert book.roster.workers["helper"].entrypoint is True
