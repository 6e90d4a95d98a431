"""The roster: the fold of all facts about workers and the fleet.

`Roster.apply` is deterministic in (roster, recorded fact) and knows no clock. It says which workers' standing may have
changed, so that only their keys are looked at again, and why a fact was ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import msgspec

from rollbook.events import (
    CellDeclared,
    DrainRequested,
    Fact,
    FleetEnded,
    FleetObserved,
    FleetStarted,
    ObservedWorker,
    OperatorFact,
    OperatorProxyFact,
    OperatorWorkerFact,
    ReconcileHeld,
    Recorded,
    RecoveryFailed,
    WeightsPublished,
    WorkerCordoned,
    WorkerFact,
    WorkerForgotten,
    WorkerUncordoned,
    WorkerUp,
)
from rollbook.projections.state import claims
from rollbook.projections.state.bounds import shortened
from rollbook.projections.state.cells import Cell, Cells, enter, key_of, leave
from rollbook.projections.state.repetition import Remembered, repeated
from rollbook.projections.state.transitions import NOT_SEEN, STALE, Relation, relate, rule
from rollbook.projections.state.worker import LIVE, Bar, Decision, Phase, Suspension, Worker, new_worker

MOST_OBSERVERS: Final = 256
"""Observers whose last listing is remembered; whoever was silent for longest is forgotten first."""

_FLEET: Final = ""
_RESTARTS: Final = attrgetter("restarts")


class Change(msgspec.Struct, frozen=True, gc=False):
    """What a fact changed."""

    workers: tuple[str, ...] = ()
    """Whose standing may be another now."""
    everything: bool = False
    """Any worker's standing may be another now."""
    ignored: str | None = None
    """Why the fact changed nothing, if it did not."""


NOTHING: Final = Change()
_DUPLICATE: Final = Change(ignored="a repeated id")


class Roster(msgspec.Struct, gc=False):
    """Every worker's incarnation, phase and reasons, and what was decided about the fleet."""

    workers: dict[str, Worker] = {}
    cordons: dict[str, Decision] = {}
    """By worker, known or not; survives new incarnations."""
    tombstones: dict[str, int] = {}
    """Forgotten workers: only a higher incarnation returns."""
    forgotten: dict[str, Decision] = {}
    """Who had them forgotten, and why."""
    cells: Cells = {}
    declared: dict[str, Cell] = {}
    bars: dict[str, Bar] = {}
    """By pool: what was published last."""
    held: dict[str, Decision] = {}
    """Proxies whose reconciliation an operator holds; `""` stands for all."""
    observers: dict[str, int] = {}
    """By observer: `as_of` of its last listing."""
    run_id: str | None = None
    ended: bool = False
    ending: Decision | None = None
    """Who ended the run that has ended, and why."""
    recent: Remembered = {}
    """The last ids of every worker's own facts, and of the fleet's under `""`. Of a life that is retired, and of whom
    an operator had forgotten, no fact changes anything any more: their ids are not kept."""
    decided: Remembered = {}
    """The last ids of operators' facts about every worker."""

    def apply(self, recorded: Recorded) -> Change:
        """Fold one fact in. Facts of the proxy and quarantine families are not the roster's and change nothing."""
        fact = recorded.fact
        if isinstance(fact, WorkerFact):
            if repeated(self.recent, fact.worker, recorded.id):
                return _DUPLICATE
            return self._worker(fact, fact.incarnation, recorded)
        if isinstance(fact, OperatorWorkerFact):
            if repeated(self.decided, fact.worker, recorded.id):
                return _DUPLICATE
            return self._operator(fact, recorded)
        if fact.FAMILY not in {"fleet", "operator"}:
            return NOTHING
        return _DUPLICATE if repeated(self.recent, _FLEET, recorded.id) else self._fleet(fact, recorded)

    # -------------------------------------------------------------- one worker

    def _worker(self, fact: WorkerFact | DrainRequested, incarnation: int, recorded: Recorded) -> Change:
        name = fact.worker
        worker = self.workers.get(name)
        if worker is None:
            if name in self.tombstones and incarnation <= self.tombstones[name]:
                return Change(ignored="an operator had it forgotten; only a higher incarnation returns")
            worker = new_worker(name)
        relation = relate(incarnation, worker.incarnation)
        found = rule(worker.phase, type(fact), relation)
        if found.ignored is not None:
            return Change(ignored=found.ignored)
        # A `seen` that is not before the fact itself is of an earlier log of this name, and no knowledge of this one.
        if found.if_seen and isinstance(fact, WorkerFact) and not worker.ended <= fact.seen < recorded.sequence:
            return Change(ignored=NOT_SEEN)
        before = None
        if worker.began == 0:
            self.workers[name] = worker
            self._remember(name)
        else:
            before = (worker.pool, worker.cell)
        if relation is Relation.NEWER:
            worker.begin_life(incarnation, recorded.sequence)
        if isinstance(fact, WorkerFact):
            worker.identify(fact)
        left = () if before == (worker.pool, worker.cell) else self._place(worker, before)
        self._move(worker, found.phase, recorded)
        worker.mark(fact, recorded.sequence)
        worker.restarts = claims.noted(worker.restarts, recorded)
        siblings = self.siblings(worker)
        if isinstance(fact, WorkerUp):
            self._restored(siblings)
        if isinstance(fact, RecoveryFailed) and fact.cordoned:
            by = shortened(recorded.source.rpartition("/")[2])
            self.cordons[name] = Decision(by, shortened(fact.reason), recorded.sequence)
        return Change((*siblings, *left) if left else tuple(siblings))

    def _restored(self, cell: Iterable[str]) -> None:
        """A restart is over when all of the cell serve."""
        ranks = [self.workers[name] for name in cell]
        if not any(map(_RESTARTS, ranks)) or any(rank.phase not in {Phase.SERVING, Phase.RETIRED} for rank in ranks):
            return
        for rank in ranks:
            rank.restarts = claims.restored(rank.restarts, rank.incarnation)

    def _move(self, worker: Worker, phase: Phase, recorded: Recorded) -> None:
        worker.last = recorded.sequence
        if phase is worker.phase:
            return
        worker.phase = phase
        worker.since_sequence = recorded.sequence
        worker.since_time = recorded.time
        worker.reason = shortened(getattr(recorded.fact, "reason", ""))
        if phase in LIVE:
            return
        worker.suspicion = None
        worker.suspension = None
        if phase is Phase.DOWN:
            worker.ended = recorded.sequence
        elif phase is Phase.RETIRED:
            self.recent.pop(worker.name, None)

    def _place(self, worker: Worker, before: tuple[str | None, str | None] | None) -> Iterable[str]:
        """File it in the index of cells, anew or for the first time; return whom it left behind in its former cell."""
        left = () if before is None else leave(self.cells, key_of(*before), worker.name)
        enter(self.cells, key_of(worker.pool, worker.cell), worker.name)
        return left

    def siblings(self, worker: Worker) -> list[str]:
        """The names of all known workers of its cell, itself included."""
        key = key_of(worker.pool, worker.cell)
        return self.cells.get(key, [worker.name]) if key is not None else [worker.name]

    def sleep(self, worker: Worker) -> Suspension | None:
        """Its suspension, or that of another rank in the same life of its cell: they can only work together."""
        if worker.suspension is not None or worker.cell_incarnation is None:
            return worker.suspension
        ranks = (self.workers[name] for name in self.siblings(worker))
        return next(
            (
                rank.suspension
                for rank in ranks
                if rank.suspension is not None and rank.cell_incarnation == worker.cell_incarnation
            ),
            None,
        )

    def began_after(self, worker: str, incarnation: int, name: str) -> bool:
        """Whether this life of `worker` is its current one and began after the current one of `name`."""
        other, mine = self.workers.get(worker), self.workers.get(name)
        if other is None or mine is None or other.incarnation != incarnation:
            return False
        return other.began > mine.began

    def holding(self, proxy: str) -> Decision | None:
        """Who decided that no admin calls are made at `proxy`, or at any; None if nobody did."""
        return self.held.get(proxy) or self.held.get("")

    # -------------------------------------------------------------- the operator

    def _operator(self, fact: OperatorWorkerFact, recorded: Recorded) -> Change:
        name = fact.worker
        match fact:
            case WorkerCordoned():
                self.cordons[name] = _decision(fact, recorded)
            case WorkerUncordoned():
                if self.cordons.pop(name, None) is None:
                    return Change(ignored="it was not cordoned")
                if name in self.workers:
                    self.workers[name].restarts = claims.anew(self.workers[name].restarts)
            case WorkerForgotten():
                return self._forget(name, _decision(fact, recorded))
            case DrainRequested():
                worker = self.workers.get(name)
                return self._worker(fact, worker.incarnation if worker else 0, recorded)
            case _:
                return NOTHING
        return Change((name,))

    def _forget(self, name: str, decision: Decision) -> Change:
        worker = self.workers.pop(name, None)
        if worker is None:
            return Change(ignored="nothing is known of this worker")
        self.recent.pop(name, None)
        self.tombstones[name] = worker.incarnation
        self.forgotten[name] = decision
        return Change((name, *leave(self.cells, key_of(worker.pool, worker.cell), name)))

    def _remember(self, name: str) -> None:
        """It has started anew."""
        self.tombstones.pop(name, None)
        self.forgotten.pop(name, None)

    # -------------------------------------------------------------- the fleet

    def _fleet(self, fact: Fact, recorded: Recorded) -> Change:
        match fact:
            case FleetStarted():
                return self._run_began(fact, recorded)
            case FleetEnded():
                return self._run_ended(fact, recorded)
            case CellDeclared():
                key = f"{fact.pool}/{fact.cell}"
                if key in self.declared and fact.cell_incarnation < self.declared[key].cell_incarnation:
                    return Change(ignored="a later cell incarnation is declared")
                self.declared[key] = Cell(fact.size, fact.cell_incarnation)
                return Change(tuple(self.cells.get(key, ())))
            case WeightsPublished():
                self.bars[fact.pool] = Bar(fact.version, recorded.sequence)
                return Change(everything=True)
            case FleetObserved():
                return self._observed(fact, recorded)
            case OperatorProxyFact():
                key = fact.proxy or ""
                if isinstance(fact, ReconcileHeld):
                    self.held[key] = _decision(fact, recorded)
                elif self.held.pop(key, None) is None:
                    return Change(ignored="it was not held")
                return Change(everything=True)
            case _:
                return NOTHING

    def _run_began(self, fact: FleetStarted, recorded: Recorded) -> Change:
        if fact.run_id == self.run_id and not self.ended:
            return Change(ignored="this run has begun already")
        self.run_id, self.ended, self.ending = fact.run_id, False, None
        self.bars.clear()
        self.declared.clear()  # its cells may be numbered from 1 again
        change = self._retire_all(f"run {shortened(fact.run_id)} began", recorded)
        self.recent = {name: ids for name, ids in self.recent.items() if name == _FLEET}
        return change

    def _run_ended(self, fact: FleetEnded, recorded: Recorded) -> Change:
        if self.run_id not in {None, fact.run_id}:
            ended, begun = shortened(fact.run_id), shortened(self.run_id or "")
            return Change(ignored=f"it ends run {ended}, and run {begun} has begun since")
        self.ended = True
        author = shortened(recorded.source.rpartition("/")[2])
        self.ending = Decision(author, shortened(fact.reason), recorded.sequence)
        return self._retire_all(shortened(fact.reason or f"run {fact.run_id} ended"), recorded)

    def _retire_all(self, reason: str, recorded: Recorded) -> Change:
        for worker in self.workers.values():
            if worker.phase is not Phase.RETIRED:
                self._move(worker, Phase.RETIRED, recorded)
                worker.reason = reason
                worker.restarts = None
        return Change(everything=True)

    def _observed(self, fact: FleetObserved, recorded: Recorded) -> Change:
        """Heal lost edges of the listed pools: what is listed lives, what is omitted is down."""
        if fact.as_of >= recorded.sequence:
            return Change(ignored="a listing that began after it was published: as_of is no sequence of this log")
        if fact.as_of <= self.observers.get(fact.observer, -1):
            return Change(ignored="an older listing than this observer's last")
        self.observers.pop(fact.observer, None)
        self.observers[fact.observer] = fact.as_of
        if len(self.observers) > MOST_OBSERVERS:
            del self.observers[next(iter(self.observers))]
        listed = {line.worker: line for line in fact.workers}
        touched: dict[str, None] = {}
        for line in fact.workers:
            touched.update(dict.fromkeys(self._seen_alive(line, fact, recorded)))
        pools = set(fact.pools)
        for worker in list(self.workers.values()):
            gone = worker.name not in listed or listed[worker.name].incarnation < worker.incarnation
            if worker.pool in pools and gone and worker.phase in LIVE and worker.began <= fact.as_of:
                self._move(worker, Phase.DOWN, recorded)
                worker.evidence = "not_observed"
                worker.reason = f"{fact.observer} did not list it"
                touched.update(dict.fromkeys(self.siblings(worker)))
        return Change(tuple(touched))

    def _seen_alive(self, line: ObservedWorker, fact: FleetObserved, recorded: Recorded) -> Iterable[str]:
        """What is listed lives: a newer life begins, a starting one serves, one that was only not listed is back."""
        if line.incarnation <= self.tombstones.get(line.worker, 0):
            return ()
        worker = self.workers.get(line.worker) or new_worker(line.worker)
        if worker.pool is not None and worker.pool not in fact.pools:
            return ()
        relation = relate(line.incarnation, worker.incarnation)
        told = line.cell_incarnation if relation is not Relation.SAME or worker.cell_incarnation is None else None
        target = Phase.SERVING if line.serving else Phase.STARTING
        if relation is Relation.OLDER:
            return ()
        if relation is Relation.NEWER:
            self.workers[line.worker] = worker
            self._remember(line.worker)
            size = worker.cell_size
            worker.begin_life(line.incarnation, recorded.sequence)
            worker.cell_size = size  # a listing may not say it, and a cell keeps its size
            self._place(worker, (worker.pool, worker.cell))
        elif worker.phase is Phase.DOWN:
            healed = worker.evidence == "not_observed" and worker.last <= fact.as_of
            if not healed:
                return ()
            worker.evidence = None
        elif worker.phase is not Phase.STARTING or target is Phase.STARTING:
            return self._enters_cell(worker, line.cell_size, told)
        self._enters_cell(worker, line.cell_size, told)
        self._move(worker, target, recorded)
        worker.reason = f"{fact.observer} listed it"
        siblings = self.siblings(worker)
        self._restored(siblings)
        return siblings

    def _enters_cell(self, worker: Worker, size: int, cell_incarnation: int | None) -> Iterable[str]:
        """A listing may be the first to say of which life of its cell it is; return whose standing that changes."""
        if cell_incarnation is None:
            return ()
        worker.cell_size, worker.cell_incarnation = max(1, size), cell_incarnation
        return self.siblings(worker)


def _decision(fact: OperatorFact, recorded: Recorded) -> Decision:
    return Decision(shortened(fact.by), shortened(fact.why), recorded.sequence)


__all__ = ["NOTHING", "STALE", "Change", "Decision", "Roster"]
