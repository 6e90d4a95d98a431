"""Hundreds of schedules: several controllers and every kind of router among failing logs, providers and processes.

Each seed asserts I1-I9, I11 and I12 (see witness.py and verdict.py); I10 has a test of its own (test_isolation.py). A
failing one prints the command that runs it again. `make simulate` goes on to a million.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from simulation import batch, campaign
from simulation.sketch import Sketch
from support.programs import wait_until

pytestmark = pytest.mark.simulation

SEEDS = 500
WIDE = 250
"""So many seeds, all together, must have met everything."""
SEEDS_PER_BATCH = 50
FEWEST_STATES = 20
"""Distinct states that a seed adds on average, at the least: a simulation that stands still would pass everything."""
ROOT = Path(__file__).resolve().parents[2]


def all_comes_right(seeds: range) -> batch.Batch:
    done = batch.run(seeds)
    assert not done.wrong, "\n\n".join(told for _, told in done.wrong)
    assert len(done.states) > FEWEST_STATES * len(seeds)
    return done


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(WIDE, SEEDS, SEEDS_PER_BATCH))
def test_all_comes_right_and_no_invariant_breaks(first):
    all_comes_right(range(first, first + SEEDS_PER_BATCH))


@pytest.mark.timeout(900)
def test_all_comes_right_in_schedules_that_hold_what_they_are_meant_to_hold():
    expected = {
        "add", "drain", "remove", "listed", "removed", "lost", "kills", "pauses", "woken too late", "robbed", "slipped",
        "controller.standing_by", "leader.lost", "leader.taken", "snapshot.restored",
        "deaths", "flaps", "stragglers", "repeated", "superseded", "suspensions", "suspension.expired", "cordons",
        "left rotation", "garbage", "unremembered", "runs", "ends", "holds", "forced", "blackouts", "squatters",
        "inferred removals", "removed beyond the budget", "withheld", "drain deadlines",
        "strangers", "second fleet", "foreign removals", "ended by LogUnavailable", "ended by NoneType",
        "outage log", "outage nats", "outage seat", "outage provider", "outage slow provider", "outage refuses",
        "outage stalls", "outage restarts", "outage loses", "outage readiness",
        "updates", "restarted in an update", "left for weights",
        "process deaths", "unnoticed deaths", "doomed", "not started", "stuck starts", "manager deaths", "lost answers",
        "answers to nobody", "hangs", "naps", "holders that died", "slow probes", "probes without network",
        "probes of strangers", "monitor kills", "monitor pauses", "recoverer kills", "recoverer pauses", "repaired",
        "monitor.verdict", "monitor.superseded", "observer.silent", "lease.expired", "lease.expired_and_answers",
        "claims", "given up", "recovery.not_mine", "recovery.claim_lost", "recovery.claim_expired", "recovery.restored",
    }  # fmt: skip
    assert not expected - all_comes_right(range(WIDE)).counts.keys()


def test_a_seed_is_the_same_schedule_in_every_process():
    def replay(hash_seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("events", "projections", "adapters", "tests")),
        }
        command = [sys.executable, "-m", "simulation", "7"]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert replay("1") == replay("2")


def start_campaign(folder: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "simulation.campaign", str(folder), "--jobs", "2", *more]
    paths = os.pathsep.join(str(ROOT / part) for part in ("events", "projections", "adapters", "tests"))
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
def test_a_campaign_that_is_interrupted_goes_on_where_it_was(tmp_path):
    state = tmp_path / "state.json"
    with start_campaign(tmp_path, "--seeds", "100000") as campaign:
        wait_until(lambda: state.exists() or campaign.poll() is not None, 240)
        campaign.send_signal(signal.SIGINT)
        out, err = campaign.communicate()
    done = json.loads(state.read_text())["next"]
    assert (campaign.returncode, f"stopped after seed {done - 1};" in out) == (130, True), err
    assert 0 < done < 100_000
    with start_campaign(tmp_path, "--seeds", str(done + 1)) as campaign:
        out, err = campaign.communicate()
    assert (campaign.returncode, f"{done + 1:,} of {done + 1:,} seeds" in out) == (0, True), err


@pytest.mark.timeout(300)
def test_a_campaign_goes_on_to_more_seeds_and_refuses_another_build(tmp_path):
    def run(*more: str) -> subprocess.CompletedProcess:
        with start_campaign(tmp_path, *more) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    first = run("--seeds", "6")
    assert (first.returncode, "6 of 6 seeds" in first.stdout) == (0, True), first.stderr
    second = run("--seeds", "10")
    assert (second.returncode, "10 of 10 seeds" in second.stdout) == (0, True), second.stderr
    state = tmp_path / "state.json"
    state.write_text(state.read_text().replace(campaign.build(), "0" * 16))
    assert run("--seeds", "12").returncode == 64
    assert run("--seeds", "2", "--anew").returncode == 0


def test_the_sketch_of_states_is_right_within_a_few_percent():
    rng = random.Random(1)
    for size in (0, 10, 5_000, 200_000):
        states = [rng.getrandbits(64) for _ in range(size)]
        one, other = Sketch(), Sketch()
        one.add(states[: size * 2 // 3])
        other.add(states[size // 3 :])  # some are in both
        one.merge(bytes(other.registers))
        assert abs(one.size() - size) <= 0.05 * size
