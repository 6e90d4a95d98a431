"""What holds after any facts in any order: lives only go up, and the fold is the same fold everywhere."""

import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import CODEC, folded, stored
from support.histories import HISTORIES, a_history

from rollbook.events import FleetObserved, WorkerDown, WorkerFact
from rollbook.projections.state.fold import State, message_id, restore
from rollbook.projections.state.worker import LIVE, Phase

ROOT = Path(__file__).parents[2]


def states(facts):
    """The one state that all facts are folded into, after each."""
    state = State()
    for sequence, fact in enumerate(facts, 1):
        _, change = state.apply(stored(sequence, fact), CODEC)
        yield fact, state, change


@given(HISTORIES)
def test_incarnations_never_go_back(facts):
    """[I3]: not even by being forgotten."""
    highest: dict[str, int] = {}
    for _, state, _ in states(facts):
        known = dict(state.roster.tombstones)
        known.update({name: worker.incarnation for name, worker in state.roster.workers.items()})
        assert all(known[name] >= incarnation for name, incarnation in highest.items())
        highest = known


@given(HISTORIES)
def test_a_stale_down_never_changes_a_newer_life(facts):
    """[I3]."""
    before: dict[str, bytes] = {}
    for fact, state, change in states(facts):
        workers = state.roster.workers
        if (
            isinstance(fact, WorkerDown)
            and fact.worker in before
            and fact.incarnation < workers[fact.worker].incarnation
        ):
            assert msgspec.msgpack.encode(workers[fact.worker]) == before[fact.worker]
            assert (change.workers, change.everything) == ((), False)
            assert change.ignored is not None
        before = {name: msgspec.msgpack.encode(worker) for name, worker in workers.items()}


@given(HISTORIES)
def test_a_fact_of_a_worker_changes_no_other_worker(facts):
    before: dict[str, bytes] = {}
    for fact, state, _ in states(facts):
        after = {name: msgspec.msgpack.encode(worker) for name, worker in state.roster.workers.items()}
        if isinstance(fact, WorkerFact):
            assert {n: w for n, w in after.items() if n != fact.worker} == {
                n: w for n, w in before.items() if n != fact.worker
            }
        before = after


@given(HISTORIES)
def test_what_changed_is_said(facts):
    """Whoever looks only at the keys that a change names misses nothing."""
    before: dict[str, tuple[int, Phase]] = {}
    for _, state, change in states(facts):
        after = {name: (worker.incarnation, worker.phase) for name, worker in state.roster.workers.items()}
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert change.everything or changed <= set(change.workers)
        assert len(set(change.workers)) == len(change.workers)
        before = after


@given(HISTORIES)
def test_the_index_of_cells_is_what_the_workers_say(facts):
    for _, state, _ in states(facts):
        wanted: dict[str, set[str]] = {}
        for name, worker in state.roster.workers.items():
            if worker.pool is not None and worker.cell is not None:
                wanted.setdefault(f"{worker.pool}/{worker.cell}", set()).add(name)
        assert {key: set(names) for key, names in state.roster.cells.items()} == wanted
        assert all(len(set(names)) == len(names) for names in state.roster.cells.values())


@given(HISTORIES)
def test_the_dead_have_no_suspension_and_the_down_have_an_end(facts):
    for _, state, _ in states(facts):
        for worker in state.roster.workers.values():
            assert worker.phase is not Phase.ABSENT
            assert worker.phase in LIVE or (worker.suspension, worker.suspicion) == (None, None)
            assert worker.began <= worker.since_sequence <= worker.last <= state.sequence
            assert worker.phase is not Phase.DOWN or worker.since_sequence <= worker.ended <= worker.last


@given(HISTORIES)
def test_a_listing_touches_no_life_begun_after_it_began_unless_to_say_that_it_serves(facts):
    before: dict[str, tuple[int, int, Phase]] = {}
    for fact, state, _ in states(facts):
        workers = state.roster.workers.items()
        after = {name: (worker.incarnation, worker.began, worker.phase) for name, worker in workers}
        if isinstance(fact, FleetObserved):
            for name, (incarnation, began, phase) in before.items():
                if began > fact.as_of and after[name][0] == incarnation:
                    assert after[name][2] is phase or (phase, after[name][2]) == (Phase.STARTING, Phase.SERVING)
        before = after


@given(HISTORIES, st.integers(0, 120))
def test_a_snapshot_at_any_point_changes_nothing(facts, at):
    """[I5]: restored and folded on, byte for byte what it would have been."""
    state = folded(*facts[:at])
    if state.sequence:
        snapshot = state.snapshot("log", message_id(stored(state.sequence, facts[state.sequence - 1])))
        restored = restore(snapshot)
        assert restored is not None
        assert restored.encode() == state.encode()
        state = restored
    for sequence, fact in enumerate(facts[at:], state.sequence + 1):
        state.apply(stored(sequence, fact), CODEC)
    assert state.encode() == folded(*facts).encode()


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_the_same_facts_fold_to_the_same_bytes(seed):
    """[I5]."""
    assert folded(*a_history(seed)).digest() == folded(*a_history(seed)).digest()


def test_the_same_facts_fold_to_the_same_bytes_in_every_process():
    """[I5]: whatever order sets and hashes have there."""
    program = (
        "from support.core import folded\n"
        "from support.histories import a_history\n"
        "print([folded(*a_history(seed)).digest() for seed in range(20)])\n"
    )
    path = os.pathsep.join(str(ROOT / root) for root in ("events", "projections", "adapters", "tests"))
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", str(random.Random(7).randrange(2**32)))
    }
    assert told == {f"{[folded(*a_history(seed)).digest() for seed in range(20)]}\n"}
