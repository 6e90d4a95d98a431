"""The controller processes of one world: one leads, the others stand by; they are killed, stopped and started again."""

import asyncio
import math

from simulation.watched import current

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.ids import SeededIds
from rollbook.adapters.memory.leadership import MemoryLeadership
from rollbook.projections.leading.claims import ending_claims
from rollbook.projections.leading.controller import Controller
from rollbook.projections.leading.leases import expiry
from rollbook.projections.leading.vigil import vigil
from rollbook.projections.log.projector import LogRewound
from rollbook.projections.ports import LogUnavailable
from rollbook.projections.resources import Resources

RESTART_SECONDS = 0.2
"""Before a controller that ended is started again."""
COMPANIONS = (vigil, expiry, ending_claims)
"""What a leader does beside its lanes, where anybody is watched and restarted."""
ENDINGS = (LogUnavailable, LogRewound)
"""What may end a controller; the last one only where a log loses its tail."""


class Running:
    """One controller process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.owner = f"controller-{number}"
        self.paused = False
        self.controller: Controller | None = None
        self.leadership: MemoryLeadership | None = None
        self.resources: Resources | None = None
        self.process: virtual.Process | None = None
        self.task: asyncio.Task | None = None

    def __str__(self) -> str:
        return f"controller {self.number}"

    @property
    def epoch(self) -> int:
        """Of the leadership that it believes in; 0 for none."""
        return self.leadership._epoch


class Controllers:
    """Those of one world."""

    def __init__(self, world) -> None:
        self._world = world
        self.running: list[Running] = []
        self._started = 0

    def start(self) -> Running:
        """A new controller process, which knows only what log, snapshots and routers hold."""
        world = self._world
        self._started += 1
        number = self._started
        running = Running(number)

        def tell(event, /, **keys):
            world.counts[event] += 1
            world.note(f"c{number} {event} " + " ".join(f"{key}={value}" for key, value in keys.items()))

        running.leadership = MemoryLeadership(world.seat, world.clock)
        running.resources = resources = Resources(
            log=world.log,
            snapshots=world.snapshots,
            leadership=running.leadership,
            provider=world.provider,
            readiness=world.readiness,
            clock=world.clock,
            ids=SeededIds(world.rng(f"ids/{number}")),
            rng=world.rng(f"jitter/{number}"),
            owner=running.owner,
            tell=tell,
        )
        running.controller = Controller(
            world.policy,
            resources,
            list(world.routers.values()),
            COMPANIONS if world.kept is not None else (),
            witnesses=[resources.observers.witness] if world.kept is not None else (),
        )

        async def main():
            current.set(running)
            await running.controller.run()

        running.process, running.task = world.loop.spawn(str(running), main())
        self.running.append(running)
        world.note(f"{running} starts")
        return running

    def kill(self, running: Running) -> None:
        """End a controller between two steps: nothing of it runs any more."""
        if running.task.done():
            return
        world = self._world
        running.process.kill()
        self.running.remove(running)
        world.counts["kills"] += 1
        world.note(f"{running} is killed")
        self._free(running)

    def _free(self, ended: Running) -> None:
        """Where claims last for ever, somebody frees the seat of a controller that did not give it back."""
        seat = self._world.seat
        if seat.owner == ended.owner and seat.lease == math.inf:
            seat.vacate("its owner has ended")

    async def pause(self, running: Running, seconds: float) -> None:
        """Stop a controller, as SIGSTOP does, while the world goes on; then let it go on."""
        if running.paused or running not in self.running:
            return
        world = self._world
        leads = world.seat.owner == running.owner
        world.note(f"{running} is stopped for {seconds:.2f} s")
        world.counts["pauses"] += 1
        running.process.pause()
        running.paused = True
        await asyncio.sleep(seconds)
        if running not in self.running:
            return
        running.paused = False
        running.process.resume()
        world.counts["woken too late"] += leads and world.seat.owner != running.owner
        world.note(f"{running} goes on")

    def reap(self) -> bool:
        """Look at controllers that ended by themselves; only what can happen may have ended them."""
        world = self._world
        ended = [running for running in self.running if running.task.done()]
        for running in ended:
            self.running.remove(running)
            self._free(running)
            if running.task.cancelled():
                continue
            error = running.task.exception()
            world.note(f"{running} ended: {error!r}")
            world.counts[f"ended by {type(error).__name__}"] += 1
            if error is not None and not isinstance(error, ENDINGS):
                world.wrong(f"{running} ended by {error!r}")
        return bool(ended)

    async def supervise(self) -> None:
        """Keep as many controllers running as there should be, as systemd does."""
        world = self._world
        while not world.problems:
            if self.reap():
                await asyncio.sleep(RESTART_SECONDS)
            while len(self.running) < world.weather.writers:
                self.start()
            await asyncio.wait([running.task for running in self.running], timeout=0.5)

    @property
    def leader(self) -> Running | None:
        """The controller that runs its lanes and owns the seat."""
        for running in self.running:
            if running.controller.started.is_set() and self._world.seat.owner == running.owner:
                return running
        return None
