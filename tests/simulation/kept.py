"""The cells that are watched and restarted: who keeps them, and what befalls them."""

import asyncio

from simulation.custody import Custody
from simulation.keepers import Keepers
from simulation.keeping import POOL
from simulation.manager import Manager
from simulation.probes import HANGS, Probes
from simulation.watched import identity

from rollbook.events import WorkerResumed, WorkerSuspended, WorkerUncordoned
from rollbook.events.times import rfc3339
from rollbook.projections.recovery.ports import ManagerError
from rollbook.projections.state.leases import Renewal

LAUNCH_SECONDS = 1.0
"""Between two looks of whoever launches the cells anew in a new run."""


class Kept:
    """Of one world. `background` is run beside it; `sources` act until its facts stop."""

    def __init__(self, world) -> None:
        self._world = world
        self._rng = world.rng("kept")
        self.policy = world.policy.pools[POOL]
        self.cells: dict[str, list] = {}
        """By name: the workers, by rank."""
        for number, size in enumerate(world.weather.keeping.cells):
            name = f"{POOL}-{number}"
            self.cells[name] = [world.fleet.hire(f"{name}-{rank}", POOL, rank, kept=True) for rank in range(size)]
        self.manager = Manager(world, self.cells)
        self.probes = Probes(world)
        self.keepers = Keepers(world, self.policy)
        self.custody = Custody(world, self)
        self._renewing: list[asyncio.Task] = []

    def background(self):
        """What goes on to the end."""
        yield self.keepers.supervise()
        yield self._launch()

    def sources(self):
        """What goes wrong, and how often."""
        keeping = self._world.weather.keeping
        for name, mean, act in (
            ("deaths", keeping.deaths, self._die),
            ("hangs", keeping.hangs, self._hang),
            ("naps", keeping.naps, self._nap),
            ("keepers", keeping.kills, self._kill),
            ("stopped keepers", keeping.pauses, self._pause),
            ("blind", keeping.blind, self._blind),
            ("manager", keeping.manager_ends, self._end_the_manager),
            ("cordons", 4.0, self._uncordon),
        ):
            if mean:
                yield f"kept/{name}", mean, act

    def end(self) -> None:
        """Nobody renews any more."""
        for task in self._renewing:
            task.cancel()

    # -------------------------------------------------------------- beside the log

    def hear(self, act) -> None:
        """Let every controller hear what is said outside the log: `act` gets its resources and its time."""
        world = self._world
        if not world.seat.available:
            return
        for running in world.controllers.running:
            world.loop.call_soon(
                lambda running=running: act(running.resources, world.loop.time()), context=running.task.context
            )

    def deaf(self, *, deaf: bool) -> None:
        """NATS is away, or back."""
        for running in self._world.controllers.running:
            for heard in (running.resources.observers, running.resources.leases):
                if deaf:
                    heard.deaf()
                else:
                    heard.listening(self._world.loop.time())

    def renew(self, rank, incarnation: int, lease: float) -> None:
        """This life promised to be heard of; its publisher may die alone."""
        until = self._world.loop.time() + self._rng.choice([1e9, self._rng.uniform(0, 8)])
        task = self._world.loop.create_task(self._renew(rank, incarnation, lease, until), context=self._world.context)
        self._renewing.append(task)

    async def _renew(self, rank, incarnation: int, lease: float, until: float) -> None:
        said = Renewal(worker=rank.name, incarnation=incarnation)
        while rank.incarnation == incarnation and rank.alive and self._world.loop.time() < until:
            if rank.serving:
                self.hear(lambda resources, now: resources.leases.renewed(said.worker, said.incarnation, now))
            await asyncio.sleep(lease / 3)

    # -------------------------------------------------------------- the launcher

    async def _launch(self) -> None:
        """Begin the cells in every run anew: whose lives are of an earlier one has retired."""
        while True:
            for cell, ranks in self.cells.items():
                journal = self._world.witness.journal
                journal.read()
                began = [journal.began.get((rank.name, rank.incarnation), 0) for rank in ranks]
                if journal.run_ended or min(began) > journal.run_began:
                    continue
                try:
                    await self.manager.relaunch(cell)
                except ManagerError as exc:
                    self._world.note(f"{cell} was not launched: {exc}")
            await asyncio.sleep(LAUNCH_SECONDS)

    # -------------------------------------------------------------- what befalls them

    def _one(self, rng):
        """Somebody of whom there is a process; None if there is nobody."""
        alive = [rank for ranks in self.cells.values() for rank in ranks if rank.alive]
        return rng.choice(alive) if alive else None

    async def _die(self, rng) -> None:
        """One, or all at once."""
        first = self._one(rng)
        everybody = [rank for ranks in self.cells.values() for rank in ranks]
        for rank in everybody if rng.random() < 0.2 else [first]:
            if rank is not None and rank.alive:
                self.manager.lose(rank)

    async def _hang(self, rng) -> None:
        """For a while, or until it is killed."""
        rank = self._one(rng)
        if rank is None or not rank.serving:
            return
        self._world.counts["hangs"] += 1
        self._sleep(rank)
        if rng.random() < 0.7 or not self._watched(rank):
            self._world.fleet.straggle(self._wake(rank, rank.incarnation, rng.uniform(0.3, 5)))

    def _watched(self, rank) -> bool:
        """Whether a monitor asks it: nobody else would find that it hangs."""
        return rank.rank == 0 or self.policy.health.every_rank

    def _sleep(self, rank) -> None:
        world, url = self._world, f"http://{rank.url}"
        rank.serving = False
        world.answering.discard(url)
        world.readiness.serve(url, HANGS, who=identity(rank.name, rank.incarnation).value)
        world.note(f"{rank.name} {rank.incarnation} does not answer")

    async def _wake(self, rank, incarnation: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if rank.incarnation == incarnation and rank.alive and not rank.serving:
            rank.serving = True
            self._world.fleet.listen(rank)
            self._world.note(f"{rank.name} {rank.incarnation} answers again")

    async def _nap(self, rng) -> None:
        """It is put to sleep, by one whose clock may be wrong, and who may die. It may not wake up by itself."""
        rank, fleet = self._one(rng), self._world.fleet
        if rank is None or not rank.serving:
            return
        incarnation, held = rank.incarnation, rng.random() < 0.5
        seconds = rng.uniform(0.5, 4)
        until = ttl = None
        if rng.random() < 0.8:
            ttl = seconds + held
            skew = rng.choice([0.0, 0.0, 3600.0, -3600.0])
            until = rfc3339(self._world.clock.now() + ttl + skew)
        fleet.say("trainer", rank, WorkerSuspended, reason="offload", until=until, ttl=ttl)
        self._world.counts["naps"] += 1
        if held or until is None:
            fleet.straggle(self._resume(rank, incarnation, seconds))
        else:
            self._world.counts["holders that died"] += 1
        await asyncio.gather(*rank.receipts)
        if rank.incarnation != incarnation or not rank.serving:
            return
        self._sleep(rank)
        if rng.random() < 0.8 or not self._watched(rank):
            fleet.straggle(self._wake(rank, incarnation, seconds))

    async def _resume(self, rank, incarnation: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        said = WorkerResumed(worker=rank.name, incarnation=incarnation)
        await self._world.fleet.authors["trainer"].publish(said)

    async def _kill(self, rng) -> None:
        """At once, or in the middle of something."""
        keepers, world = self.keepers, self._world
        keeper = rng.choice(keepers.running) if keepers.running else None
        if keeper is None:
            return
        if rng.random() < 0.5:
            keepers.kill(keeper)
        else:
            world.after_lines(rng.randint(1, 20), lambda: keepers.kill(keeper))

    async def _pause(self, rng) -> None:
        keepers = self.keepers
        if keepers.running:
            claim = self.policy.recovery.claim
            seconds = rng.choice([rng.uniform(0, 2), rng.uniform(claim, 2 * claim)])
            self._world.fleet.straggle(keepers.pause(rng.choice(keepers.running), seconds))

    async def _blind(self, rng) -> None:
        self.probes.blind = True
        await asyncio.sleep(rng.uniform(0, 6))
        self.probes.blind = False

    async def _end_the_manager(self, _) -> None:
        self.manager.die()

    async def _uncordon(self, rng) -> None:
        """An operator repairs what was given up."""
        roster = self._world.witness.journal.follow().roster
        for name in [rank.name for ranks in self.cells.values() for rank in ranks if rank.name in roster.cordons]:
            if rng.random() < 0.5:
                self._world.counts["repaired"] += 1
                said = WorkerUncordoned(worker=name, by="ada", why="repaired")
                await self._world.fleet.authors["operator"].publish(said)
