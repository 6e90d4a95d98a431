"""The simulated operator's decisions about the whole fleet, and the monitors' mass mistakes.

What concerns one worker (cordon, drain, forget, suspend) is decided in the course of its life: see director.py.
"""

import asyncio

from rollbook.events import FleetEnded, FleetObserved, FleetStarted, ReconcileHeld, ReconcileReleased, WorkerDown


class Operator:
    """Acts until the world's facts stop, and ends what it began."""

    def __init__(self, world) -> None:
        self._world = world
        self._run: str | None = None

    async def decide(self, rng) -> None:
        """A hold of one router or of all, a new run, the end of one, or leave to exceed the removal budget."""
        match rng.randrange(6):
            case 0:
                await self._begin_run(rng)
            case 1:
                await self._end_run(rng)
            case 2:
                await self._force(rng)
            case _:
                await self._hold(rng)

    async def _begin_run(self, rng) -> None:
        world = self._world
        self._run = f"run-{rng.getrandbits(40)}"
        await world.fleet.authors["operator"].publish(FleetStarted(run_id=self._run))
        world.fleet.bar = None
        world.counts["runs"] += 1

    async def _end_run(self, rng) -> None:
        """It stays ended, or another run begins after a while: its workers are all still to come."""
        world = self._world
        await world.fleet.authors["operator"].publish(FleetEnded(run_id=self._run or "the first", reason="trained"))
        world.counts["ends"] += 1
        if rng.random() < 0.7:
            await asyncio.sleep(rng.uniform(0, 4))
            await self._begin_run(rng)

    async def _hold(self, rng) -> None:
        world = self._world
        operator = world.fleet.authors["operator"]
        proxy = rng.choice([None, *world.routers])
        await operator.publish(ReconcileHeld(proxy=proxy, by="ada", why="maintenance"))
        world.counts["holds"] += 1
        await asyncio.sleep(rng.uniform(0, 5))
        await operator.publish(ReconcileReleased(proxy=proxy, by="ada", why="done"))

    async def _force(self, rng) -> None:
        world = self._world
        leader = world.controllers.leader
        if leader is not None and leader.controller.lanes:
            name = rng.choice(list(leader.controller.lanes))
            world.note(f"the removal budget of {name} may be exceeded once")
            world.witness.budget.forced.add(name)
            leader.controller.lanes[name].force_once("ada")
            world.counts["forced"] += 1

    async def alarm(self, rng) -> None:
        """Everybody is thought to be dead, and after a while everybody turns out to be alive [I12]."""
        world = self._world
        world.counts["blackouts"] += 1
        world.note("a blackout begins")
        seconds = rng.choice([rng.uniform(0, 1), rng.uniform(1, 8)])
        if "observer" in world.fleet.authors and rng.random() < 0.5:
            end = (await world.fleet.ends()).last_sequence
            await asyncio.sleep(0.01)
            nobody = FleetObserved(observer="ray", pools=tuple(world.policy.pools), as_of=end)
            await world.fleet.authors["observer"].publish(nobody)
            await asyncio.sleep(seconds)
        else:
            await asyncio.gather(*(self._mistake(worker, seconds) for worker in world.fleet.workers.values()))
        world.note("the blackout is over")

    async def _mistake(self, worker, seconds: float) -> None:
        fleet, incarnation = self._world.fleet, worker.incarnation
        async with worker.lock:
            await asyncio.gather(*worker.receipts)
            if not worker.serving or worker.incarnation != incarnation:
                return
            await fleet.say("health", worker, WorkerDown, evidence="timeout", reason="the monitor was cut off")
            await asyncio.sleep(seconds)
            await fleet.revive(worker, incarnation)
