"""One example of every fact with every field set, and the files that hold its exact bytes.

The files are the promise to logs already written: a released version's bytes never change. After adding a fact, write
the missing files with `python tests/golden/examples.py`; it never touches a file that is there. To change the bytes of
a version that was never released, delete its file first.
"""

import re
import sys
from pathlib import Path

from rollbook.events import (
    FACTS,
    CellDeclared,
    Codec,
    Deregistered,
    Deregistering,
    DrainRequested,
    DriftFound,
    Fact,
    FleetEnded,
    FleetObserved,
    FleetStarted,
    ForeignRemovalFailed,
    ForeignRemoved,
    ForeignRemoving,
    LeadershipTaken,
    MessageQuarantined,
    ObservedWorker,
    ObserverSilent,
    ProxyReachable,
    ProxyUnreachable,
    ReconcileHeld,
    ReconcileReleased,
    RecoveryFailed,
    RecoveryStarted,
    Registered,
    Registering,
    RegistrationFailed,
    RemovalWithheld,
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
    type_of,
)

FLEET = "math-rl"
ID = "019ac7a5-6c00-7123-8abc-0123456789ab"
TIME = "2026-11-30T02:40:28.123Z"
PUBLISHER = "golden"
FOLDER = Path(__file__).parent / "facts"

WORKER = {
    "worker": "rollout-3-0",
    "incarnation": 8,
    "seen": 41,
    "pool": "rollout",
    "cell": "3",
    "rank": 0,
    "cell_size": 2,
    "cell_incarnation": 5,
    "entrypoint": True,
}
OPERATOR = {"by": "ada", "why": "noisy neighbour"}
REGISTRATION = {
    "proxy": "router-a",
    "worker": "rollout-3-0",
    "incarnation": 8,
    "url": "http://10.0.0.7:30000",
    "cause": 42,
}
FOREIGN = {"url": "http://10.0.0.9:30000", "cause": 42}

_FACTS: tuple[Fact, ...] = (
    WorkerStarted(**WORKER, node="node-7", pid=4711),
    WorkerUp(**WORKER, lease=30.5),
    WorkerDown(**WORKER, evidence="timeout", reason="3 probes without an answer: é€😀"),
    WorkerSuspected(**WORKER, reason="1 of 3 probes"),
    WorkerSuspended(**WORKER, reason="weight update", until="2026-11-30T02:45:00.000Z", ttl=60.5),
    WorkerResumed(**WORKER, reason="weights loaded"),
    WorkerDraining(**WORKER, reason="scale down", deadline_seconds=30.5),
    WorkerRetired(**WORKER, reason="scale down"),
    WeightsLoaded(**WORKER, version=-1),
    RecoveryStarted(**WORKER, attempt=2, at="2026-11-30T02:40:28Z", until="2026-11-30T02:45:28Z"),
    RecoveryFailed(**WORKER, attempt=2, reason="no GPU left", cordoned=True),
    FleetStarted(run_id="run-1"),
    FleetEnded(run_id="run-1", reason="done"),
    CellDeclared(pool="rollout", cell="3", size=2, cell_incarnation=5),
    WeightsPublished(pool="rollout", version=17),
    FleetObserved(
        observer="ray",
        pools=("rollout", "reward"),
        as_of=40,
        workers=(ObservedWorker("rollout-3-0", 8), ObservedWorker("rollout-4-0", 2, serving=False)),
    ),
    ObserverSilent(observer="ray", silent_seconds=12.0),
    WorkerCordoned(**OPERATOR, worker="rollout-3-0"),
    WorkerUncordoned(**OPERATOR, worker="rollout-3-0"),
    WorkerForgotten(**OPERATOR, worker="rollout-3-0"),
    DrainRequested(**OPERATOR, worker="rollout-3-0", deadline_seconds=60.0),
    ReconcileHeld(**OPERATOR, proxy="router-a"),
    ReconcileReleased(**OPERATOR),
    Registering(**REGISTRATION, reason="belongs here, is not listed"),
    Registered(**REGISTRATION),
    Deregistering(**REGISTRATION, reason="serving: draining", drain_seconds=30.0),
    Deregistered(**REGISTRATION),
    RegistrationFailed(
        **REGISTRATION, action="register", reason="no answer", retryable=False, called=False, retry_seconds=1.5
    ),
    DriftFound(
        proxy="router-a", missing=("rollout-3-0",), unexpected=("rollout-4-0",), foreign=("http://10.0.0.9:30000",)
    ),
    RemovalWithheld(proxy="router-a", pool="rollout", workers=("rollout-3-0", "rollout-4-0"), budget=1),
    ForeignRemoving(proxy="router-a", **FOREIGN, fleet="other", worker="rollout-0-0", incarnation=1),
    ForeignRemoved(proxy="router-a", **FOREIGN),
    ForeignRemovalFailed(proxy="router-a", **FOREIGN, reason="no answer"),
    ProxyUnreachable(proxy="router-a", reason="connection refused"),
    ProxyReachable(proxy="router-a", version="0.3.2"),
    LeadershipTaken(proxy="router-a", owner="node-1:812", epoch=3),
    MessageQuarantined(sequence=43, subject="rollbook.math-rl.fleet", reason="not_json", detail="byte 0"),
)

EXAMPLES: dict[str, Fact] = {type_of(fact): fact for fact in _FACTS}
"""CloudEvents type → an example of it."""

OLDER: dict[str, Fact] = {
    "rollbook.proxy.removal_withheld.v1": EXAMPLES["rollbook.proxy.removal_withheld.v2"],
}
"""Older type → what the bytes that were kept of it are read as."""


def encode(fact: Fact) -> bytes:
    """The bytes of an example."""
    return Codec(FLEET).draft(fact, id=ID, time=TIME, publisher=PUBLISHER).payload


def path_of(kind: str) -> Path:
    """Where the bytes of a type are kept."""
    assert re.fullmatch(r"[a-z_.]+\.v[0-9]+", kind)
    return FOLDER / f"{kind}.json"


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for kind in FACTS:
        path = path_of(kind)
        if not path.exists():
            path.write_bytes(encode(EXAMPLES[kind]))
            sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()
