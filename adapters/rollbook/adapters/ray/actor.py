"""The manager actor: the keepers of one fleet's workers, and what can be asked of them.

Ray starts it again when its process dies, on another node if need be. Then it reads its records, finds the workers that
are alive by their actors' names, and goes on; those that died meanwhile begin new lives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rollbook.adapters import logs
from rollbook.adapters.proxies.readiness import HttpReadiness
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.ray.border import AGAIN_SECONDS, RayThread, aside
from rollbook.adapters.ray.hosts import LOOK_SECONDS, Hosts
from rollbook.adapters.ray.keeper import Keeper
from rollbook.adapters.ray.records import Record, Records
from rollbook.adapters.ray.scribe import Scribe
from rollbook.adapters.ray.spec import InvalidSpec, WorkerState, check_specs, decode_specs, encode_states
from rollbook.events import RollbookError
from rollbook.projections.ending import end
from rollbook.projections.recovery.ports import NotStarted, Termination

T = TypeVar("T")

CONCURRENCY: Final = 100_000
"""Calls at once. Each worker of a fleet that is not detached holds one for its whole life."""
PUBLISHER: Final = "ray-manager"

Beside = Callable[[Publisher, Callable[[], list[WorkerState]]], Coroutine[Any, Any, None]]
"""Runs for the manager's life, with its publisher and a look at all its workers as they are at that moment."""
BESIDE: Final[tuple[Beside, ...]] = ()
"""What a manager does beside keeping its workers. Begins when it has taken over what was kept before it."""

_log = structlog.get_logger()


class Description(msgspec.Struct, frozen=True):
    """What a manager is."""

    fleet: str
    detached: bool
    pid: int


class ManagerActor:
    """The manager of one fleet. Made by `RayWorkerManager.launch`; an asyncio actor."""

    def __init__(self, fleet: str, namespace: str, environ: Mapping[str, str], *, detached: bool) -> None:
        """`environ` holds the ROLLBOOK_NATS_ variables. Does not wait for NATS. Ray calls it on the actor's loop."""
        import ray

        logs.configure(environ=os.environ)
        context = ray.get_runtime_context()
        self._description = Description(fleet, detached, os.getpid())
        self._id = str(context.get_actor_id())
        self._threads = RayThread()
        self._hosts = Hosts(fleet, namespace, self._threads, None if detached else context.current_actor)
        self._records = Records(fleet)
        self._publisher = Publisher.from_env({**environ, "ROLLBOOK_FLEET": fleet}, name=PUBLISHER, outbox=None)
        self._readiness = HttpReadiness()
        self._keepers: dict[str, Keeper] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._former: dict[str, Record] = {}
        self._beside: list[asyncio.Task[None]] = []
        self._ready = asyncio.create_task(self._take_over())

    async def describe(self) -> bytes:
        """A `Description` as JSON."""
        return msgspec.json.encode(self._description)

    async def hold(self) -> None:
        """Never returns: whoever waits for it learns of this actor's end."""
        await asyncio.Event().wait()

    async def launch(self, specs: bytes) -> None:
        """Keep these workers too. A worker that was given up gets another chance. All or none: raises `InvalidSpec`."""
        asked = check_specs(decode_specs(specs))
        await self._ready
        for spec in asked:
            self._hosts.check(spec)
            keeper = self._keepers.get(spec.name)
            if keeper is not None and keeper.record.spec != spec:
                raise InvalidSpec(
                    f"worker {spec.name!r} runs with another description; stop the fleet, or give it another name"
                )
        for spec in asked:
            keeper = self._keepers.get(spec.name)
            if keeper is None or keeper.state.stage == "given_up":
                former = self._former.pop(spec.name, None) if keeper is None else keeper.record
                record = Record(spec, self._id, self._description.detached)
                if former is not None:
                    record = msgspec.structs.replace(record, incarnation=former.incarnation, port=former.port)
                self._keep(record)
                await self._save(record)

    async def states(self, names: Sequence[str] | None = None) -> bytes:
        """`WorkerState`s as JSON: of `names` that it knows, or of all."""
        await self._ready
        known = self._keepers
        return encode_states(
            [keeper.state for keeper in (map(known.get, names) if names is not None else known.values()) if keeper]
        )

    async def start_cell(self, names: Sequence[str]) -> None:
        """Begin a life of each that has none; return when all have numbers. Raises `NotStarted`, and leaves none."""
        await self._ready
        keepers = self._told(names)
        begun = await asyncio.gather(*(keeper.start() for keeper in keepers), return_exceptions=True)
        failures = [one for one in begun if isinstance(one, BaseException)]
        if failures:
            _log.warning("manager.cell.not_started", workers=list(names), reason=str(failures[0]))
            over = "another worker of its cell could not be started"
            await asyncio.gather(
                *(
                    keeper.terminate(keeper.state.incarnation, over)
                    for keeper, mine in zip(keepers, begun, strict=True)
                    if mine is True
                )
            )
            raise failures[0]

    async def stop_cell(self, names: Sequence[str], reason: str) -> None:
        """End these in order, as planned; they stay down until they are started. Raises `NotStarted`."""
        await self._ready
        await asyncio.gather(*(keeper.halt(reason) for keeper in self._told(names)))

    async def terminate(self, name: str, expected: int) -> str:
        """A `Termination`, of that very life."""
        await self._ready
        keeper = self._keepers.get(name)
        return str(Termination.ALREADY_GONE if keeper is None else await keeper.terminate(expected))

    def _told(self, names: Sequence[str]) -> list[Keeper]:
        """Their keepers. Raises `NotStarted` for one that nobody else may start or stop."""
        keepers: list[Keeper] = []
        for name in names:
            keeper = self._keepers.get(name)
            if keeper is None:
                raise NotStarted(f"the manager has no worker {name!r}; launch it")
            if not keeper.told:
                raise NotStarted(f"worker {name!r} is restarted by its manager; launch it with restart='recoverer'")
            keepers.append(keeper)
        return keepers

    async def stop(self, reason: str, seconds: float) -> list[str]:
        """End all workers and forget them; return what could not be said to the log, one line for each fact."""
        await self._ready
        await end(*self._beside, *self._tasks.values())
        await asyncio.gather(*(keeper.stop(reason) for keeper in self._keepers.values()))
        await self._blocking(lambda: self._records.remove(list(self._keepers)), "forgetting the workers")
        await self._readiness.close()
        flushed = await self._publisher.aclose(seconds)
        return [f"{unsent.what}: {unsent.reason}" for unsent in flushed.unsent]

    async def _take_over(self) -> None:
        """Go on with what this actor kept before it was restarted; of another manager's workers, with those alive."""
        while True:
            try:
                records = await self._blocking(self._records.load, "reading the records")
                mine = {name for name, one in records.items() if one.manager == self._id or await self._orphan(one)}
            except RollbookError as exc:
                _log.warning("manager.take_over.failed", error=str(exc))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                break
        for name, record in records.items():
            if name in mine:
                self._keep(msgspec.structs.replace(record, manager=self._id))
            else:
                self._former[name] = record
        self._beside = [asyncio.create_task(one(self._publisher, self._states)) for one in BESIDE]
        _log.info("manager.began", fleet=self._description.fleet, workers=sorted(self._keepers))

    async def _orphan(self, record: Record) -> bool:
        """Whether the worker outlived its manager. One that shares its manager's fate may only not be dead yet."""
        return record.detached and await self._hosts.find(record.spec.name) is not None

    def _states(self) -> list[WorkerState]:
        return [keeper.state for keeper in self._keepers.values()]

    def _keep(self, record: Record) -> None:
        scribe = Scribe(self._publisher, record.spec)
        keeper = Keeper(record, self._hosts, scribe, self._readiness, self._save)
        self._keepers[record.spec.name] = keeper
        self._tasks[record.spec.name] = asyncio.create_task(self._run(keeper))

    async def _run(self, keeper: Keeper) -> None:
        """Whatever a keeper stumbles over, its worker stays kept, and the others do not notice."""
        while True:
            try:
                await keeper.run()
            except Exception:  # noqa: BLE001 - whatever it is, it is one worker's
                _log.exception("manager.keeper.failed", worker=keeper.record.spec.name)
                await asyncio.sleep(1)
            else:
                return

    async def _save(self, record: Record) -> None:
        try:
            await self._blocking(lambda: self._records.save(record), "writing a record")
        except RollbookError as exc:
            _log.warning("manager.record.not_saved", worker=record.spec.name, error=str(exc))

    async def _blocking(self, job: Callable[[], T], asked: str) -> T:
        return await aside(self._threads, job, LOOK_SECONDS, asked)
