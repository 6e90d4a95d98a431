"""The examples that stand in for frameworks run as their pages say, and end well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.process import STRICT

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.router, pytest.mark.integration]


def run(module: str) -> str:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(
        [sys.executable, *STRICT, "-m", module],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def test_xtuners_trainer_goes_on_with_all_workers_after_one_died():
    assert run("examples.xtuner").splitlines() == [
        f"step {step}: the router serves by all 3 workers" for step in range(3)
    ]


def test_the_health_monitor_of_miles_takes_engines_out_and_back():
    assert run("examples.miles").splitlines() == [
        "the router has all 3 engines",
        "the health monitor found engine 1 dead, and the router has lost it",
        "engine 1 is back in its second life",
        "offloaded: the router has nobody",
        "onloaded: the router has all 3 engines",
    ]
