"""What goes wrong while a world runs: controllers die or stop at any step, servers go and come back, others write."""

import asyncio
import math

from simulation.operator import Operator

from rollbook.events import Draft, stream_subjects
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
        self._operator = Operator(world)

    def sources(self):
        weather = self._world.weather
        for name, mean, act in (
            ("crashes", weather.crashes, self._crash),
            ("pauses", weather.pauses, self._pause),
            ("outages", weather.outages, self._outage),
            ("operator", weather.operator, self._operator.decide),
            ("blackouts", weather.blackouts, self._operator.alarm),
            ("garbage", weather.garbage, self._garbage),
            ("strangers", weather.strangers, self._stranger),
        ):
            if mean:
                yield self._repeat(name, mean, act)
        if self._world.kept is not None:
            for name, mean, act in self._world.kept.sources():
                yield self._repeat(name, mean, act)

    async def _repeat(self, name: str, mean: float, act) -> None:
        rng = self._world.rng(f"chaos/{name}")
        while not self._world.stopping:
            await asyncio.sleep(min(rng.expovariate(1 / mean), 30))
            if not self._world.stopping:
                await act(rng)

    # -------------------------------------------------------------- the controllers

    async def _crash(self, rng) -> None:
        world = self._world
        controllers = world.controllers
        if not controllers.running:
            return
        running = rng.choice(controllers.running)
        match rng.randrange(7):
            case 0:
                world.note(f"{running} is asked to stop")
                running.controller.stop()
            case 1:
                world.note(f"{running} is cancelled")
                running.task.cancel()
            case 2:
                controllers.kill(running)
            case 3:
                self._rob(rng)
            case _:
                rounds = rng.choice([0, 0, 1, 2, 5])
                world.after_lines(rng.randint(1, 40), lambda: self._soon(running, rounds, controllers.kill))

    def _rob(self, rng) -> None:
        """Somebody deletes the claim to lead; its owner does not know yet, and another one begins beside it."""
        world, seat = self._world, self._world.seat
        world.note(f"{seat.owner} is robbed of its lead")
        world.counts["robbed"] += 1
        world.witness.lease.rob(seat.owner)
        lost, seat.owner = seat.lost, None
        seat.tell()
        world.controllers.start()
        if seat.lease == math.inf:
            world.fleet.straggle(self._tell_later(lost, rng.uniform(0, 5)))

    async def _tell_later(self, lost, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if lost is not None and not lost.done():
            lost.set_result("another one leads")

    async def _pause(self, rng) -> None:
        """Stop the leader, mostly, now or in the middle of something; shortly, or for longer than its lease."""
        controllers = self._world.controllers
        running = controllers.leader or (rng.choice(controllers.running) if controllers.running else None)
        if running is None:
            return
        lease = min(self._world.weather.lease, 6.0)
        seconds = rng.choice([rng.uniform(0, lease), rng.uniform(lease, 2 * lease)])
        if rng.random() < 0.5:
            await controllers.pause(running, seconds)
        else:
            stop = lambda stopped: self._world.fleet.straggle(  # noqa: E731
                controllers.pause(stopped, seconds), context=self._world.context
            )
            self._world.after_lines(rng.randint(1, 20), lambda: self._soon(running, rng.choice([0, 0, 1, 2]), stop))

    def _soon(self, running, rounds: int, act) -> None:
        """Do `act` to a controller after so many rounds of the loop, if it still runs."""
        world = self._world
        if running not in world.controllers.running:
            return
        if rounds == 0:
            act(running)
            return

        async def later() -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)
            if running in world.controllers.running:
                act(running)

        world.fleet.straggle(later(), context=world.context)

    # -------------------------------------------------------------- the servers

    async def _outage(self, rng) -> None:
        world = self._world
        router = rng.choice(list(world.routers.values()))
        seconds = rng.choice([rng.uniform(0, 1), rng.uniform(1, 8)])
        kinds = ["log", "nats", "seat", "provider", "slow provider", "refuses", "stalls", "readiness"]
        what = rng.choice([*kinds, "restarts", "loses"] if router.capabilities.list else kinds)
        world.note(f"outage: {what} ({router.name}) for {seconds:.2f} s")
        world.counts[f"outage {what}"] += 1
        match what:
            case "restarts":
                router.restart()
                return
            case "loses":
                if router.listed:
                    router.drop(rng.choice(router.listed))
                return
            case _:
                self._break(what, router, seconds)
        await asyncio.sleep(seconds)
        self._mend(what, router)
        world.note(f"outage: {what} is over")

    def _break(self, what: str, router, seconds: float) -> None:
        world = self._world
        if what in {"log", "nats"}:
            world.log.cut_off()
        if what in {"seat", "nats"}:
            world.seat.available = False
            if world.kept is not None:
                world.kept.deaf(deaf=True)
        match what:
            case "provider":
                world.provider.available = False
            case "slow provider":
                world.provider.seconds = seconds / 2
            case "readiness":
                world.readiness.seconds = seconds / 2
            case "refuses":
                router.available = False
            case "stalls":
                router.stalled = True

    def _mend(self, what: str, router) -> None:
        world = self._world
        if what in {"log", "nats"}:
            world.log.available = True
        if what in {"seat", "nats"}:
            world.seat.available = True
            if world.kept is not None:
                world.kept.deaf(deaf=False)
        match what:
            case "provider":
                world.provider.available = True
            case "slow provider":
                world.provider.seconds = 0.0
            case "readiness":
                world.readiness.seconds = 0.0
            case "refuses":
                router.available = True
            case "stalls":
                router.stalled = False

    # -------------------------------------------------------------- the others

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
        """Others at routers and workers' ports: entries by hand, a second fleet, processes on reused ports."""
        world = self._world
        router = rng.choice(list(world.routers.values()))
        worker = rng.choice(list(world.fleet.workers.values()))
        listed = {entry.url for entry in router.listed}
        match rng.randrange(5):
            case 0:
                self._put(router, f"http://10.9.9.{rng.randint(1, 200)}:1", listed, None)
            case 1 if router.capabilities.tag:
                # Another fleet, whose workers have the names of ours.
                url = rng.choice([f"http://10.8.8.{rng.randint(1, 200)}:1", f"http://{worker.url}"])
                if worker.url and url not in self._ours():
                    self._put(router, url, listed, (worker.name, max(1, worker.incarnation)))
            case 2:
                theirs = [entry for entry in router.listed if entry.url in world.witness.strangers[router.name]]
                if theirs:
                    router.drop(rng.choice(theirs))
            case 3:
                world.fleet.squat_anywhere(rng)
            case _ if router.capabilities.tag and worker.incarnation and f"http://{worker.url}" not in listed:
                # An entry of ours that nobody remembers, as after a lost log.
                incarnation = max(1, worker.incarnation - rng.randint(0, 1))
                site = world.fleet.url_of(worker.name, incarnation)
                if site is not None and site not in listed:
                    router.put(site, fleet=world.policy.fleet, worker=worker.name, incarnation=incarnation)
                    world.counts["unremembered"] += 1
            case _:
                pass

    def _ours(self) -> set[str]:
        """Where workers of ours are now."""
        return {f"http://{worker.url}" for worker in self._world.fleet.workers.values() if worker.alive}

    def _put(self, router, url: str, listed: set[str], theirs: tuple[str, int] | None) -> None:
        """Somebody else adds an entry, with tags of another fleet or none."""
        if url in listed:
            return
        world = self._world
        world.counts["strangers"] += 1
        world.witness.strangers[router.name].add(url)
        if theirs is None:
            router.put(url)
        else:
            world.counts["second fleet"] += 1
            router.put(url, fleet="other", worker=theirs[0], incarnation=theirs[1])
