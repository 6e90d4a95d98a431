"""A world without Ray in which a keeper keeps a cell: processes, rooms and a log that are lists, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec

from rollbook.adapters.memory.virtual import VirtualLoop
from rollbook.adapters.ray.border import ActorGone, ActorSilent
from rollbook.adapters.ray.guest import StartFailed
from rollbook.adapters.ray.host import Identity
from rollbook.adapters.ray.keeper import Keeper
from rollbook.adapters.ray.ports import PortInfo, PortTaken
from rollbook.adapters.ray.rank import Rank
from rollbook.adapters.ray.records import Record
from rollbook.adapters.ray.seat import Seat
from rollbook.adapters.ray.spec import CommandWorkerSpec
from rollbook.events import WorkerDown, WorkerFact, WorkerStarted, WorkerUp

STEPS = ("identity", "number", "reserve", "begin")


class Process:
    """One process of one worker, and the handle on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.pid = world.next_pid()
        self.incarnation = self.cell_incarnation = 0
        self.ended = asyncio.Event()
        self.reason: str | None = None
        self.listens = False
        self.seat: Seat | None = None
        for method in (*STEPS, "watch", "halt"):
            setattr(self, method, _Method(self, method))

    @property
    def alive(self) -> bool:
        return not self.ended.is_set()

    def end(self, reason: str | None = None) -> None:
        """It is gone; with a `reason` it says so first."""
        self.reason = reason
        self.listens = False
        self.ended.set()

    async def answer(self, method: str, args: tuple[Any, ...]) -> Any:
        await self.world.pass_time()
        await self.suffer(self.world.failing.get((self.name, method)), method)
        if method == "watch":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(args[0]):
                    await self.ended.wait()
            return None if self.alive else self.last_word()
        if not self.alive:
            raise ActorGone(f"{self.name} is dead")
        return getattr(self, f"do_{method}")(*args)

    async def suffer(self, failure: str | None, method: str) -> None:
        if failure == "die" and self.alive:
            self.end()
        elif failure == "hang":
            await self.ended.wait()
        elif failure == "silent":
            raise ActorSilent("cannot be reached")
        elif failure == "fail":
            raise {"reserve": PortTaken, "begin": StartFailed}[method]("it failed")

    def do_identity(self) -> bytes:
        return msgspec.json.encode(Identity("f", self.name, self.incarnation, self.cell_incarnation, self.pid, "n"))

    def do_number(self, incarnation: int, cell_incarnation: int) -> None:
        self.incarnation, self.cell_incarnation = incarnation, cell_incarnation

    def do_reserve(self, former: dict[str, int]) -> dict[str, int]:
        return {"primary": former.get("primary", 1000 + self.pid)}

    def do_begin(self, seat: bytes, seconds: float) -> dict[str, str]:
        self.seat = msgspec.json.decode(seat, type=Seat)
        self.listens = (self.name, "ready") not in self.world.failing
        return {"primary": str(self.seat.own["primary"])}

    def do_halt(self, reason: str) -> None:
        self.end(reason)

    def last_word(self) -> str:
        if self.reason is None:
            raise ActorGone(f"{self.name} is dead")
        return self.reason


class _Method:
    def __init__(self, process: Process, name: str) -> None:
        self._process, self._name = process, name

    def remote(self, *args: Any) -> Any:
        return self._process.answer(self._name, args)


class World:
    """Stands for Ray's head, the log and the readiness probe of one cell of `size`."""

    def __init__(self, loop: VirtualLoop, seed: int, size: int, **fields: Any) -> None:
        self.failing: dict[tuple[str, str], str] = {}
        """(worker, step) → `die`, `hang`, `silent`, `fail`; (worker, "ready" or "end") → anything."""
        self.processes: list[Process] = []
        self.rooms = 0
        self.log_is_away = False
        """What is said then waits in the manager's process, and is lost with it."""
        self.facts: list[WorkerFact] = []
        self.up_while: list[list[bool]] = []
        """At each Up: whether each rank listened at that moment."""
        given = {"process_seconds": 5.0, "start_seconds": 10.0, "stop_seconds": 1.0, "placement": "PACK"} | fields
        self.specs = tuple(
            CommandWorkerSpec(name=f"w-0-{rank}", command="x", ports=(PortInfo(),), **given) for rank in range(size)
        )
        self.record = Record(specs=self.specs, detached=True)
        self._random = random.Random(seed)
        self._loop = loop
        self._pid = 0
        self.managers = 0

    # ------------------------------------------------------------ what the test does

    def manage(self) -> Keeper:
        """Another manager begins, in a process of its own, with the record that was kept."""
        self.managers += 1
        ranks = []
        for spec in self.specs:
            scribe: Any = Scribe(self, spec.name, len(self.specs))
            hosts: Any = self
            ranks.append(Rank(spec, hosts, scribe, self, self.record.incarnations.get(spec.name, 0)))
        self.keeper = Keeper(self.record, ranks, self, lambda _: None, self._save)  # type: ignore[arg-type]
        self.process, self.task = self._loop.spawn(f"manager-{self.managers}", self.keeper.run())
        return self.keeper

    def living(self, name: str | None = None) -> list[Process]:
        return [one for one in self.processes if one.alive and name in {None, one.name}]

    def about(self, name: str) -> list[WorkerFact]:
        return [fact for fact in self.facts if fact.worker == name]

    # ------------------------------------------------------------ what the keeper asks

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    async def pass_time(self) -> None:
        await asyncio.sleep(self._random.choice([0.0, 0.001, 0.01, 0.1]))

    async def make_room(self, specs: Any) -> str:
        await self.pass_time()
        self.rooms = 1
        return "room"

    async def shortage(self, specs: Any) -> str:
        return "Ray was asked for too much"

    async def free_room(self, specs: Any) -> None:
        await self.pass_time()
        self.rooms = 0

    async def create(self, spec: Any, room: Any = None) -> Process:
        await self.pass_time()
        if living := self.living(spec.name):
            return living[0]
        made = Process(self, spec.name)
        self.processes.append(made)
        # The answer may be lost: whoever asked is cancelled, and the process is there.
        await self.pass_time()
        return made

    async def find(self, name: str) -> Process | None:
        await self.pass_time()
        return next(iter(self.living(name)), None)

    async def end(self, handle: Process, name: str, seconds: float) -> None:
        if (name, "end") in self.failing:
            await self.pass_time()
            raise ActorSilent("Ray's head does not answer")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await handle.ended.wait()
        handle.end()

    async def check(self, url: str, path: str, identity: Any = None) -> str | None:
        await self.pass_time()
        listens = any(one.seat and one.listens and url == f"http://{one.seat.own['primary']}" for one in self.living())
        return None if listens else "refused"

    async def _save(self, record: Record) -> None:
        await self.pass_time()
        self.record = record


class Scribe:
    """Numbers lives from the facts so far, as the log does."""

    def __init__(self, world: World, name: str, size: int) -> None:
        self._world, self._name, self._size = world, name, size
        self._number = self._cell = 0

    def resume(self, incarnation: int, cell_incarnation: int) -> None:
        self._number, self._cell = incarnation, cell_incarnation

    async def last_number(self) -> int:
        await self._world.pass_time()
        return max((fact.incarnation for fact in self._world.about(self._name)), default=0)

    async def begin(self, cell_incarnation: int, *, pid: int, node: str) -> int:
        last = max((fact.incarnation for fact in self._world.about(self._name)), default=0)
        self._number, self._cell = last + 1, cell_incarnation
        self.say(WorkerStarted, pid=pid, node=node)
        await self._world.pass_time()
        return self._number

    def say(self, fact: type[WorkerFact], **fields: Any) -> asyncio.Future[int] | None:
        if not self._number:
            return None
        receipt = asyncio.get_running_loop().create_future()
        if self._world.log_is_away:
            return receipt
        if self._size > 1:
            fields |= {"cell_size": self._size, "cell_incarnation": self._cell}
        if fact is WorkerUp:
            listening = [any(one.listens for one in self._world.living(spec.name)) for spec in self._world.specs]
            self._world.up_while.append(listening)
        self._world.facts.append(fact(worker=self._name, incarnation=self._number, **fields))
        receipt.set_result(len(self._world.facts))
        return receipt


def stories(world: World) -> dict[str, list[str]]:
    """What was said of each worker, by life: S, U, D in order."""
    letters = {WorkerStarted: "S", WorkerUp: "U", WorkerDown: "D"}
    found: dict[str, list[str]] = {}
    for spec in world.specs:
        lives: dict[int, str] = {}
        for fact in world.about(spec.name):
            if type(fact) in letters:
                lives[fact.incarnation] = lives.get(fact.incarnation, "") + letters[type(fact)]
        found[spec.name] = [lives[number] for number in sorted(lives)]
    return found
