"""The monitors and recoverers of one world: real ones, each a process that is killed, stopped and started again."""

import asyncio

from simulation.keeping import POOL

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.ids import SeededIds
from rollbook.events import Codec
from rollbook.projections.health.monitor import Monitor, watched_pool
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.recovery.recoverer import Recoverer
from rollbook.projections.state.observers import Heartbeat

BEAT_SECONDS = 1.0


class Keeper:
    """One process."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.woke = 0.0
        """When it last went on after it had been stopped."""
        self.paused = False
        self.projector: Projector
        self.process: virtual.Process
        self.task: asyncio.Task


class Asked:
    """The manager as one recoverer has it; what it asks for is looked at first."""

    def __init__(self, world, keeper: Keeper) -> None:
        self._world = world
        self._keeper = keeper

    async def start_cell(self, workers):
        self._world.kept.custody.begins(self._keeper, workers)
        await self._world.kept.manager.start_cell(workers)

    async def terminate(self, worker, expected_incarnation):
        self._world.kept.custody.kills(self._keeper, worker, expected_incarnation)
        return await self._world.kept.manager.terminate(worker, expected_incarnation)


class Keepers:
    """All of one world."""

    def __init__(self, world, policy) -> None:
        keeping = world.weather.keeping
        self.running: list[Keeper] = []
        self._world = world
        self._policy = policy
        self._started = 0
        self._wanted = [f"monitor-{number}" for number in range(keeping.monitors)]
        self._wanted += [f"recoverer-{number}" for number in range(keeping.recoverers)]

    async def supervise(self) -> None:
        """Keep all running, under their names or under others, as a service manager or a trainer does."""
        world, rng = self._world, self._world.rng("keepers")
        for name in self._wanted:
            self._start(name)
        while True:
            await asyncio.sleep(0.5)
            for keeper in [one for one in self.running if one.task.done()]:
                world.wrong(f"{keeper.name} ended: {keeper.task.exception()!r}")
            running = {one.name for one in self.running}
            for place, name in enumerate(self._wanted):
                if name not in running and (world.stopping or rng.random() < 0.4):
                    if rng.random() < 0.3:
                        self._wanted[place] = f"{name}-{self._started}"
                    self._start(self._wanted[place])

    def _start(self, name: str) -> None:
        world = self._world
        self._started += 1
        keeper = Keeper(name.partition("-")[0], name)
        ids = SeededIds(world.rng(f"ids/{name}/{self._started}"))
        keeper.projector = Projector(world.log, Codec(world.policy.fleet), world.clock)
        about = {
            "projector": keeper.projector,
            "verdicts": Verdicts(world.policy.fleet, world.log, world.clock, ids, name),
            "clock": world.clock,
            "tell": lambda event, /, **keys: self._tell(name, event, keys),
        }
        main = self._monitor(keeper, about) if keeper.kind == "monitor" else self._recoverer(keeper, about)
        keeper.process, keeper.task = world.loop.spawn(name, main)
        self.running.append(keeper)
        world.note(f"{name} starts")

    def _tell(self, name: str, event: str, keys: dict) -> None:
        self._world.counts[event] += 1
        self._world.note(f"{name} {event} " + " ".join(f"{key}={value}" for key, value in keys.items()))

    async def _monitor(self, keeper: Keeper, about: dict) -> None:
        world = self._world
        check = world.kept.probes.of(f"{keeper.name}/{self._started}", keeper.projector)
        monitor = Monitor(
            {POOL: watched_pool(self._policy, check)},
            provider=world.provider,
            rng=world.rng(f"{keeper.name}/{self._started}"),
            **about,
        )
        beating = asyncio.create_task(self._beat(keeper.name))
        try:
            await monitor.run()
        finally:
            beating.cancel()

    async def _beat(self, name: str) -> None:
        beat = Heartbeat(observer=name, every=BEAT_SECONDS, pools=(POOL,))
        while True:
            self._world.kept.hear(lambda resources, now: resources.observers.heard(beat, now))
            await asyncio.sleep(BEAT_SECONDS)

    async def _recoverer(self, keeper: Keeper, about: dict) -> None:
        manager = Asked(self._world, keeper)
        await Recoverer({POOL: self._policy.recovery}, name=keeper.name, manager=manager, **about).run()

    def kill(self, keeper: Keeper) -> None:
        """End it between two steps."""
        if keeper in self.running and not keeper.task.done():
            keeper.process.kill()
            self.running.remove(keeper)
            self._world.counts[f"{keeper.kind} kills"] += 1
            self._world.note(f"{keeper.name} is killed")

    async def pause(self, keeper: Keeper, seconds: float) -> None:
        """Stop it while the world goes on; then let it go on."""
        if keeper.paused or keeper not in self.running:
            return
        world = self._world
        world.note(f"{keeper.name} is stopped for {seconds:.2f} s")
        world.counts[f"{keeper.kind} pauses"] += 1
        keeper.process.pause()
        keeper.paused = True
        await asyncio.sleep(seconds)
        keeper.paused = False
        if keeper in self.running:
            keeper.woke = world.loop.time()
            keeper.process.resume()
            world.note(f"{keeper.name} goes on")
