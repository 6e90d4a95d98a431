"""Builds in which one guard is broken: each says which, and what it is there for. The simulation must find every one.

A mutation takes pytest's monkeypatch. `found` runs seeds until one is wrong.
"""

import sys

import pytest
from simulation import broken_belief, broken_keeping, broken_rules, broken_steps
from simulation.run import simulate
from simulation.world import Wrong

SABOTAGES = (
    *broken_belief.MUTATIONS,
    *broken_steps.MUTATIONS,
    *broken_rules.MUTATIONS,
    *broken_keeping.MUTATIONS,
)
MOST_SEEDS = 400
"""Within which every mutation must be found."""


def found(sabotage, begin: int = 0) -> tuple[int, str] | None:
    """The first wrong seed, looked for from `begin` on and around, and what was wrong; None if none was."""
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch)
        for seed in (*range(begin, MOST_SEEDS), *range(begin)):
            try:
                simulate(seed)
            except Wrong as exc:
                return seed, str(exc)
    return None


def table() -> int:
    """Print, for docs/simulation.md, after how many schedules each is found."""
    sys.stdout.write("| mutation | what is broken | found in schedule | as |\n|---|---|---|---|\n")
    missed = 0
    for sabotage in SABOTAGES:
        hit = found(sabotage)
        missed += hit is None
        where, told = ("not found", "") if hit is None else (str(hit[0] + 1), hit[1].split("\n\n")[0])
        rule = told[told.find("[") : told.find("]") + 1] if "[" in told else "a rule without a number"
        sys.stdout.write(f"| `{sabotage.__name__}` | {sabotage.__doc__.strip()} | {where} | {rule} |\n")
        sys.stdout.flush()
    return 1 if missed else 0
