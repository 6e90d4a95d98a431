"""What goes wrong while a world runs: controllers die at any step, servers go away and come back, strangers write."""

import asyncio

from rollbook.events import Draft, FleetStarted, ReconcileHeld, ReconcileReleased, stream_subjects
from rollbook.projections.ports import LogUnavailable

STRANGE_MESSAGES = (
    b"",
    b"\x00\xff garbage",
    b"{}",
    b'{"specversion":"1.0","id":"x","source":"rollbook://other/p","type":"rollbook.fleet.started.v1","data":{}}',
    b'{"specversion":"1.0","id":"x","source":"rollbook://math-rl/p","type":"rollbook.worker.up.v1","data":{"worker":7}}',
    b"x" * 1_000_000,
)
UNKNOWN = b'{"specversion":"1.0","id":"u","source":"rollbook://math-rl/p","type":"rollbook.fleet.danced.v1","data":{}}'


class Chaos:
    """Runs until the world's facts stop."""

    def __init__(self, world) -> None:
        self._world = world

    def sources(self):
        weather = self._world.weather
        if weather.crashes:
            yield self._repeat("crashes", weather.crashes, self._crash)
        if weather.outages:
            yield self._repeat("outages", weather.outages, self._outage)
        if weather.operator:
            yield self._repeat("operator", weather.operator, self._decide)
        if weather.garbage:
            yield self._repeat("garbage", weather.garbage, self._garbage)
        yield self._repeat("strangers", 8.0, self._stranger)

    async def _repeat(self, name: str, mean: float, act) -> None:
        rng = self._world.rng(f"chaos/{name}")
        while not self._world.stopping:
            await asyncio.sleep(min(rng.expovariate(1 / mean), 30))
            if not self._world.stopping:
                await act(rng)

    async def _crash(self, rng) -> None:
        world = self._world
        if not world.running:
            return
        running = rng.choice(world.running)
        match rng.randrange(6):
            case 0:
                world.note(f"{running} is asked to stop")
                running.controller.stop()
            case 1:
                world.note(f"{running} is cancelled")
                running.task.cancel()
            case 2:
                world.kill(running)
            case 3:
                # The old one does not know yet that it leads no more; the new one begins beside it.
                world.note(f"{running} is deposed")
                world.counts["deposed"] += 1
                lost, world.seat.owner = world.seat.lost, None
                world.start()
                world.fleet.straggle(self._tell_later(lost, rng.uniform(0, 5)))
            case _:
                rounds = rng.choice([0, 0, 1, 2, 5])
                world.after_lines(rng.randint(1, 40), lambda: self._kill_soon(running, rounds))

    async def _tell_later(self, lost, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if lost is not None and not lost.done():
            lost.set_result("another one leads")

    def _kill_soon(self, running, rounds: int) -> None:
        world = self._world
        if running not in world.running:
            return
        if rounds == 0:
            world.kill(running)
            return

        async def later() -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)
            if running in world.running:
                world.kill(running)

        world.fleet.straggle(later(), context=world.context)

    async def _outage(self, rng) -> None:
        world = self._world
        router = rng.choice(list(world.routers.values()))
        seconds = rng.choice([rng.uniform(0, 1), rng.uniform(1, 8)])
        what = rng.choice(["log", "provider", "slow provider", "refuses", "stalls", "restarts", "loses", "readiness"])
        world.note(f"outage: {what} ({router.name}) for {seconds:.2f} s")
        world.counts[f"outage {what}"] += 1
        match what:
            case "log":
                world.log.cut_off()
                await asyncio.sleep(seconds)
                world.log.available = True
            case "provider":
                world.provider.available = False
                await asyncio.sleep(seconds)
                world.provider.available = True
            case "slow provider":
                world.provider.seconds = seconds / 2
                await asyncio.sleep(seconds)
                world.provider.seconds = 0.0
            case "refuses":
                router.available = False
                await asyncio.sleep(seconds)
                router.available = True
            case "stalls":
                router.stalled = True
                await asyncio.sleep(seconds)
                router.stalled = False
            case "restarts":
                router.restart()
            case "loses":
                if router.listed:
                    router.drop(rng.choice(router.listed))
            case _:
                world.readiness.seconds = seconds / 2
                await asyncio.sleep(seconds)
                world.readiness.seconds = 0.0
        world.note(f"outage: {what} is over")

    async def _decide(self, rng) -> None:
        """A hold of one router or of all, which ends; or a new run, whose workers are all still to come."""
        world = self._world
        operator = world.fleet.authors["operator"]
        if rng.random() < 0.3:
            await operator.publish(FleetStarted(run_id=f"run-{rng.getrandbits(40)}"))
            world.fleet.bar = None
            world.counts["runs"] += 1
            return
        proxy = rng.choice([None, *world.routers])
        await operator.publish(ReconcileHeld(proxy=proxy, by="ada", why="maintenance"))
        world.counts["holds"] += 1
        await asyncio.sleep(rng.uniform(0, 5))
        await operator.publish(ReconcileReleased(proxy=proxy, by="ada", why="done"))

    async def _garbage(self, rng) -> None:
        world = self._world
        subject = rng.choice(stream_subjects(world.policy.fleet)).replace(
            "*", rng.choice(["rollout-0-0", "router-0", "odd name"])
        )
        payload = UNKNOWN if rng.random() < 0.2 else rng.choice(STRANGE_MESSAGES)
        draft = Draft(subject, f"garbage-{rng.getrandbits(60)}", payload)
        world.note(f"garbage on {subject}: {payload[:30]!r}")
        world.counts["garbage"] += 1
        while True:
            try:
                await world.log.append([draft])
            except LogUnavailable:
                await asyncio.sleep(0.2)
            else:
                return

    async def _stranger(self, rng) -> None:
        world = self._world
        router = rng.choice(list(world.routers.values()))
        worker = rng.choice(list(world.fleet.workers.values()))
        if rng.random() < 0.5 or not router.capabilities.tag:
            url = f"http://10.9.9.{rng.randint(1, 200)}:1"
            if url not in {entry.url for entry in router.listed}:
                world.witness.strangers[router.name].add(url)
                router.put(url, fleet=rng.choice([None, "other"]))
        elif worker.incarnation and worker.url and not any(worker.url in entry.url for entry in router.listed):
            # An entry of ours that nobody remembers, as after a lost log.
            incarnation = max(1, worker.incarnation - rng.randint(0, 1))
            site = world.fleet.url_of(worker.name, incarnation)
            router.put(site, fleet=world.policy.fleet, worker=worker.name, incarnation=incarnation)
            world.counts["unremembered"] += 1
