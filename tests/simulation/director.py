"""Directors play the lives of workers, and publish what health threads, recovery threads and workers would.

What is true stands in `Worker` as soon as it is said, so at the end the log can be held against it. Stragglers repeat
old facts when they mean nothing any more; they must change nothing.
"""

import asyncio

from rollbook.events import (
    CellDeclared,
    DrainRequested,
    Fact,
    RecoveryFailed,
    RecoveryStarted,
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
from rollbook.events.subjects import worker_subject
from rollbook.events.times import rfc3339
from rollbook.projections.ports import AppendConflict


class Director:
    """Plays the lives of one cell: one worker, or two that live and die together."""

    def __init__(self, world, fleet, name: str, members) -> None:
        self._world = world
        self._fleet = fleet
        self._members = members
        self._head = members[0]
        self._rng = world.rng(f"director/{name}")
        self._life = 0

    async def run(self) -> None:
        rng = self._rng
        await asyncio.sleep(rng.uniform(0, 3))
        while not self._world.stopping:
            await self._begin()
            await self._live()
            if self._world.stopping and rng.random() < 0.7:
                break
            await self._end()
            if self._world.stopping and rng.random() < 0.5:
                break
            await asyncio.sleep(rng.choice([0, rng.uniform(0, 3)]))
        for worker in self._members:
            if worker.cordoned and rng.random() < 0.5:
                await self._uncordon(worker)
            if worker.suspended:
                await self._resume(worker)

    async def _begin(self) -> None:
        fleet, rng = self._fleet, self._rng
        self._life += 1
        if len(self._members) > 1 and rng.random() < 0.5:
            cell = {"pool": self._head.pool, "cell": self._head.name.split("-")[1], "size": len(self._members)}
            await fleet.authors["recovery"].publish(CellDeclared(**cell, cell_incarnation=self._life))
        for worker in self._members:
            if worker.alive:
                fleet.leave(worker, known=True)
            worker.incarnation += 1
            worker.cell_incarnation = self._life if len(self._members) > 1 else None
            worker.alive, worker.serving, worker.suspended, worker.weights = True, False, False, None
            worker.held, worker.ranks = set(), len(self._members)
            worker.unreported = False
            fleet.place(worker)
            if rng.random() < 0.6:
                fleet.say("recovery", worker, WorkerStarted, node="node-1")
        await asyncio.sleep(rng.choice([0, rng.uniform(0, 1.5)]))
        for worker in self._members:
            chance = rng.random()
            if chance < 0.1:
                fleet.squat(worker.url)  # it has its port to itself a moment later
            else:
                fleet.listen(worker, "503 busy" if chance < 0.25 else None)
            worker.serving = True
            fleet.tell_provider(worker)
            fleet.load(worker)
            fleet.say("worker", worker, WorkerUp)
            if chance < 0.25:
                fleet.straggle(self._calm_down(worker, worker.incarnation, rng.uniform(0, 5)))

    async def _calm_down(self, worker, incarnation: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if worker.incarnation == incarnation and worker.alive:
            self._fleet.listen(worker)

    async def _live(self) -> None:
        rng = self._rng
        until = self._world.loop.time() + rng.choice([rng.uniform(0, 0.5), rng.uniform(1, 12)])
        while self._world.loop.time() < until and not self._world.stopping and self._head.alive and self._head.serving:
            await asyncio.sleep(rng.uniform(0.05, 2))
            act = rng.choice(
                [
                    self._nothing,
                    self._suspect,
                    self._suspend,
                    self._weights,
                    self._flap,
                    self._cordon,
                    self._leave_rotation,
                ]
            )
            worker = rng.choice(self._members)
            async with worker.lock:
                if worker.serving:
                    await act(worker)

    async def _stored(self, worker) -> None:
        """Wait until all that was said about the worker is in the log, so that what follows is not overtaken."""
        await asyncio.gather(*worker.receipts)
        worker.receipts.clear()

    async def _nothing(self, worker) -> None:
        return

    async def _suspect(self, worker) -> None:
        self._fleet.say("health", worker, WorkerSuspected, reason="1 of 3 probes")

    async def _weights(self, worker) -> None:
        self._fleet.load(worker)

    async def _suspend(self, worker) -> None:
        await self._stored(worker)
        until = rfc3339(self._world.clock.now() + self._rng.uniform(0, 4)) if self._rng.random() < 0.3 else None
        await self._fleet.say("worker", worker, WorkerSuspended, reason="weight update", until=until)
        worker.suspended = True
        self._world.counts["suspensions"] += 1
        await asyncio.sleep(self._rng.uniform(0, 2))
        if until is None:
            await self._resume(worker)
        else:
            worker.suspended = False  # whenever the leader's clock says so

    async def _resume(self, worker) -> None:
        await self._stored(worker)
        await self._fleet.say("worker", worker, WorkerResumed)
        worker.suspended = False

    async def _flap(self, worker) -> None:
        """A false Down, and the Up of the same life after it."""
        await self._stored(worker)
        await self._fleet.say("health", worker, WorkerDown, evidence="timeout", reason="false alarm")
        await asyncio.sleep(self._rng.choice([0, self._rng.uniform(0, 2)]))
        await self._fleet.revive(worker, worker.incarnation)
        self._world.counts["flaps"] += 1

    async def _cordon(self, worker) -> None:
        if worker.cordoned:
            await self._uncordon(worker)
            return
        operator = self._fleet.authors["operator"]
        await operator.publish(WorkerCordoned(worker=worker.name, by="ada", why="noisy"))
        worker.cordoned = True
        self._world.counts["cordons"] += 1
        await asyncio.sleep(self._rng.uniform(0, 3))
        if self._rng.random() < 0.6:
            await self._uncordon(worker)

    async def _uncordon(self, worker) -> None:
        operator = self._fleet.authors["operator"]
        await operator.publish(WorkerUncordoned(worker=worker.name, by="ada", why="quiet again"))
        worker.cordoned = False

    async def _leave_rotation(self, worker) -> None:
        """It drains, is retired or forgotten, and serves no more in this life."""
        if self._rng.random() < 0.6:
            return
        await self._stored(worker)
        operator = self._fleet.authors["operator"]
        match self._rng.randrange(4):
            case 0:
                await operator.publish(DrainRequested(worker=worker.name, by="ada", why="reboot"))
            case 1:
                await operator.publish(WorkerForgotten(worker=worker.name, by="ada", why="gone"))
            case 2:
                await self._fleet.say("worker", worker, WorkerDraining)
            case _:
                await self._fleet.say("worker", worker, WorkerRetired)
        worker.serving = False
        self._world.counts["left rotation"] += 1

    async def _end(self) -> None:
        fleet, rng = self._fleet, self._rng
        known = rng.random() < 0.7
        dying = self._members if rng.random() < 0.6 else [rng.choice(self._members)]
        for worker in dying:
            if not worker.alive:
                continue
            fleet.leave(worker, known=known)
            self._world.counts["deaths"] += 1
            lost = rng.random() < (0.4 if "observer" in fleet.authors else 0.1)
            worker.unreported = lost and "observer" not in fleet.authors
            if not lost:
                await self._report(worker)
            if rng.random() < 0.4 and not worker.unreported:
                fleet.straggle(self._straggle(fleet.fact(worker, WorkerDown, evidence="timeout", reason="late")))
            if rng.random() < 0.3 and not lost:
                fleet.straggle(self._straggle(fleet.fact(worker, WorkerUp)))

    async def _report(self, worker) -> None:
        fleet, rng = self._fleet, self._rng
        match rng.randrange(4):
            case 0:
                fleet.say("health", worker, WorkerDown, evidence="timeout", reason="3 of 3 probes")
            case 1:
                fleet.say("recovery", worker, RecoveryStarted)
                if rng.random() < 0.5:
                    fleet.say("recovery", worker, RecoveryFailed, reason="no GPU")
            case 2:
                fleet.say("health", worker, WorkerDown, evidence="exited")
                fleet.say("recovery", worker, WorkerDown, evidence="actor_dead")
            case _:
                fleet.straggle(self._probe(fleet.fact(worker, WorkerDown, evidence="unhealthy"), worker))

    async def _probe(self, verdict: Fact, worker) -> None:
        """Check, then act: refused by the log if anything happened to the worker since the check began."""
        author = self._fleet.authors["health"]
        for _ in range(50):
            expected = await self._fleet.last_sequence(worker)
            if worker.incarnation != verdict.incarnation:
                return
            await asyncio.sleep(self._rng.uniform(0, 0.5))
            try:
                await author.send(
                    author.draft(verdict), expect={worker_subject(self._world.policy.fleet, worker.name): expected}
                )
            except AppendConflict:
                self._world.counts["superseded"] += 1
                continue
            return

    async def _straggle(self, fact: Fact) -> None:
        """A fact that comes long after it was true."""
        await asyncio.sleep(self._rng.choice([0, self._rng.uniform(0, 8)]))
        await self._fleet.authors[self._rng.choice(["health", "recovery"])].publish(fact)
        self._world.counts["stragglers"] += 1
