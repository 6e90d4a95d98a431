"""Thousands of schedules: projector, reconciler and controller among failing logs, routers, providers and processes.

Each seed asserts I1-I9 and I11 (see witness.py and run.py). A failing one prints the command that runs it again.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from simulation.run import simulate

pytestmark = pytest.mark.simulation

BATCHES = 50
SEEDS_PER_BATCH = 40
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_comes_right_and_no_invariant_breaks(batch):
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        simulate(seed)


@pytest.mark.timeout(600)
def test_the_schedules_hold_what_they_are_meant_to_hold():
    counts = Counter()
    for seed in range(80):
        counts += simulate(seed).counts
    expected = {
        "add", "remove", "listed", "removed", "lost", "kills", "deposed", "slipped", "deaths", "flaps", "stragglers",
        "repeated", "superseded", "suspensions", "cordons", "left rotation", "garbage", "unremembered", "runs", "holds",
        "ended by Deposed", "ended by LeadershipLost", "ended by LogUnavailable", "ended by NoneType",
        "outage log", "outage provider", "outage slow provider", "outage refuses", "outage stalls", "outage restarts",
        "outage loses", "outage readiness",
    }  # fmt: skip
    assert not expected - counts.keys()


def test_a_seed_is_the_same_schedule_in_every_process():
    def replay(hash_seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("events", "projections", "adapters", "tests")),
        }
        command = [sys.executable, "-m", "simulation", "7"]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert replay("1") == replay("2")
