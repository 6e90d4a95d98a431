"""A controller and everything around it in memory, on virtual time: hours pass in milliseconds, always the same way."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from support.core import CODEC, FLEET, TIME

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.ids import SeededIds
from rollbook.adapters.memory.leadership import MemoryLeadership, Seat
from rollbook.adapters.memory.log import MemoryLog
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.memory.proxy import AS_SGLANG, Call, MemoryProxy
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.events import Draft, Evidence, Fact, Recorded, Undecodable, WorkerDown, WorkerUp
from rollbook.projections.leading.controller import Companion, Controller
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy
from rollbook.projections.ports import Capabilities, HostAndPort, Identity
from rollbook.projections.resources import Resources

W = "rollout-0-0"
BY = {"by": "ann", "why": "test"}
NEVER = 100_000.0
"""Seconds: as `resync`, so that no read-back heals what a step left."""

F = TypeVar("F", bound=Fact)


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test coroutine run on a loop of its own whose time is a number."""

    @functools.wraps(test)
    def on_a_loop(*args: Any, **kwargs: Any) -> None:
        virtual.run(test(*args, **kwargs))

    return on_a_loop


class HookedLog(MemoryLog):
    """`before` is asked for facts of others that get into the log just before a fact that is appended."""

    before: Callable[[Fact], Sequence[Fact]] | None = None
    _others = 0

    async def append(self, drafts: Sequence[Draft], *, expect: Mapping[str, int] | None = None) -> list[int]:
        for draft in drafts:
            hook, self.before = self.before, None
            for fact in () if hook is None else hook(_fact(draft)):
                self._others += 1
                await super().append([drafted(fact, f"other-{self._others}")])
            self.before = hook
        return await super().append(drafts, expect=expect)


def drafted(fact: Fact, fact_id: str) -> Draft:
    return CODEC.draft(fact, id=fact_id, time=TIME, publisher="test")


def _fact(draft: Draft) -> Fact:
    return CODEC.decode(draft.payload, subject=draft.subject, sequence=0).fact


class Fleet:
    """One fleet's log, workers and proxies, and the controllers that a test starts over them."""

    def __init__(
        self,
        *proxies: str,
        capabilities: Capabilities = AS_SGLANG,
        served: Mapping[str, Any] = MappingProxyType({}),
        **paces: Any,
    ) -> None:
        """`served` is what every proxy's policy says besides name and pools."""
        names = proxies or ("a",)
        self.rng = random.Random(1)
        self.clock = LoopClock()
        self.log = HookedLog(self.clock, self.rng)
        self.ids = SeededIds(self.rng)
        self.provider = MemoryProvider(self.clock)
        self.readiness = MemoryReadiness(self.clock)
        self.snapshots = MemorySnapshots()
        self.seat = Seat(FLEET)
        self.told: list[tuple[str, dict[str, object]]] = []
        self.policy = Policy(
            fleet=FLEET,
            pools={"rollout": PoolPolicy()},
            proxies={name: ProxyPolicy(name=name, pools=("rollout",), **served) for name in names},
            reconcile=ReconcilePolicy(**paces),
        )
        self.proxies = {
            name: MemoryProxy(name, FLEET, self.clock, self.rng, capabilities=capabilities) for name in names
        }
        self.companions: Sequence[Companion] = ()
        self.process: virtual.Process
        self.running: asyncio.Task[None]
        self.controller: Controller

    @property
    def proxy(self) -> MemoryProxy:
        """The first one."""
        return next(iter(self.proxies.values()))

    # -------------------------------------------------------------- controllers

    def make(
        self, owner: str = "one", rng: random.Random | None = None, *, standby: bool = True, relist: bool = False
    ) -> Controller:
        resources = Resources(
            log=self.log,
            snapshots=self.snapshots,
            leadership=MemoryLeadership(self.seat, self.clock),
            provider=self.provider,
            readiness=self.readiness,
            clock=self.clock,
            ids=self.ids,
            rng=rng or self.rng,
            owner=owner,
            tell=lambda event, **keys: self.told.append((event, keys)),
        )
        proxies = list(self.proxies.values())
        return Controller(self.policy, resources, proxies, self.companions, standby=standby, relist=relist)

    def launch(self, owner: str = "one", rng: random.Random | None = None, *, standby: bool = True) -> None:
        """Start a controller as a process of its own."""
        self.controller = self.make(owner, rng, standby=standby)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual.VirtualLoop)
        self.process, self.running = loop.spawn(owner, self.controller.run())

    async def start(self, owner: str = "one", rng: random.Random | None = None, *, standby: bool = True) -> Controller:
        """Start a controller and wait until its lanes run."""
        self.launch(owner, rng, standby=standby)
        started = asyncio.create_task(self.controller.started.wait())
        await asyncio.wait([started, self.running], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self.running.done():
            self.running.result()
        return self.controller

    async def stop(self) -> None:
        self.controller.stop()
        await self.running

    def kill(self) -> None:
        """As `kill -9`; its claim to lead is gone too."""
        self.process.kill()
        self.seat.vacate("killed")

    # -------------------------------------------------------------- workers

    def place(self, worker: str = W, incarnation: int = 1, port: int = 8000, identity: Identity | None = None) -> str:
        """From now on this life of `worker` is there and answers. Returns its URL."""
        url = f"http://10.0.0.1:{port}"
        addresses = {"primary": HostAndPort("10.0.0.1", port)}
        self.provider.place(worker, incarnation=incarnation, addresses=addresses, identity=identity)
        self.readiness.serve(url)
        return url

    async def say(self, *facts: Fact) -> int:
        """Publish facts; the last one's sequence."""
        return [(await self.log.append([drafted(fact, self.ids.new())]))[0] for fact in facts][-1]

    async def up(self, worker: str = W, incarnation: int = 1, port: int = 8000) -> str:
        url = self.place(worker, incarnation, port)
        await self.say(WorkerUp(worker=worker, incarnation=incarnation))
        return url

    async def back(self, seen: int, worker: str = W, incarnation: int = 1) -> int:
        """The same life is up again, on the word of somebody who has seen that it was down."""
        return await self.say(WorkerUp(worker=worker, incarnation=incarnation, seen=seen))

    async def down(self, worker: str = W, incarnation: int = 1, evidence: Evidence = "exited") -> int:
        return await self.say(WorkerDown(worker=worker, incarnation=incarnation, evidence=evidence))

    async def pool_up(self, size: int) -> list[str]:
        """So many workers, each of its own cell and at its own port, all registered. Their names."""
        names = [f"rollout-{number}-0" for number in range(size)]
        for number, name in enumerate(names):
            await self.up(name, port=8000 + number)
        await self.until(lambda: len(self.proxy.listed) == size and self.controller.lanes[self.proxy.name].idle)
        return names

    # -------------------------------------------------------------- what came of it

    def listed(self, proxy: str | None = None) -> list[tuple[str | None, int | None, str]]:
        """(worker, incarnation, url) of every entry."""
        of = self.proxy if proxy is None else self.proxies[proxy]
        return sorted(((e.worker, e.incarnation, e.url) for e in of.listed), key=str)

    def calls(self, verb: str, proxy: str | None = None) -> list[Call]:
        of = self.proxy if proxy is None else self.proxies[proxy]
        return [call for call in of.calls if call.verb == verb]

    def recorded(self) -> list[Recorded]:
        """Every fact in the log; what is none is left out."""
        found: list[Recorded] = []
        for stored in self.log.messages:
            try:
                found.append(CODEC.decode(stored.payload, subject=stored.subject, sequence=stored.sequence))
            except Undecodable:
                continue
        return found

    def facts(self, kind: type[F]) -> list[F]:
        return [recorded.fact for recorded in self.recorded() if isinstance(recorded.fact, kind)]

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Look again and again, in virtual time."""
        deadline = self.clock.monotonic() + seconds
        while not condition():
            assert self.clock.monotonic() < deadline, f"not within {seconds} s: {self.recorded()[-8:]}"
            await asyncio.sleep(0.01)

    async def registered(self, worker: str = W, incarnation: int = 1, proxy: str | None = None) -> None:
        """Wait until it is listed and the fold knows it."""
        of = proxy or self.proxy.name

        def known() -> bool:
            assert self.controller.projector is not None
            lives = self.controller.projector.state.ledger.look(of).registrations.get(worker, {})
            return incarnation in lives and lives[incarnation].told == "registered"

        await self.until(known)
        assert (worker, incarnation) in {(entry.worker, entry.incarnation) for entry in self.proxies[of].listed}
