"""The table of transitions, walked whole: what the roster does is what the table says, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.core import Book, bare

from rollbook.events import (
    FACTS,
    DrainRequested,
    WeightsLoaded,
    WorkerDown,
    WorkerDraining,
    WorkerFact,
    WorkerRetired,
    WorkerStarted,
    WorkerUp,
)
from rollbook.projections.state.transitions import COLUMNS, NOT_SEEN, STALE, TABLE, Relation, relate, rule
from rollbook.projections.state.worker import Phase

ROOT = Path(__file__).parents[2]
NAME = "rollout-0-0"
LIFE = 5
FIELDS = {WorkerDown: {"evidence": "exited"}, WeightsLoaded: {"version": 3}}
WAY_TO = {
    Phase.STARTING: WorkerStarted(worker=NAME, incarnation=LIFE),
    Phase.SERVING: WorkerUp(worker=NAME, incarnation=LIFE),
    Phase.DRAINING: WorkerDraining(worker=NAME, incarnation=LIFE),
    Phase.DOWN: WorkerDown(worker=NAME, incarnation=LIFE, evidence="exited"),
    Phase.RETIRED: WorkerRetired(worker=NAME, incarnation=LIFE),
}
LIVES = [phase for phase in Phase if phase is not Phase.ABSENT]
OF_A_LIFE = [fact for fact in COLUMNS if issubclass(fact, WorkerFact)]


def book_in(phase):
    book = Book()
    book.say(WAY_TO[phase])
    assert book.roster.workers[NAME].phase is phase
    return book


def make(fact, incarnation, seen=0):
    if fact is DrainRequested:
        return DrainRequested(worker=NAME, by="ann", why="test")
    return fact(worker=NAME, incarnation=incarnation, seen=seen, **FIELDS.get(fact, {}))


def test_every_fact_of_the_worker_family_and_the_drain_has_a_column():
    assert set(COLUMNS) == {fact for fact in FACTS.values() if issubclass(fact, WorkerFact)} | {DrainRequested}
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_the_table_is_total():
    assert set(TABLE) == set(Phase)
    for phase, row in TABLE.items():
        assert list(row) == list(COLUMNS)
        for found in row.values():
            assert (found.phase is phase) or found.ignored is None
        for fact in COLUMNS:
            assert rule(phase, fact, Relation.OLDER).ignored == STALE
            assert rule(phase, fact, Relation.NEWER) is TABLE[Phase.ABSENT][fact]


def test_every_fact_of_a_newer_life_begins_one():
    assert all(TABLE[Phase.ABSENT][fact].ignored is None for fact in OF_A_LIFE)


def test_incarnations_are_compared_as_numbers():
    assert [relate(known, 10) for known in (9, 10, 11)] == [Relation.OLDER, Relation.SAME, Relation.NEWER]


@pytest.mark.parametrize("fact", COLUMNS)
def test_of_an_unknown_worker(fact):
    book = Book()
    change = book.say(make(fact, LIFE))
    found = TABLE[Phase.ABSENT][fact]
    assert change.ignored == found.ignored
    if found.ignored is None:
        worker = book.roster.workers[NAME]
        assert (worker.phase, worker.incarnation, worker.began) == (found.phase, LIFE, 1)
    else:
        assert book.roster.workers == {}


@pytest.mark.parametrize("phase", LIVES)
@pytest.mark.parametrize("fact", OF_A_LIFE)
def test_an_older_life_changes_nothing_at_all(fact, phase):
    """[I2] [I3]."""
    book = book_in(phase)
    before = bare(book.roster)
    change = book.say(make(fact, LIFE - 1, seen=book.sequence))
    assert (change.ignored, change.workers, change.everything) == (STALE, (), False)
    assert bare(book.roster) == before


@pytest.mark.parametrize("phase", LIVES)
@pytest.mark.parametrize("fact", COLUMNS)
@pytest.mark.parametrize("knowing", [True, False])
def test_the_same_life_does_what_the_row_says(fact, phase, knowing):
    book = book_in(phase)
    before = bare(book.roster)
    found = rule(phase, fact, Relation.SAME)
    change = book.say(make(fact, LIFE, seen=book.sequence if knowing else book.sequence - 1))
    worker = book.roster.workers[NAME]
    ignored = NOT_SEEN if found.if_seen and not knowing else found.ignored
    assert change.ignored == ignored
    assert worker.incarnation == LIFE
    if ignored is None:
        assert worker.phase is found.phase
        assert change.workers == (NAME,)
        assert worker.last == book.sequence
        assert worker.since_sequence == (1 if found.phase is phase else book.sequence)
    else:
        assert change.workers == ()
        assert bare(book.roster) == before


@pytest.mark.parametrize("phase", LIVES)
@pytest.mark.parametrize("fact", OF_A_LIFE)
def test_a_newer_life_begins_as_absent_did(fact, phase):
    book = book_in(phase)
    fresh = Book()
    fresh.sequence = book.sequence
    newer = make(fact, LIFE + 1)
    assert book.say(newer).ignored is None
    fresh.say(newer)
    assert book.roster.workers == fresh.roster.workers
    assert book.roster.workers[NAME].phase is TABLE[Phase.ABSENT][fact].phase
    assert book.roster.workers[NAME].incarnation == LIFE + 1


def test_an_up_counts_only_where_the_semantics_let_it():
    """What semantics.md says in words, so that the table is not only compared with itself."""
    ups = {phase: TABLE[phase][WorkerUp] for phase in Phase}
    assert {phase for phase, found in ups.items() if found.phase is Phase.SERVING and not found.if_seen} == {
        Phase.ABSENT,
        Phase.STARTING,
        Phase.SERVING,
    }
    assert ups[Phase.DOWN].if_seen
    assert ups[Phase.DRAINING].ignored
    assert ups[Phase.RETIRED].ignored
    assert all(row[WorkerDown].phase in {Phase.DOWN, Phase.RETIRED} for row in TABLE.values())
    assert all(found.ignored for found in TABLE[Phase.RETIRED].values())


def test_the_page_is_current():
    """`make docs` writes it: what the module prints."""
    printed = subprocess.run(
        [sys.executable, "-m", "rollbook.projections.state.transitions"],
        env={"PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in ("events", "projections"))},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    assert (ROOT / "docs" / "transitions.md").read_text(encoding="utf-8") == printed
