"""Who starts and ends the processes of the watched cells, as the Ray manager does: it dies, hangs and does half.

A cell is kept whole: its processes begin and end together. What the manager was asked for goes on in a process of its
own, whether or not the one who asked still waits, or lives.
"""

import asyncio
import functools
from collections.abc import Sequence

from rollbook.events import WorkerDown, WorkerStarted, WorkerUp
from rollbook.projections.recovery.ports import (
    ManagedWorker,
    ManagerError,
    ManagerUnavailable,
    NotStarted,
    Termination,
)


class Manager:
    """Those of one world. The truth about its workers stands in `Worker`; what it says of them goes to the log."""

    def __init__(self, world, cells) -> None:
        self.cells = cells
        """By name: the workers, by rank."""
        self.available = True
        self._back = asyncio.Event()
        self._back.set()
        self._world = world
        self._keeping = world.weather.keeping
        self._rng = world.rng("manager")
        self._open: set[tuple[str, int]] = set()
        """Lives that it has begun by the log's word and not called over."""
        self._begun: set[tuple[str, int]] = set()
        """Lives that had a process."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._calls: dict[asyncio.Future, object] = {}

    # -------------------------------------------------------------- what it is asked for

    async def start_cell(self, workers: Sequence[str]) -> None:
        """See `WorkerManager`."""
        await self._asked(self._start(self._cell(workers[0])))

    async def terminate(self, worker: str, expected_incarnation: int) -> Termination:
        """See `WorkerManager`."""
        return await self._asked(self._terminate(worker, expected_incarnation))

    async def relaunch(self, cell: str) -> None:
        """Begin the cell's first life in this run, whatever lives of it. Raises `ManagerError`."""
        await self._asked(self._start(cell, anew=True))

    async def list_workers(self) -> list[ManagedWorker]:
        """See `WorkerManager`."""
        ranks = [rank for ranks in self.cells.values() for rank in ranks]
        return [ManagedWorker(rank.name, rank.incarnation, rank.alive) for rank in ranks]

    async def _asked(self, work):
        """Have it done; whoever asks may go away meanwhile. Raises `ManagerUnavailable` if the manager dies of it."""
        if not self.available:
            work.close()
            await asyncio.sleep(self._rng.choice([0.0, 0.5]))
            raise ManagerUnavailable("the manager is not there")
        answer = asyncio.get_running_loop().create_future()
        process, task = self._world.loop.spawn("manager", work)
        self._calls[answer] = process
        task.add_done_callback(functools.partial(self._answer, answer), context=self._world.context)
        return await answer

    def _answer(self, answer: asyncio.Future, task: asyncio.Task) -> None:
        self._calls.pop(answer, None)
        error = task.exception()
        if error is not None and not isinstance(error, ManagerError):
            self._world.wrong(f"the simulation's manager failed: {error!r}")
        if answer.done():
            self._world.counts["answers to nobody"] += 1
        elif self._hits(self._keeping.lost_answers):
            self._world.counts["lost answers"] += 1
            _fail(answer, ManagerUnavailable("the manager did not answer"))
        elif error is not None:
            _fail(answer, error)
        else:
            answer.set_result(task.result())

    def die(self) -> None:
        """In the middle of whatever it does."""
        if not self.available:
            return
        world = self._world
        world.note("the manager dies")
        world.counts["manager deaths"] += 1
        self.available = False
        self._back.clear()
        calls, self._calls, self._locks = self._calls, {}, {}
        for answer, process in calls.items():
            process.kill()
            if not answer.done():
                _fail(answer, ManagerUnavailable("the manager died"))
        world.fleet.straggle(self._return(self._rng.uniform(0.2, 4)), context=world.context)

    async def _return(self, seconds: float) -> None:
        """It is started again, and looks what is left of its cells: half of one is none."""
        await asyncio.sleep(seconds)
        for ranks in self.cells.values():
            lives = [(rank.name, rank.incarnation) in self._open and rank.alive for rank in ranks]
            if not all(lives):
                self._end(ranks, "half of its cell was gone when the manager began")
        self.available = True
        self._back.set()
        self._world.note("the manager is back")

    # -------------------------------------------------------------- processes

    async def _start(self, cell: str, *, anew: bool = False) -> None:
        ranks, rng = self.cells[cell], self._rng
        async with self._locks.setdefault(cell, asyncio.Lock()):
            if all(rank.alive for rank in ranks) and not anew:
                return
            self._end(ranks, "its cell is started")
            life = max(rank.incarnation for rank in ranks) + 1
            lives = []
            for rank in ranks:
                await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 0.8)]))
                lives.append(await self._number(rank, life, len(ranks)))
                if self._hits(self._keeping.stuck):
                    self._world.counts["stuck starts"] += 1
                    await asyncio.sleep(rng.uniform(1, 2) * self._keeping.pool.recovery.claim)
                if self._hits(self._keeping.half):
                    self.die()
                    await asyncio.sleep(0)
                if self._hits(self._keeping.unable):
                    self._world.counts["not started"] += 1
                    self._end(ranks, f"{rank.name} cannot be started")
                if not self._open.issuperset(lives):
                    self._end(ranks, "its cell was ended while it was started")
                    raise NotStarted(f"{cell} did not begin a life")
                self._begin(rank)

    async def _number(self, rank, life: int, size: int) -> tuple[str, int]:
        """The log has a new life of it, which has no process yet."""
        rank.incarnation += 1
        rank.ranks, rank.cell_incarnation = size, life if size > 1 else None
        rank.weights, rank.held, rank.suspended = None, set(), False
        this = rank.name, rank.incarnation
        self._open.add(this)
        await self._world.fleet.say("manager", rank, WorkerStarted, node="node-1")
        return this

    def _begin(self, rank) -> None:
        this = rank.name, rank.incarnation
        if rank.alive or this in self._begun:
            self._world.wrong(f"[I3] two processes of {rank.name}, life {rank.incarnation}")
        self._begun.add(this)
        rank.alive, rank.serving = True, False
        self._world.fleet.place(rank)
        self._world.note(f"{rank.name} {rank.incarnation} has a process at {rank.url}")
        doomed = self._hits(self._keeping.doomed)
        self._world.fleet.straggle(self._load(rank, rank.incarnation, doomed=doomed), context=self._world.context)

    async def _load(self, rank, incarnation: int, *, doomed: bool) -> None:
        """What the new process does until it serves, or does not come to it."""
        rng, world = self._rng, self._world
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 1.5)]))
        if rank.incarnation != incarnation or not rank.alive:
            return
        if doomed:
            world.counts["doomed"] += 1
            self.lose(rank)
            return
        rank.serving = True
        world.fleet.listen(rank)
        world.fleet.tell_provider(rank)
        lease = self._keeping.lease if incarnation % 2 else None
        world.fleet.say("manager", rank, WorkerUp, lease=lease)
        if lease is not None:
            world.kept.renew(rank, incarnation, lease)

    def lose(self, rank) -> None:
        """Its process dies by itself. The manager may notice."""
        world = self._world
        world.counts["process deaths"] += 1
        watched = rank.rank == 0 or self._keeping.pool.health.every_rank
        if watched and self._hits(self._keeping.unnoticed):
            world.counts["unnoticed deaths"] += 1
            world.fleet.leave(rank, known=None)
            return
        world.fleet.leave(rank, known=self._rng.random() < 0.7)
        world.fleet.straggle(self._notice(rank, rank.incarnation), context=world.context)

    async def _notice(self, rank, incarnation: int) -> None:
        await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0, 2)]))
        await self._back.wait()
        if rank.incarnation == incarnation:
            self._end(self.cells[self._cell(rank.name)], f"{rank.name} is dead")

    async def _terminate(self, worker: str, expected: int) -> Termination:
        await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0, 0.5)]))
        rank = self._world.fleet.workers[worker]
        ranks = self.cells[self._cell(worker)]
        if rank.alive and rank.incarnation > expected:
            self._world.counts["stale terminations"] += 1
            return Termination.STALE
        gone = not rank.alive or rank.incarnation < expected
        if rank.incarnation == expected:
            self._end(ranks, f"{worker} was terminated to be replaced")
        return Termination.ALREADY_GONE if gone else Termination.TERMINATED

    def _end(self, ranks, reason: str) -> None:
        """End what lives of a cell, and say so of all that was not called over."""
        fleet = self._world.fleet
        for rank in ranks:
            if rank.alive:
                fleet.leave(rank, known=self._rng.random() < 0.7)
            if (rank.name, rank.incarnation) in self._open:
                self._open.remove((rank.name, rank.incarnation))
                self._world.provider.forget(rank.name)
                fleet.say("manager", rank, WorkerDown, evidence="exited", reason=reason)

    def _cell(self, worker: str) -> str:
        return worker.rpartition("-")[0]

    def _hits(self, chance: float) -> bool:
        """Nothing goes wrong any more once facts and faults have stopped."""
        return not self._world.stopping and chance > 0 and self._rng.random() < chance


def _fail(answer: asyncio.Future, error: BaseException) -> None:
    """Whoever asked may never look."""
    answer.set_exception(error)
    answer.exception()
