"""Histories of a small fleet, each made from a seed: few names, so that facts meet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from rollbook.events import (
    CellDeclared,
    Deregistered,
    Deregistering,
    DrainRequested,
    DriftFound,
    Fact,
    FleetEnded,
    FleetObserved,
    FleetStarted,
    LeadershipTaken,
    ObservedWorker,
    ProxyReachable,
    ProxyUnreachable,
    ReconcileHeld,
    ReconcileReleased,
    RecoveryFailed,
    RecoveryStarted,
    Registered,
    Registering,
    RegistrationFailed,
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

NAMES = ("rollout-0-0", "rollout-1-0", "rollout-1-1", "reward-0-0", "free")
EVIDENCE = ("exited", "timeout", "not_observed", "planned")
PLAIN = (
    WorkerStarted,
    WorkerUp,
    WorkerUp,
    WorkerSuspected,
    WorkerSuspended,
    WorkerResumed,
    WorkerDraining,
    WorkerRetired,
    RecoveryStarted,
    RecoveryFailed,
)

Pick = Callable[[int], int]
"""`pick(n)` is one of 0 ... n-1."""


def _of_a_worker(pick: Pick) -> Fact:
    name = NAMES[pick(len(NAMES))]
    fields: dict[str, Any] = {"worker": name, "incarnation": 1 + pick(4), "seen": pick(40)}
    if name.startswith("rollout-1-"):
        fields |= {"cell_size": 2, "cell_incarnation": 1 + pick(3)}
    if name == "free" and pick(2):
        fields |= {"pool": "rollout", "cell": str(pick(2)), "rank": pick(2)}
    kind = pick(len(PLAIN) + 5)
    if kind < len(PLAIN):
        return PLAIN[kind](**fields)
    if kind == len(PLAIN):
        return WeightsLoaded(**fields, version=pick(5))
    return WorkerDown(**fields, evidence=EVIDENCE[pick(len(EVIDENCE))], reason=f"reason {pick(3)}")


def _of_an_operator(pick: Pick) -> Fact:
    by = {"by": "ann", "why": "test"}
    kind = pick(6)
    if kind < 4:
        facts = (WorkerCordoned, WorkerUncordoned, WorkerForgotten, DrainRequested)
        return facts[kind](worker=NAMES[pick(len(NAMES))], **by)
    return (ReconcileHeld, ReconcileReleased)[kind - 4](proxy=("a", None)[pick(2)], **by)


def _of_the_fleet(pick: Pick) -> Fact:
    kind = pick(9)
    if kind == 0:
        return FleetStarted(run_id=f"run-{pick(3)}")
    if kind == 1:
        return FleetEnded(run_id=f"run-{pick(3)}")
    if kind == 2:
        return CellDeclared(pool="rollout", cell="1", size=1 + pick(3), cell_incarnation=1 + pick(3))
    if kind == 3:
        return WeightsPublished(pool="rollout", version=pick(5))
    lines = [
        ObservedWorker(worker=name, incarnation=1 + pick(4), serving=pick(3) > 0) for name in NAMES if pick(2) == 0
    ]
    pools = (("rollout",), ("rollout", "reward"))[pick(2)]
    return FleetObserved(observer=("m", "n")[pick(2)], pools=pools, as_of=pick(60), workers=tuple(lines))


def _of_a_proxy(pick: Pick) -> Fact:
    proxy = ("a", "b")[pick(2)]
    kind = pick(9)
    if kind == 0:
        return ProxyUnreachable(proxy=proxy, reason="no answer")
    if kind == 1:
        return ProxyReachable(proxy=proxy, version="1")
    if kind == 2:
        return LeadershipTaken(proxy=proxy, owner="me", epoch=pick(5))
    if kind == 3:
        return DriftFound(proxy=proxy, foreign=("http://10.0.0.9:1",))
    worker, incarnation = NAMES[pick(len(NAMES))], 1 + pick(4)
    url = f"http://10.0.0.{pick(3)}:8000"
    fields: dict[str, Any] = {"proxy": proxy, "worker": worker, "incarnation": incarnation, "url": url}
    if kind == 4:
        return RegistrationFailed(**fields, action="register", reason="refused", retryable=pick(2) == 0)
    return (Registering, Registered, Deregistering, Deregistered)[kind - 5](**fields)


def a_fact(pick: Pick) -> Fact:
    """Half of them are about workers."""
    family = pick(8)
    if family < 4:
        return _of_a_worker(pick)
    return (_of_the_fleet, _of_the_fleet, _of_an_operator, _of_a_proxy)[family - 4](pick)


def a_history(seed: int, length: int = 300) -> list[Fact]:
    """The same facts for the same seed, in every process; a shorter one is the beginning of a longer one."""
    rng = random.Random(seed)
    return [a_fact(rng.randrange) for _ in range(length)]


HISTORIES = st.builds(a_history, st.integers(0, 2**32), st.integers(0, 120))
"""Shrinks to the shortest beginning of a history that shows the same."""
