"""One worker as the roster knows it: which life, in which phase, with which marks on it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rollbook.events import (
    DrainRequested,
    Fact,
    RecoveryStarted,
    WeightsLoaded,
    WorkerDown,
    WorkerDraining,
    WorkerFact,
    WorkerResumed,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUp,
    parse_worker,
)
from rollbook.events.facts import DIRECT_EVIDENCE
from rollbook.projections.state.bounds import LONGEST_TIME, shortened
from rollbook.projections.state.claims import Restarts


class Phase(StrEnum):
    """Where one life of a worker stands."""

    ABSENT = "absent"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    DOWN = "down"
    RETIRED = "retired"


LIVE = frozenset({Phase.STARTING, Phase.SERVING, Phase.DRAINING})
"""Phases of a life that has not ended."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Something that a person decided: who, why, when in the log."""

    by: str
    why: str
    sequence: int


class Bar(msgspec.Struct, frozen=True, gc=False):
    """The version of the weights that was published last for a pool, whether or not it is the highest."""

    version: int
    sequence: int
    """The fact that said so: what a worker loaded before it and is higher belongs to a run that was given up."""


class Suspension(msgspec.Struct, frozen=True, gc=False):
    """Asleep on purpose."""

    reason: str
    until: str | None
    sequence: int


class Worker(msgspec.Struct, omit_defaults=True, gc=False):
    """The roster's record of one worker. Mutable, and mutated by the fold alone; readers look, never keep."""

    name: str
    pool: str | None
    cell: str | None
    rank: int
    incarnation: int = 0
    phase: Phase = Phase.ABSENT
    since_sequence: int = 0
    """The fact that brought it into this phase."""
    since_time: str = ""
    """That fact's own time, RFC 3339: for people."""
    began: int = 0
    """The sequence of the first fact of this life."""
    last: int = 0
    """The sequence of the last fact about this worker that was not ignored."""
    ended: int = 0
    """The sequence of the last Down of this life; 0 if there was none."""
    cell_size: int = 1
    cell_incarnation: int | None = None
    entrypoint: bool = True
    evidence: str | None = None
    """Of this life's Downs: the first direct one, else the last."""
    reason: str = ""
    """Why it is in this phase, in the author's words."""
    suspicion: str | None = None
    suspension: Suspension | None = None
    weights: int | None = None
    """The version that this life said it holds."""
    weights_sequence: int = 0
    """The fact that said so."""
    drain: Decision | None = None
    """Who asked for its draining, if a person did."""
    drain_seconds: float | None = None
    """For how long its running requests may be waited for, by the word of whoever has it drained."""

    lease: float | None = None
    """Seconds within which this life is heard of outside the log, if it said that it would be."""

    restarts: Restarts | None = None
    """What recoverers did about its cell lately; of no single life. None if nothing."""

    def begin_life(self, incarnation: int, sequence: int) -> None:
        """Forget all that belonged to the life before; what stays is the name and the place in the fleet."""
        self.incarnation = incarnation
        self.phase = Phase.ABSENT
        self.began = sequence
        self.ended = 0
        self.cell_size = 1
        self.cell_incarnation = None
        self.evidence = None
        self.reason = ""
        self.suspicion = None
        self.suspension = None
        self.weights = None
        self.weights_sequence = 0
        self.drain = None
        self.drain_seconds = None
        self.lease = None

    def identify(self, fact: WorkerFact) -> None:
        """Take over what the fact says about the worker's place in the fleet."""
        if fact.pool is not None:
            self.pool = fact.pool
        if fact.cell is not None:
            self.cell = fact.cell
        if fact.rank is not None and fact.rank != self.rank:
            self.rank = fact.rank
            self.entrypoint = fact.rank == 0
        if fact.entrypoint is not None:
            self.entrypoint = fact.entrypoint
        if fact.cell_incarnation is not None:
            self.cell_size = fact.cell_size
            self.cell_incarnation = fact.cell_incarnation

    def mark(self, fact: Fact, sequence: int) -> None:
        """Take over what the fact leaves beside the phase."""
        match fact:
            case WorkerUp():
                self.suspicion = None
                self.evidence = None
                self.lease = fact.lease or self.lease
            case WorkerDown():
                self.ended = sequence
                if self.evidence not in DIRECT_EVIDENCE:
                    self.evidence, self.reason = fact.evidence, shortened(fact.reason)
            case WorkerDraining() | DrainRequested():
                self._drain(fact, sequence)
            case RecoveryStarted():
                self.evidence = self.evidence or "planned"
            case WorkerSuspected():
                self.suspicion = shortened(fact.reason) or "suspected"
            case WorkerSuspended():
                until = None if fact.until is None else fact.until[:LONGEST_TIME]
                self.suspension = Suspension(shortened(fact.reason), until, sequence)
            case WorkerResumed():
                self.suspicion = None
                self.suspension = None
            case WeightsLoaded():
                self.weights, self.weights_sequence = fact.version, sequence
            case _:
                return

    def _drain(self, fact: WorkerDraining | DrainRequested, sequence: int) -> None:
        self.drain_seconds = fact.deadline_seconds
        if isinstance(fact, DrainRequested):
            self.drain = Decision(shortened(fact.by), shortened(fact.why), sequence)
            self.reason = f"asked for by {self.drain.by}: {self.drain.why}"


def new_worker(name: str) -> Worker:
    """A worker of which nothing has been heard yet."""
    parsed = parse_worker(name)
    return Worker(name, parsed.pool, parsed.cell, parsed.rank, entrypoint=parsed.rank == 0)
