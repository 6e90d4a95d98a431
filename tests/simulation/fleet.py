"""The fleet as it really is: workers that live and die, and those who publish facts about them, some late, some false.

`Fleet` knows the truth. A director per worker or cell plays one life after the other and publishes what the health
thread, the recovery thread and the worker itself would; stragglers repeat old facts when they mean nothing any more.
"""

import asyncio
from collections.abc import Iterator

import msgspec

from rollbook.events import (
    Codec,
    DrainRequested,
    Fact,
    FleetObserved,
    ObservedWorker,
    RecoveryFailed,
    RecoveryStarted,
    WeightsLoaded,
    WeightsPublished,
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
from rollbook.projections.ports import AppendConflict, HostAndPort, LogUnavailable

from rollbook.adapters.memory.ids import SeededIds


def shown(fact: Fact) -> str:
    """A fact with the fields that are set."""
    fields = msgspec.json.decode(msgspec.json.encode(fact))
    return f"{type(fact).__name__} " + " ".join(f"{key}={value}" for key, value in fields.items())


class Author:
    """A publisher in a worker process: one fact after the other, each sent until the log has it [I8]."""

    def __init__(self, world, name: str) -> None:
        self.name = name
        self.accepted: list[tuple[str, str]] = []
        """(worker or "", id) in the order of acceptance."""
        self._world = world
        self._codec = Codec(world.policy.fleet)
        self._ids = SeededIds(world.rng(f"ids/{name}"))
        self._rng = world.rng(f"author/{name}")
        self._queue: asyncio.Queue = asyncio.Queue()

    def draft(self, fact: Fact):
        return self._codec.draft(fact, id=self._ids.new(), time=rfc3339(self._world.clock.now()), publisher=self.name)

    def publish(self, fact: Fact) -> asyncio.Future:
        """Accept a fact; the future gives its sequence."""
        draft = self.draft(fact)
        self.accepted.append((getattr(fact, "worker", ""), draft.id))
        receipt = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((draft, receipt))
        self._world.note(f"{self.name} publishes {shown(fact)}")
        return receipt

    async def run(self) -> None:
        while True:
            draft, receipt = await self._queue.get()
            receipt.set_result(await self.send(draft))
            if self._rng.random() < 0.1:
                self._world.fleet.straggle(self._repeat(draft, self._rng.choice([0, self._rng.uniform(0, 40)])))

    async def _repeat(self, draft, seconds: float) -> None:
        """The same fact once more, perhaps after the log has forgotten its id."""
        await asyncio.sleep(seconds)
        await self.send(draft)
        self._world.counts["repeated"] += 1

    async def send(self, draft, expect=None) -> int:
        while True:
            try:
                [sequence] = await self._world.log.append([draft], expect=expect)
            except LogUnavailable:
                await asyncio.sleep(self._rng.uniform(0.05, 0.4))
            else:
                return sequence


class Worker:
    """The truth about one worker."""

    def __init__(self, name: str, pool: str, rank: int, url_names: list[str]) -> None:
        self.name = name
        self.pool = pool
        self.rank = rank
        self.urls = url_names
        self.url: str | None = None
        self.incarnation = 0
        self.cell_incarnation: int | None = None
        self.alive = False
        self.serving = False
        self.suspended = False
        self.cordoned = False
        self.unreported = False
        """It is dead, and nobody said so."""
        self.weights: int | None = None
        self.receipts: list[asyncio.Future] = []


class Fleet:
    """Workers, their authors, and what is true about them."""

    def __init__(self, world) -> None:
        self._world = world
        self.workers: dict[str, Worker] = {}
        self.bar: int | None = None
        self._free: list[str] = []
        self._sites: dict[tuple[str, int], str] = {}
        self._stragglers: set[asyncio.Task] = set()
        weather = world.weather
        self.authors = {name: Author(world, name) for name in ("worker", "health", "recovery", "operator", "trainer")}
        if weather.observer:
            self.authors["observer"] = Author(world, "observer")
        for number in range(weather.rollouts):
            self._hire(f"rollout-{number}-0", "rollout", 0)
        if weather.rollouts > 2:
            self._hire("reward-0-0", "reward", 0)
        for number in range(weather.cells):
            for rank in (0, 1):
                self._hire(f"decode-{number}-{rank}", "decode", rank)
        self._free.append("10.0.1.1:9000")

    def _hire(self, name: str, pool: str, rank: int) -> None:
        self.workers[name] = Worker(name, pool, rank, [])
        self._free.append(f"10.0.0.{len(self._free) + 1}:8000")

    # -------------------------------------------------------------- the truth

    def url_of(self, name: str, incarnation: int) -> str | None:
        """Where a life was, or is."""
        site = self._sites.get((name, incarnation))
        return None if site is None else f"http://{site}"

    def admissible(self, name: str, incarnation: int) -> bool:
        """Whether nothing but a standing gate could keep this life out."""
        worker = self.workers[name]
        current = worker.incarnation == incarnation and worker.alive and worker.serving
        return current and (self.bar is None or (worker.weights is not None and worker.weights >= self.bar))

    def true_lives(self) -> dict[str, int]:
        """Every worker whose current life serves and is not held back, with its incarnation."""
        found = {}
        for worker in self.workers.values():
            suspended = worker.suspended and self._world.policy.pools[worker.pool].deregister_suspended
            if worker.alive and worker.serving and not suspended and not worker.cordoned:
                found[worker.name] = worker.incarnation
        return found

    # -------------------------------------------------------------- acting

    def directors(self) -> Iterator:
        cells: dict[str, list[Worker]] = {}
        for worker in self.workers.values():
            cells.setdefault(worker.name.rsplit("-", 1)[0], []).append(worker)
        for name, members in cells.items():
            yield Director(self._world, self, name, members).run()
        yield self._train()
        if "observer" in self.authors:
            yield self._observe()

    def straggle(self, coro, context=None) -> None:
        task = asyncio.create_task(coro, context=context)
        self._stragglers.add(task)
        task.add_done_callback(self._stragglers.discard, context=self._world.context)

    async def settled(self) -> None:
        """Wait until every straggler has said its word and every author's facts are stored."""
        while self._stragglers:
            await asyncio.wait(list(self._stragglers))
        for worker in self.workers.values():
            await asyncio.gather(*worker.receipts)
            worker.receipts.clear()

    async def finish(self) -> None:
        """The last words, after which the log must say what is true."""
        await self.settled()
        if self.bar is not None:
            for worker in self.workers.values():
                if worker.alive:
                    self.load(worker)
        await self.settled()
        if "observer" in self.authors:
            self.authors["observer"].publish(await self._listing())
        for author in self.authors.values():
            await author.publish(WorkerSuspected(worker="rollout-0-0", incarnation=1, reason="last word"))

    def place(self, worker: Worker) -> None:
        rng = self._world.rng(f"site/{worker.name}/{worker.incarnation}")
        same = worker.url in self._free and rng.random() < 0.6
        worker.url = worker.url if same else rng.choice(self._free)
        self._free.remove(worker.url)
        self._sites[worker.name, worker.incarnation] = worker.url
        self.tell_provider(worker)

    def tell_provider(self, worker: Worker) -> None:
        host, _, port = worker.url.partition(":")
        self._world.provider.place(
            worker.name,
            incarnation=worker.incarnation,
            addresses={"primary": HostAndPort(host, int(port))},
            alive=worker.alive,
            serving=worker.serving,
        )

    def load(self, worker: Worker) -> None:
        if self.bar is not None and worker.weights != self.bar:
            worker.weights = self.bar
            self.say("worker", worker, WeightsLoaded, version=self.bar)

    def listen(self, worker: Worker, reason: str | None = None) -> None:
        self._world.answering.add(f"http://{worker.url}")
        self._world.readiness.serve(f"http://{worker.url}", reason)

    def leave(self, worker: Worker, *, known: bool) -> None:
        """The process is gone."""
        worker.alive = worker.serving = False
        self._world.answering.discard(f"http://{worker.url}")
        self._world.readiness.close(f"http://{worker.url}")
        self._free.append(worker.url)
        if known:
            self.tell_provider(worker)
        else:
            self._world.provider.forget(worker.name)
        self._world.note(f"{worker.name} {worker.incarnation} is dead")

    def fact(self, worker: Worker, kind: type[Fact], **fields) -> Fact:
        if worker.cell_incarnation is not None:
            fields |= {"cell_size": 2, "cell_incarnation": worker.cell_incarnation}
        return kind(worker=worker.name, incarnation=worker.incarnation, **fields)

    def say(self, author: str, worker: Worker, kind: type[Fact], **fields) -> asyncio.Future:
        receipt = self.authors[author].publish(self.fact(worker, kind, **fields))
        worker.receipts.append(receipt)
        return receipt

    async def last_sequence(self, worker: Worker) -> int:
        while True:
            try:
                last = await self._world.log.last(worker_subject(self._world.policy.fleet, worker.name))
            except LogUnavailable:
                await asyncio.sleep(0.2)
            else:
                return 0 if last is None else last.sequence

    # -------------------------------------------------------------- those who look at everybody

    async def _train(self) -> None:
        rng = self._world.rng("trainer")
        while not self._world.stopping:
            await asyncio.sleep(rng.uniform(2, 20))
            if rng.random() < 0.5 and not self._world.stopping:
                version = rng.randint(1, 9)
                for pool in self._world.policy.pools:
                    await self.authors["trainer"].publish(WeightsPublished(pool=pool, version=version))
                self.bar = version

    async def _observe(self) -> None:
        rng = self._world.rng("observer")
        while not self._world.stopping:
            await asyncio.sleep(rng.uniform(0.5, 5))
            self.straggle(self._say_late(await self._listing(), rng.choice([0, rng.uniform(0, 6)])))

    async def _say_late(self, listing: FleetObserved, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.authors["observer"].publish(listing)

    async def _listing(self) -> FleetObserved:
        while True:
            try:
                as_of = (await self._world.log.state()).last_sequence
                await asyncio.sleep(0.01)
                listed = await self._world.provider.list_workers()
            except Exception:  # noqa: BLE001 - whatever it is, the observer tries again
                await asyncio.sleep(0.5)
                continue
            lines = tuple(ObservedWorker(line.name, line.incarnation, line.serving) for line in listed if line.alive)
            return FleetObserved(observer="ray", pools=tuple(self._world.policy.pools), as_of=as_of, workers=lines)


class Director:
    """Plays the lives of one cell: one worker, or two that live and die together."""

    def __init__(self, world, fleet: Fleet, name: str, members: list[Worker]) -> None:
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
        for worker in self._members:
            if worker.alive:
                fleet.leave(worker, known=True)
            worker.incarnation += 1
            worker.cell_incarnation = self._life if len(self._members) > 1 else None
            worker.alive, worker.serving, worker.suspended, worker.weights = True, False, False, None
            worker.unreported = False
            fleet.place(worker)
            if rng.random() < 0.6:
                fleet.say("recovery", worker, WorkerStarted, node="node-1")
        await asyncio.sleep(rng.choice([0, rng.uniform(0, 1.5)]))
        for worker in self._members:
            busy = rng.random() < 0.2
            fleet.listen(worker, "503 busy" if busy else None)
            worker.serving = True
            fleet.tell_provider(worker)
            fleet.load(worker)
            fleet.say("worker", worker, WorkerUp)
            if busy:
                fleet.straggle(self._calm_down(worker, worker.incarnation, rng.uniform(0, 5)))

    async def _calm_down(self, worker: Worker, incarnation: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if worker.incarnation == incarnation and worker.alive:
            self._fleet.listen(worker)

    async def _live(self) -> None:
        rng = self._rng
        until = self._world.loop.time() + rng.choice([rng.uniform(0, 0.5), rng.uniform(1, 12)])
        while self._world.loop.time() < until and not self._world.stopping and self._head.alive and self._head.serving:
            await asyncio.sleep(rng.uniform(0.05, 2))
            act = rng.choice(
                [self._nothing, self._suspect, self._suspend, self._weights, self._flap, self._cordon, self._leave_rotation]
            )
            worker = rng.choice(self._members)
            if worker.serving:
                await act(worker)

    async def _stored(self, worker: Worker) -> None:
        """Wait until all that was said about the worker is in the log, so that what follows is not overtaken."""
        await asyncio.gather(*worker.receipts)
        worker.receipts.clear()

    async def _nothing(self, worker: Worker) -> None:
        return

    async def _suspect(self, worker: Worker) -> None:
        self._fleet.say("health", worker, WorkerSuspected, reason="1 of 3 probes")

    async def _weights(self, worker: Worker) -> None:
        self._fleet.load(worker)

    async def _suspend(self, worker: Worker) -> None:
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

    async def _resume(self, worker: Worker) -> None:
        await self._stored(worker)
        await self._fleet.say("worker", worker, WorkerResumed)
        worker.suspended = False

    async def _flap(self, worker: Worker) -> None:
        """A false Down, and the Up of the same life after it."""
        await self._stored(worker)
        await self._fleet.say("health", worker, WorkerDown, evidence="timeout", reason="false alarm")
        await asyncio.sleep(self._rng.choice([0, self._rng.uniform(0, 2)]))
        seen = await self._fleet.last_sequence(worker)
        await self._fleet.say("health", worker, WorkerUp, seen=seen)
        worker.suspended = False
        self._world.counts["flaps"] += 1

    async def _cordon(self, worker: Worker) -> None:
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

    async def _uncordon(self, worker: Worker) -> None:
        operator = self._fleet.authors["operator"]
        await operator.publish(WorkerUncordoned(worker=worker.name, by="ada", why="quiet again"))
        worker.cordoned = False

    async def _leave_rotation(self, worker: Worker) -> None:
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

    async def _report(self, worker: Worker) -> None:
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

    async def _probe(self, verdict: Fact, worker: Worker) -> None:
        """Check, then act: refused by the log if anything happened to the worker since the check began."""
        author = self._fleet.authors["health"]
        for _ in range(50):
            expected = await self._fleet.last_sequence(worker)
            if worker.incarnation != verdict.incarnation:
                return
            await asyncio.sleep(self._rng.uniform(0, 0.5))
            try:
                await author.send(author.draft(verdict), expect={worker_subject(self._world.policy.fleet, worker.name): expected})
            except AppendConflict:
                self._world.counts["superseded"] += 1
                continue
            return

    async def _straggle(self, fact: Fact) -> None:
        """A fact that comes long after it was true."""
        await asyncio.sleep(self._rng.choice([0, self._rng.uniform(0, 8)]))
        await self._fleet.authors[self._rng.choice(["health", "recovery"])].publish(fact)
        self._world.counts["stragglers"] += 1
