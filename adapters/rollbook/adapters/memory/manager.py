"""A worker manager whose processes live in a dictionary: it says to the log what a real one would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rollbook.events import Evidence, WorkerDown, WorkerFact, WorkerStarted, WorkerUp
from rollbook.projections.ports import Clock
from rollbook.projections.recovery.ports import ManagedWorker, ManagerUnavailable, NotStarted, Termination

Say = Callable[[WorkerFact], Awaitable[object]]


class _Life(msgspec.Struct):
    incarnation: int = 0
    alive: bool = False


class MemoryWorkerManager:
    """Manages `workers`. `say` publishes a fact; lives are numbered on from `incarnation`."""

    def __init__(self, clock: Clock, say: Say, workers: Sequence[str], *, incarnation: int = 0) -> None:
        self.available = True
        """False: every call raises `ManagerUnavailable`."""
        self.unable: set[str] = set()
        """Workers whose process cannot be started."""
        self.doomed: set[str] = set()
        """Workers that die instead of coming to serve."""
        self.seconds = 0.0
        """How long it takes to start a process."""
        self.began: list[tuple[str, int]] = []
        """All lives, in the order of their beginning."""
        self._clock = clock
        self._say = say
        self._lives = {name: _Life(incarnation) for name in workers}

    async def start_cell(self, workers: Sequence[str]) -> None:
        """See `WorkerManager`."""
        self._require()
        begun: list[str] = []
        for name in workers:
            if self.seconds:
                await self._clock.sleep(self.seconds)
            if name in self.unable or name not in self._lives:
                for other in begun:
                    await self._end(other, "exited", f"{name} could not be started")
                raise NotStarted(f"worker {name!r} could not be started")
            life = self._lives[name]
            if not life.alive:
                life.incarnation, life.alive = life.incarnation + 1, True
                begun.append(name)
                self.began.append((name, life.incarnation))
                await self._say(WorkerStarted(worker=name, incarnation=life.incarnation))
        for name in begun:
            if name in self.doomed:
                await self._end(name, "exited", "it is doomed")
            elif self._lives[name].alive:
                await self._say(WorkerUp(worker=name, incarnation=self._lives[name].incarnation))

    async def stop_cell(self, workers: Sequence[str], reason: str) -> None:
        """See `WorkerManager`."""
        self._require()
        for name in workers:
            if name in self._lives and self._lives[name].alive:
                await self._end(name, "planned", reason)

    async def terminate(self, worker: str, expected_incarnation: int) -> Termination:
        """See `WorkerManager`."""
        self._require()
        life = self._lives.get(worker, _Life())
        if not life.alive:
            return Termination.ALREADY_GONE
        if life.incarnation != expected_incarnation:
            return Termination.STALE
        await self._end(worker, "exited", "it was terminated")
        return Termination.TERMINATED

    async def list_workers(self) -> list[ManagedWorker]:
        """See `WorkerManager`."""
        self._require()
        return [ManagedWorker(name, life.incarnation, life.alive) for name, life in self._lives.items()]

    async def kill(self, worker: str) -> None:
        """Its process dies, and the manager notices."""
        await self._end(worker, "exited", "it was killed")

    async def _end(self, name: str, evidence: Evidence, reason: str) -> None:
        life = self._lives[name]
        life.alive = False
        await self._say(WorkerDown(worker=name, incarnation=life.incarnation, evidence=evidence, reason=reason))

    def _require(self) -> None:
        if not self.available:
            raise ManagerUnavailable("the manager in memory was made unavailable")
