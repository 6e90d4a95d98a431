"""A fleet that is restarted, on virtual time: a log, a manager with three cells of two, and recoverers."""

from __future__ import annotations

import asyncio
import random

import msgspec
from support.core import CODEC, FLEET
from support.fleet import HookedLog, drafted

from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.ids import SeededIds
from rollbook.adapters.memory.leadership import MemoryLeadership, Seat
from rollbook.adapters.memory.manager import MemoryWorkerManager
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.events import RecoveryStarted, WorkerFact
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.leading.claims import ending_claims
from rollbook.projections.leading.controller import Controller
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import Policy, PoolPolicy, RecoveryPolicy
from rollbook.projections.ports import LogUnavailable
from rollbook.projections.recovery.recoverer import Recoverer
from rollbook.projections.resources import Resources
from rollbook.projections.state.worker import Phase

CELLS = 3
NAMES = [f"rollout-{cell}-{rank}" for cell in range(CELLS) for rank in range(2)]
W = NAMES[0]
POLICY = RecoveryPolicy(attempts=4, window=600.0, backoff_first=1.0, backoff_most=8.0, parallel=2, claim=30.0)


class Scene:
    """A log, a manager with three cells of two, a leader that ends claims, and the recoverers that a test starts."""

    def __init__(self, policy=POLICY, seed=1):
        self.clock = LoopClock()
        self.rng = random.Random(seed)
        self.ids = SeededIds(self.rng)
        self.log = HookedLog(self.clock, self.rng)
        self.manager = MemoryWorkerManager(self.clock, self.say, NAMES)
        self.policy = policy
        self.told = []
        self.loop = asyncio.get_running_loop()
        self.processes = {}
        self.recoverers = {}
        self.follower = Projector(self.log, CODEC, self.clock)
        self.most_at_once = 0
        self.claims = {}
        self.overlapping = []
        self.follower.witness(self._watch)
        self.unsaid = asyncio.Queue()
        self.publishing = asyncio.create_task(self._publish())
        self.following = asyncio.create_task(self.follower.run())

    def _watch(self, _, recorded, __):
        workers = self.follower.state.roster.workers
        starting = {one.cell for one in workers.values() if one.phase is Phase.STARTING}
        self.most_at_once = max(self.most_at_once, len(starting))
        if isinstance(recorded.fact, RecoveryStarted) and self.claims.get(recorded.fact.worker):
            self.overlapping.append(recorded)
        self.claims = {name: one.restarts is not None and one.restarts.claim for name, one in workers.items()}

    def recover(self, name, clock=None):
        """`clock` is its machine's, if that is not as all others are."""
        clock = clock or self.clock
        projector = Projector(self.log, CODEC, clock)
        recoverer = Recoverer(
            {"rollout": self.policy},
            name=name,
            projector=projector,
            verdicts=Verdicts(FLEET, self.log, clock, self.ids, name),
            manager=self.manager,
            clock=clock,
            tell=lambda event, **keys: self.told.append((name, event, keys)),
        )
        self.recoverers[name] = recoverer
        self.processes[name], task = self.loop.spawn(name, recoverer.run())
        return task

    async def lead(self, clock=None):
        clock = clock or self.clock
        resources = Resources(
            log=self.log,
            snapshots=MemorySnapshots(),
            leadership=MemoryLeadership(Seat(FLEET), clock),
            provider=MemoryProvider(clock),
            readiness=MemoryReadiness(clock),
            clock=clock,
            ids=self.ids,
            rng=self.rng,
            owner="controller",
            tell=lambda event, **keys: self.told.append(("controller", event, keys)),
        )
        policy = Policy(fleet=FLEET, pools={"rollout": PoolPolicy()}, proxies={})
        controller = Controller(policy, resources, [], [ending_claims])
        self.loop.spawn("controller", controller.run())
        await controller.started.wait()

    async def say(self, *facts):
        for fact in facts:
            self.unsaid.put_nowait(fact)

    async def _publish(self):
        """As a publisher does: in order, and until it is stored."""
        while True:
            fact = await self.unsaid.get()
            draft = drafted(fact, self.ids.new())
            if isinstance(fact, WorkerFact):
                last = await self.log.last(draft.subject)
                seen = msgspec.structs.replace(fact, seen=0 if last is None else last.sequence)
                draft = drafted(seen, draft.id)
            while True:
                try:
                    await self.log.append([draft])
                    break
                except LogUnavailable:
                    await asyncio.sleep(0.1)

    async def up(self):
        await self.manager.start_cell(NAMES)
        await self.until(lambda: len(self.follower.state.roster.workers) == len(NAMES) and self.well())

    def facts(self, *kinds):
        found = [CODEC.decode(one.payload, subject=one.subject, sequence=one.sequence) for one in self.log.messages]
        return [one for one in found if isinstance(one.fact, kinds)]

    def worker(self, name=W):
        return self.follower.state.roster.workers[name]

    def well(self):
        return all(one.phase is Phase.SERVING for one in self.follower.state.roster.workers.values())

    async def until(self, condition, seconds=600):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)
