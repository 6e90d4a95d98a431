"""Cells of several workers, whatever is said in whatever order: complete or out, and only the entrypoint is ever in."""

from hypothesis import given
from hypothesis import strategies as st
from support.core import POLICY, PROXY, Book, folded

from rollbook.events import (
    CellDeclared,
    FleetObserved,
    ObservedWorker,
    WorkerDown,
    WorkerResumed,
    WorkerStarted,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.evidence import Ground, ground
from rollbook.projections.deciding.gates import Gate
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Add, make_plan
from rollbook.projections.state.leases import Leases
from rollbook.projections.state.worker import Phase

RANKS = 4
NOBODY = Observed({}, (), {})


def name(rank):
    return f"rollout-3-{rank}"


class Truth:
    """What one rank is, kept by the simplest means: its life, its cell's life, whether it lives, serves, sleeps."""

    def __init__(self):
        self.life, self.cell, self.lives, self.serves, self.sleeps = 0, 0, False, False, False


@st.composite
def histories(draw):
    """A cell of 2 to 4, whose ranks begin, serve, sleep and die at random; its size is carried, and maybe declared."""
    size = draw(st.integers(2, RANKS))
    carried, declared = draw(st.sampled_from([(True, False), (True, True)]))
    truths = [Truth() for _ in range(size)]
    cell, facts = 1, []
    if declared:
        facts.append(CellDeclared(pool="rollout", cell="3", size=size, cell_incarnation=1))
    for _ in range(draw(st.integers(0, 25))):
        act = draw(st.sampled_from(["start", "up", "up", "up", "down", "suspend", "resume", "new cell"]))
        if act == "new cell":
            cell += 1
            if declared:
                facts.append(CellDeclared(pool="rollout", cell="3", size=size, cell_incarnation=cell))
            continue
        rank = draw(st.integers(0, size - 1))
        truth = truths[rank]
        fields = {"cell_size": size, "cell_incarnation": cell} if carried else {}
        if act == "down":
            if truth.life:
                facts.append(WorkerDown(worker=name(rank), incarnation=truth.life, evidence="exited"))
                truth.lives = truth.serves = truth.sleeps = False
            continue
        if act in {"suspend", "resume"}:
            if truth.life:
                kind = WorkerSuspended if act == "suspend" else WorkerResumed
                facts.append(kind(worker=name(rank), incarnation=truth.life))
                truth.sleeps = act == "suspend" and truth.lives
            continue
        if truth.cell != cell or not truth.serves or act == "start":
            truth.life, truth.cell, truth.lives, truth.sleeps = truth.life + 1, cell, True, False
        kind = WorkerStarted if act == "start" else WorkerUp
        facts.append(kind(worker=name(rank), incarnation=truth.life, **fields))
        truth.serves = act == "up"
    return size, truths, (cell if declared else None), facts


@given(histories())
def test_the_entrypoint_belongs_there_exactly_while_all_ranks_of_one_cell_life_serve(drawn):
    """One rank down takes the cell out, and it is in again with the last rank of the same life of the cell."""
    size, truths, declared, facts = drawn
    state = folded(*facts)
    head = truths[0]
    same = sum(truth.serves and truth.cell == head.cell for truth in truths)
    asleep = any(truth.sleeps and truth.cell == head.cell for truth in truths)
    whole = head.serves and same == size and declared in {None, head.cell} and not asleep
    assert (gates.standing(state.roster, POLICY, PROXY, name(0)) is None) == whole
    others = [gates.standing(state.roster, POLICY, PROXY, name(rank)) for rank in range(1, size)]
    assert all(held is not None and held.gate in {Gate.ENTRYPOINT, Gate.NOT_FORGOTTEN} for held in others)
    added = {action.worker for action in make_plan(state, POLICY, PROXY, NOBODY).actions if isinstance(action, Add)}
    assert added == ({name(0)} if whole else set())


def observed(as_of, *lines):
    return FleetObserved(observer="ray", pools=("rollout",), as_of=as_of, workers=lines)


def rank(number, *, cell=1, life=1, kind=WorkerUp):
    return kind(worker=name(number), incarnation=life, cell_size=2, cell_incarnation=cell)


def entrypoint(book):
    return gates.standing(book.roster, POLICY, PROXY, name(0))


def test_a_listing_that_knows_the_cell_heals_a_restart_of_which_nothing_was_said():
    book = Book()
    book.all(rank(0), rank(1), observed(2, ObservedWorker(name(0), 2, cell_size=2, cell_incarnation=2)))
    assert entrypoint(book).gate is Gate.CELL_COMPLETE  # the other rank is down
    lines = [ObservedWorker(name(number), 2, cell_size=2, cell_incarnation=2) for number in range(2)]
    book.say(observed(3, *lines))
    assert entrypoint(book) is None
    assert [book.roster.workers[name(number)].phase for number in range(2)] == [Phase.SERVING] * 2


def test_a_listing_that_does_not_know_the_cell_takes_no_half_of_it_for_a_whole():
    """[I2] a life begun by a listing was taken for one of a cell of its own, and registered alone."""
    book = Book()
    book.all(rank(0), rank(1), observed(2, ObservedWorker(name(0), 2), ObservedWorker(name(1), 2, serving=False)))
    assert entrypoint(book).reason == "1 of 2 ranks serve in cell incarnation None"
    book.say(observed(3, ObservedWorker(name(0), 2), ObservedWorker(name(1), 2)))
    assert entrypoint(book) is None


def test_a_listing_fills_in_the_cell_of_a_life_that_serves_and_contradicts_no_fact():
    book = Book()
    book.all(rank(0), rank(1))
    change = book.say(observed(2, *(ObservedWorker(name(n), 1, cell_size=4, cell_incarnation=9) for n in range(2))))
    assert (change.workers, book.roster.workers[name(0)].cell_size) == ((), 2)
    book.all(rank(0, life=2, cell=2), observed(4, ObservedWorker(name(0), 2), ObservedWorker(name(1), 2)))
    line = ObservedWorker(name(1), 2, cell_size=2, cell_incarnation=2)
    change = book.say(observed(5, ObservedWorker(name(0), 2), line))
    assert set(change.workers) == {name(0), name(1)}
    assert entrypoint(book) is None


def test_a_cell_that_says_another_size_in_its_next_life_has_that_size():
    book = Book()
    book.all(rank(0), rank(1), WorkerUp(worker=name(0), incarnation=2))
    assert entrypoint(book) is None


def test_i2_a_rank_that_sleeps_takes_its_cell_to_sleep_and_no_other_life_of_it():
    """It was still routed, and its entrypoint asked for its health and shot, while the other half was offloaded."""
    book = Book()
    book.all(rank(0), rank(1))
    change = book.say(WorkerSuspended(worker=name(1), incarnation=1, reason="offload"))
    assert set(change.workers) == {name(0), name(1)}
    assert (entrypoint(book).gate, entrypoint(book).reason) == (Gate.NOT_SUSPENDED, "offload")
    assert ground(book.roster, POLICY, PROXY, name(0), 1) is Ground.PLANNED
    late = Leases()
    book.roster.workers[name(0)].lease = 5.0
    assert not any(late.is_overdue(book.roster.workers[name(0)], book.roster, now) for now in (0.0, 100.0))
    book.say(WorkerResumed(worker=name(1), incarnation=1))
    assert entrypoint(book) is None
    book.all(
        WorkerSuspended(worker=name(1), incarnation=1),
        WorkerStarted(worker=name(0), incarnation=2, cell_size=2, cell_incarnation=2),
        WorkerUp(worker=name(0), incarnation=2, cell_size=2, cell_incarnation=2),
    )
    assert entrypoint(book).gate is Gate.CELL_COMPLETE


def test_workers_that_share_a_name_of_a_cell_and_live_alone_sleep_alone():
    book = Book()
    book.all(WorkerUp(worker=name(0), incarnation=1), WorkerUp(worker=name(1), incarnation=1))
    book.say(WorkerSuspended(worker=name(1), incarnation=1))
    assert entrypoint(book) is None
