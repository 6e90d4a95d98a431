"""[I12] What a removal stands on: who is dead for certain, who is thought so, and who is meant to go."""

import pytest
from support.core import POLICY, PROXY, Book

from rollbook.events import (
    CellDeclared,
    DrainRequested,
    FleetEnded,
    FleetObserved,
    FleetStarted,
    RecoveryStarted,
    WorkerCordoned,
    WorkerDown,
    WorkerDraining,
    WorkerForgotten,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.deciding.evidence import Ground, ground

W = "rollout-0-0"
UP = WorkerUp(worker=W, incarnation=2)
BY = {"by": "ann", "why": "test"}
PLANNED, DIRECT, INFERRED = Ground.PLANNED, Ground.DIRECT, Ground.INFERRED


def of(*facts, worker=W, incarnation=2, proxy=PROXY):
    book = Book()
    for fact in facts:
        book.say(fact)
    return ground(book.roster, POLICY, proxy, worker, incarnation)


def down(evidence, worker=W, incarnation=2):
    return WorkerDown(worker=worker, incarnation=incarnation, evidence=evidence)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ("exited", DIRECT),
        ("actor_dead", DIRECT),
        ("refused", DIRECT),
        ("operator", PLANNED),
        ("planned", PLANNED),
        ("timeout", INFERRED),
        ("unhealthy", INFERRED),
        ("lease_expired", INFERRED),
        ("not_observed", INFERRED),
    ],
)
def test_of_a_worker_that_is_down_its_evidence_counts(evidence, expected):
    assert of(UP, down(evidence)) is expected


def test_the_surest_word_on_a_death_counts():
    assert of(UP, down("timeout"), down("exited")) is DIRECT
    assert of(UP, down("exited"), down("timeout")) is DIRECT


@pytest.mark.parametrize(
    "fact",
    [
        WorkerDraining(worker=W, incarnation=2),
        DrainRequested(worker=W, **BY),
        WorkerCordoned(worker=W, **BY),
        WorkerSuspended(worker=W, incarnation=2),
        WorkerRetired(worker=W, incarnation=2),
        RecoveryStarted(worker=W, incarnation=2),
        FleetEnded(run_id="one"),
        FleetStarted(run_id="two"),
    ],
)
def test_what_somebody_meant_is_planned(fact):
    assert of(UP, fact) is PLANNED


@pytest.mark.parametrize("fact", [WorkerCordoned(worker=W, **BY), FleetEnded(run_id="one")])
@pytest.mark.parametrize("evidence", ["exited", "timeout"])
def test_who_is_dead_or_thought_so_has_nothing_to_end_and_needs_no_budget_if_it_is_meant(fact, evidence):
    assert of(UP, down(evidence), fact) is DIRECT


def test_a_newer_life_ends_the_older_one_and_not_the_other_way_round():
    assert of(UP, incarnation=1) is DIRECT
    assert of(UP, incarnation=3) is INFERRED


def test_a_forgotten_worker_is_gone_by_an_operators_word_and_an_unknown_one_by_nobodys():
    """An empty log knows no worker, and must not empty a router."""
    assert of(UP, WorkerForgotten(worker=W, **BY)) is DIRECT
    assert of(UP, WorkerForgotten(worker=W, **BY), incarnation=3) is INFERRED
    assert of() is INFERRED
    assert of(FleetEnded(run_id="one")) is DIRECT


def test_a_life_that_has_only_started_is_not_known_to_be_over():
    assert of(WorkerStarted(worker=W, incarnation=2)) is INFERRED


def test_who_is_no_entrypoint_or_of_another_pool_is_meant_to_go():
    assert of(WorkerUp(worker=W, incarnation=2, entrypoint=False)) is PLANNED
    assert of(WorkerUp(worker=W, incarnation=2, pool="reward")) is PLANNED


def test_what_a_listing_omits_is_inferred():
    assert of(UP, FleetObserved(observer="ray", pools=("rollout",), as_of=1, workers=())) is INFERRED


CELL = {"cell_size": 2, "cell_incarnation": 1}
ENTRY = WorkerUp(worker=W, incarnation=2, **CELL)
RANK = WorkerUp(worker="rollout-0-1", incarnation=2, **CELL)


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (down("exited", "rollout-0-1"), DIRECT),
        (down("planned", "rollout-0-1"), DIRECT),
        (down("timeout", "rollout-0-1"), INFERRED),
        (WorkerUp(worker="rollout-0-1", incarnation=3, cell_size=2, cell_incarnation=2), DIRECT),
        (CellDeclared(pool="rollout", cell="0", size=2, cell_incarnation=2), DIRECT),
        (DrainRequested(worker="rollout-0-1", **BY), PLANNED),
        (WorkerDraining(worker="rollout-0-1", incarnation=2), PLANNED),
        (WorkerRetired(worker="rollout-0-1", incarnation=2), PLANNED),
    ],
)
def test_a_cell_is_as_surely_broken_as_one_of_its_ranks(fact, expected):
    assert of(ENTRY, RANK, fact) is expected
