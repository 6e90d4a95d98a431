"""The fleet as it really is: the workers with what is true about them, and those who look at all of them."""

import asyncio
from collections.abc import Iterator

from simulation.author import Author
from simulation.director import Director
from simulation.rules import current, paired
from simulation.watched import identity

from rollbook.events import (
    Fact,
    FleetObserved,
    ObservedWorker,
    WeightsLoaded,
    WeightsPublished,
    WorkerSuspected,
    WorkerUp,
)
from rollbook.events.subjects import worker_subject
from rollbook.projections.looking.updating import participants
from rollbook.projections.ports import HostAndPort, LogState, LogUnavailable, ProviderUnavailable


class Worker:
    """The truth about one worker."""

    def __init__(self, name: str, pool: str, rank: int, *, kept: bool = False) -> None:
        self.name = name
        self.pool = pool
        self.rank = rank
        self.kept = kept
        """Whether a manager keeps it, and its lives are played by `Manager` instead of a director."""
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
        self.held: set[int] = set()
        """All versions that its present life has held."""
        self.ranks = 1
        """Workers of its cell."""
        self.receipts: list[asyncio.Future] = []
        self.lock = asyncio.Lock()
        """Held by whoever says something about its present life that takes several facts."""


class Fleet:
    """Workers, their authors, and what is true about them."""

    def __init__(self, world) -> None:
        self._world = world
        self.workers: dict[str, Worker] = {}
        self.bar: int | None = None
        self._free: list[str] = []
        self._sites: dict[tuple[str, int], str] = {}
        self._squatted: set[str] = set()
        self._stragglers: set[asyncio.Task] = set()
        weather = world.weather
        self.authors = {name: Author(world, name) for name in ("worker", "health", "recovery", "operator", "trainer")}
        if weather.keeping is not None:
            self.authors["manager"] = Author(world, "manager")
        if weather.observer:
            self.authors["observer"] = Author(world, "observer")
        for number in range(weather.rollouts):
            self.hire(f"rollout-{number}-0", "rollout", 0)
        if weather.rollouts > 2:
            self.hire("reward-0-0", "reward", 0)
        for number in range(weather.cells):
            for rank in range(weather.ranks):
                self.hire(f"decode-{number}-{rank}", "decode", rank)
        self._free.append("10.0.1.1:9000")

    def hire(self, name: str, pool: str, rank: int, *, kept: bool = False) -> Worker:
        """One more worker, and one more place for it."""
        self.workers[name] = Worker(name, pool, rank, kept=kept)
        self._free.append(f"10.0.0.{len(self._free) + 1}:8000")
        return self.workers[name]

    # -------------------------------------------------------------- the truth

    def url_of(self, name: str, incarnation: int) -> str | None:
        """Where a life was, or is."""
        site = self._sites.get((name, incarnation))
        return None if site is None else f"http://{site}"

    def admissible(self, name: str, incarnation: int) -> bool:
        """Whether nothing but a standing gate could keep this life out."""
        worker = self.workers[name]
        alive = worker.incarnation == incarnation and worker.alive and worker.serving
        roster = self._world.witness.journal.follow().roster
        return alive and current(roster, self._world.policy, roster.workers[name])

    def has_a_partner(self, router: str, name: str) -> bool:
        """Whether requests at `router` that `name` takes can be ended by somebody of the other pool."""
        return paired(self._world.witness.journal.follow().roster, self._world.policy, router, name)

    def answers(self, name: str, incarnation: int) -> bool:
        """Whether a probe of this life's address is answered, as far as anybody can tell by this life."""
        reason, who = self._world.readiness._answers.get(self.url_of(name, incarnation), ("nobody", None))
        told = not self._world.weather.identities or who == identity(name, incarnation).value
        return reason is None and told

    @property
    def _trained(self) -> list[str]:
        """Pools whose workers load weights."""
        return [name for name, pool in self._world.policy.pools.items() if pool.require_weights]

    # -------------------------------------------------------------- acting

    def directors(self) -> Iterator:
        cells: dict[str, list[Worker]] = {}
        for worker in self.workers.values():
            if not worker.kept:
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
        rng = self._world.rng("finish")
        if rng.random() < 0.5:
            await self._publish(rng.randint(1, 9))
        published = self._world.witness.journal.follow().roster.bars.get("rollout")
        self.bar = None if published is None else published.version
        if self.bar is not None:
            for worker in self.workers.values():
                if worker.alive and rng.random() < 0.7:
                    worker.weights = None  # who said it last is not known: several did
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
        if self.bar is not None and worker.weights != self.bar and worker.pool in self._trained:
            worker.weights = self.bar
            worker.held.add(self.bar)
            self.say("worker", worker, WeightsLoaded, version=self.bar)

    def listen(self, worker: Worker, reason: str | None = None) -> None:
        self._squatted.discard(worker.url)
        self._world.answering.add(f"http://{worker.url}")
        who = identity(worker.name, worker.incarnation).value
        self._world.readiness.serve(f"http://{worker.url}", reason, who=who)

    def squat(self, site: str) -> None:
        """Somebody else's worker listens where one of ours was, or is to be."""
        self._squatted.add(site)
        self._world.answering.add(f"http://{site}")
        self._world.readiness.serve(f"http://{site}", who="somebody else")
        self._world.counts["squatters"] += 1

    def squat_anywhere(self, rng) -> None:
        """As `squat`, at a port that is free."""
        if self._free:
            self.squat(rng.choice(self._free))

    def chase_squatters(self) -> None:
        """They end."""
        for site in self._squatted:
            self._world.answering.discard(f"http://{site}")
            self._world.readiness.close(f"http://{site}")
        self._squatted.clear()

    def leave(self, worker: Worker, *, known: bool | None) -> None:
        """The process is gone; the provider knows it as dead, or not any more, or (None) has not noticed."""
        worker.alive = worker.serving = False
        self._world.answering.discard(f"http://{worker.url}")
        self._world.readiness.close(f"http://{worker.url}")
        self._free.append(worker.url)
        if known:
            self.tell_provider(worker)
        elif known is not None:
            self._world.provider.forget(worker.name)
        self._world.note(f"{worker.name} {worker.incarnation} is dead")

    def fact(self, worker: Worker, kind: type[Fact], **fields) -> Fact:
        if worker.cell_incarnation is not None:
            fields |= {"cell_size": worker.ranks, "cell_incarnation": worker.cell_incarnation}
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

    async def revive(self, worker: Worker, incarnation: int) -> None:
        """After a false Down: this life is up, said by one who has seen that Down. It forgets that it was suspended."""
        seen = await self.last_sequence(worker)
        if worker.incarnation == incarnation and worker.alive:
            worker.suspended = False
            await self.say("health", worker, WorkerUp, seen=seen)

    # -------------------------------------------------------------- those who look at everybody

    async def _train(self) -> None:
        rng = self._world.rng("trainer")
        while not self._world.stopping:
            await asyncio.sleep(rng.uniform(1, 10))
            if rng.random() < 0.7 and not self._world.stopping:
                await self._update(rng, rng.randint(1, 9))

    async def _publish(self, version: int) -> None:
        for pool in self._trained:
            await self.authors["trainer"].publish(WeightsPublished(pool=pool, version=version))
        self.bar = version

    async def _update(self, rng, version: int) -> None:
        """As `weight_update` does it: who restarts meanwhile was not noticed, and is said to have loaded it anyway."""
        taking_part = participants(self._world.witness.journal.follow().roster, self._trained)
        await self._publish(version)
        self._world.counts["updates"] += 1
        for name, incarnation in taking_part.items():
            await asyncio.sleep(rng.choice([0, rng.uniform(0, 1)]))
            worker = self.workers[name]
            if rng.random() < 0.3:
                continue
            if worker.incarnation == incarnation and worker.alive:
                worker.weights = version
                worker.held.add(version)
            else:
                self._world.counts["restarted in an update"] += 1
            said = WeightsLoaded(worker=name, incarnation=incarnation, version=version)
            worker.receipts.append(self.authors["trainer"].publish(said))

    async def _observe(self) -> None:
        rng = self._world.rng("observer")
        while not self._world.stopping:
            await asyncio.sleep(rng.uniform(0.5, 5))
            self.straggle(self._say_late(await self._listing(), rng.choice([0, rng.uniform(0, 6)])))

    async def _say_late(self, listing: FleetObserved, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.authors["observer"].publish(listing)

    async def ends(self) -> LogState:
        """Of the log, as soon as it answers."""
        while True:
            try:
                return await self._world.log.state()
            except LogUnavailable:
                await asyncio.sleep(0.2)

    def _line(self, line) -> ObservedWorker:
        """Every other life of a cell of several says of which."""
        worker = self.workers[line.name]
        if worker.cell_incarnation is None or worker.incarnation != line.incarnation or worker.incarnation % 2:
            return ObservedWorker(line.name, line.incarnation, line.serving)
        cell = {"cell_size": worker.ranks, "cell_incarnation": worker.cell_incarnation}
        return ObservedWorker(line.name, line.incarnation, line.serving, **cell)

    async def _listing(self) -> FleetObserved:
        while True:
            as_of = (await self.ends()).last_sequence
            await asyncio.sleep(0.01)
            try:
                listed = await self._world.provider.list_workers()
            except ProviderUnavailable:
                await asyncio.sleep(0.5)
                continue
            lines = tuple(self._line(line) for line in listed if line.alive)
            return FleetObserved(observer="ray", pools=tuple(self._world.policy.pools), as_of=as_of, workers=lines)
