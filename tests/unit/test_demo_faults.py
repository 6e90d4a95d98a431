"""The schedule of a chaos run is the same for a seed, meets every kind of fault, and leaves time at both ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters.demo.arms import Arms
from rollbook.adapters.demo.faults import OF_A_WORKER, Kind, make_faults
from rollbook.adapters.demo.hunting import Hunter
from rollbook.adapters.demo.stage import Options
from rollbook.adapters.demo.storm import StormStage

WORKERS = ("rollout-0-0", "rollout-1-0", "rollout-2-0")
SEEDS = st.integers(0, 2**32)
COUNTS = st.integers(0, 60)
SECONDS = st.floats(20, 3600)


@given(SEEDS, COUNTS, SECONDS)
def test_a_seed_gives_one_schedule(seed: int, count: int, seconds: float) -> None:
    one, two = (make_faults(seed, workers=WORKERS, seconds=seconds, count=count) for _ in range(2))
    assert one == two
    assert len(one) == count


def test_another_seed_gives_another_schedule() -> None:
    one, two = (make_faults(seed, workers=WORKERS, seconds=60, count=12) for seed in (1, 2))
    assert [fault.kind for fault in one] != [fault.kind for fault in two]


@given(SEEDS, COUNTS, SECONDS)
def test_it_leaves_time_at_both_ends_and_is_in_order(seed: int, count: int, seconds: float) -> None:
    moments = [fault.at for fault in make_faults(seed, workers=WORKERS, seconds=seconds, count=count)]
    assert moments == sorted(moments)
    assert all(seconds * 0.05 <= moment <= seconds * 0.8 for moment in moments)


@given(SEEDS, COUNTS)
def test_no_kind_comes_twice_before_all_have_come_once(seed: int, count: int) -> None:
    kinds = Counter(fault.kind for fault in make_faults(seed, workers=WORKERS, seconds=60, count=count))
    often = [kinds[kind] for kind in Kind]
    assert max(often) - min(often) <= 1


@given(SEEDS, COUNTS)
def test_exactly_the_faults_of_workers_name_one(seed: int, count: int) -> None:
    for fault in make_faults(seed, workers=WORKERS, seconds=60, count=count):
        assert (fault.worker in WORKERS) is (fault.kind in OF_A_WORKER)
        assert fault.port_taken is False or fault.kind is Kind.WORKER_KILLED


@given(SEEDS)
def test_a_paused_leader_stands_still_for_longer_than_its_lease(seed: int) -> None:
    """[I7] is not tried otherwise. Five seconds are the default of `leadership.lease`, and the demo's."""
    faults = make_faults(seed, workers=WORKERS, seconds=60, count=len(Kind))
    [paused] = [fault for fault in faults if fault.kind is Kind.LEADER_PAUSED]
    assert paused.seconds > 5


def test_every_kind_can_be_carried_out(tmp_path: Path) -> None:
    stage = StormStage(Options(workers=1, seconds=20, kills=1, seed=1), tmp_path)

    async def find(worker: str) -> None:
        return None

    assert Arms((), stage, Hunter(find, print), print)._doing.keys() == set(Kind)
