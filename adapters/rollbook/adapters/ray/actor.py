"""The manager actor: the keepers of one fleet's workers, and what can be asked of them.

Ray starts it again when its process dies, on another node if need be. Then it reads its records, finds the workers that
are alive by their actors' names, and goes on; those that died meanwhile begin new lives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog

from rollbook.adapters import logs
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.proxies.readiness import HttpReadiness
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.ray.border import AGAIN_SECONDS, ActorGone, RayThread
from rollbook.adapters.ray.checking import cells_of
from rollbook.adapters.ray.claims import Description, Holder
from rollbook.adapters.ray.estate import Estate
from rollbook.adapters.ray.hosts import Hosts
from rollbook.adapters.ray.keeper import Keeper
from rollbook.adapters.ray.observing import observing
from rollbook.adapters.ray.rank import Rank
from rollbook.adapters.ray.records import Record
from rollbook.adapters.ray.scan import SECONDS as SCAN_SECONDS
from rollbook.adapters.ray.scan import Scan
from rollbook.adapters.ray.scribe import Scribe
from rollbook.adapters.ray.seat import Neighbour
from rollbook.adapters.ray.spec import InvalidSpec, Spec, WorkerState, decode_specs, encode_states
from rollbook.events import RollbookError
from rollbook.projections.ending import end
from rollbook.projections.recovery.ports import NotStarted, Termination

CONCURRENCY: Final = 100_000
"""Calls at once. Each worker of a fleet that is not detached holds one for its whole life."""
PUBLISHER: Final = "ray-manager"

_log = structlog.get_logger()


class ManagerActor:
    """The manager of one fleet. Made by `RayWorkerManager.launch`; an asyncio actor."""

    def __init__(
        self, fleet: str, namespace: str, environ: Mapping[str, str], *, detached: bool, observe_seconds: float
    ) -> None:
        """`environ` holds the ROLLBOOK_NATS_ variables. Does not wait for NATS. Ray calls it on the actor's loop."""
        import ray

        logs.configure(environ=os.environ)
        context = ray.get_runtime_context()
        self._description = Description(fleet, detached, os.getpid(), str(context.get_actor_id()))
        self._threads = RayThread()
        self._hosts = Hosts(fleet, namespace, self._threads, None if detached else context.current_actor)
        me = Holder(self._description.id, str(context.get_actor_name()), namespace)
        self._estate = Estate(fleet, me, self._threads, self._hosts)
        self._publisher = Publisher.from_env({**environ, "ROLLBOOK_FLEET": fleet}, name=PUBLISHER, outbox=None)
        self._observe = observing(Connection.from_env(environ), observe_seconds)
        self._readiness = HttpReadiness()
        self._keepers: dict[str, Keeper] = {}
        """By cell."""
        self._cell_of: dict[str, str] = {}
        """By worker."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._launching = asyncio.Lock()
        self._resigned = False
        self._beside: list[asyncio.Task[None]] = []
        self._ready = asyncio.create_task(self._take_over())

    async def describe(self) -> bytes:
        """A `Description` as JSON."""
        return msgspec.json.encode(self._description)

    async def hold(self) -> None:
        """Never returns: whoever waits for it learns of this actor's end."""
        await asyncio.Event().wait()

    async def launch(self, specs: bytes) -> None:
        """Keep these workers too. A cell that was given up gets another chance.

        All or none: raises `InvalidSpec` or `KeptElsewhere`.
        """
        cells = cells_of(decode_specs(specs))
        await self._ready
        async with self._launching:
            if self._resigned:
                raise ActorGone("this manager is ending; launch the workers again")
            for cell, asked in cells.items():
                self._check(cell, asked)
            former = await self._estate.take(
                {cell: asked for cell, asked in cells.items() if cell not in self._keepers}
            )
            for cell, asked in cells.items():
                keeper = self._keepers.get(cell)
                if keeper is None:
                    record = former.get(cell) or Record(specs=asked, detached=self._description.detached)
                    record = msgspec.structs.replace(record, specs=asked, detached=self._description.detached)
                    keeper = self._keep(record)
                    keeper.want()
                    await self._estate.save(record)
                elif any(state.stage == "given_up" for state in keeper.states):
                    keeper.want()

    async def resign(self) -> bool:
        """Take no workers any more, unless it has some; whether it is so."""
        async with self._launching:
            self._resigned = not self._keepers
            return self._resigned

    async def states(self, names: Sequence[str] | None = None) -> bytes:
        """`WorkerState`s as JSON: of `names` that it knows, or of all."""
        await self._ready
        states = self._states()
        if names is None:
            return encode_states(states)
        known = {state.name: state for state in states}
        return encode_states([known[name] for name in names if name in known])

    async def start_cells(self, workers: Sequence[str], *, recovering: bool) -> None:
        """Begin a life of each cell of these that has none; return when all its workers have numbers.

        Raises `NotStarted`, and leaves none of those begun; also where `recovering` and the manager does that itself.
        """
        await self._ready
        keepers = self._asked(workers)
        for keeper in keepers:
            if recovering and not keeper.told:
                name = keeper.ranks[0].name
                raise NotStarted(f"worker {name!r} is restarted by its manager; launch it with restart='recoverer'")
        begun = await asyncio.gather(*(keeper.start() for keeper in keepers), return_exceptions=True)
        failures = [one for one in begun if isinstance(one, BaseException)]
        if failures:
            _log.warning("manager.cells.not_started", workers=list(workers), reason=str(failures[0]))
            over = "another cell could not be started with it"
            await asyncio.gather(
                *(keeper.halt(over) for keeper, mine in zip(keepers, begun, strict=True) if mine is True)
            )
            raise failures[0]

    async def stop_cells(self, workers: Sequence[str], reason: str) -> None:
        """End the cells of these in order, as planned; they stay down until they are started. Raises `NotStarted`."""
        await self._ready
        await asyncio.gather(*(keeper.halt(reason) for keeper in self._asked(workers)))

    async def terminate(self, name: str, expected: int) -> str:
        """A `Termination`, of that very life."""
        await self._ready
        cell = self._cell_of.get(name)
        return str(Termination.ALREADY_GONE if cell is None else await self._keepers[cell].terminate(name, expected))

    def _check(self, cell: str, specs: Sequence[Spec]) -> None:
        """Raise `InvalidSpec` for a cell that cannot be kept."""
        for spec in specs:
            self._hosts.check(spec)
            other = self._cell_of.get(spec.name, cell)
            if other != cell:
                raise InvalidSpec(f"worker {spec.name!r} runs in cell {other}, not in {cell}")
        keeper = self._keepers.get(cell)
        if keeper is None:
            return
        running = {spec.name: spec for spec in keeper.record.specs}
        if running.keys() != (asked := {spec.name: spec for spec in specs}).keys():
            raise InvalidSpec(
                f"cell {cell} runs with the workers {', '.join(running)}, not with {', '.join(asked)}; a cell is "
                "launched as a whole"
            )
        for name, spec in asked.items():
            if spec != running[name]:
                raise InvalidSpec(
                    f"worker {name!r} runs with another description; stop the fleet, or give it another name"
                )

    def _asked(self, workers: Sequence[str]) -> list[Keeper]:
        """The keepers of their cells, each once. Raises `NotStarted`."""
        cells: dict[str, Keeper] = {}
        for name in workers:
            if (cell := self._cell_of.get(name)) is None:
                raise NotStarted(f"the manager has no worker {name!r}; launch it")
            cells[cell] = self._keepers[cell]
        return list(cells.values())

    async def stop(self, reason: str, seconds: float) -> list[str]:
        """End all workers and forget them; return what could not be said to the log, one line for each fact."""
        await self._ready
        async with self._launching:  # what is launched meanwhile would be left, with a claim of nobody's
            self._resigned = True
        await end(*self._beside, *self._tasks.values())
        await asyncio.gather(*(keeper.stop(reason) for keeper in self._keepers.values()))
        await self._estate.forget({cell: keeper.record.specs for cell, keeper in self._keepers.items()})
        await self._readiness.close()
        flushed = await self._publisher.aclose(seconds)
        return [f"{unsent.what}: {unsent.reason}" for unsent in flushed.unsent]

    async def _take_over(self) -> None:
        """Go on with what this actor kept before it was restarted; of another manager's workers, with those alive."""
        while True:
            try:
                mine = await self._estate.inherit()
            except RollbookError as exc:
                _log.warning("manager.take_over.failed", error=str(exc))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                break
        for record in mine.values():
            self._keep(record)
        beside = (self._observe(self._publisher, self._states), self._scan())
        self._beside = [asyncio.create_task(one) for one in beside]
        _log.info("manager.began", fleet=self._description.fleet, workers=sorted(self._cell_of))

    async def _scan(self) -> None:
        scan = Scan()
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            ranks = {rank.name: (keeper, rank) for keeper in self._keepers.values() for rank in keeper.ranks}
            alive = {name: rank.process for name, (_, rank) in ranks.items() if rank.state.alive}
            try:
                listed = await self._hosts.listed()
            except RollbookError as exc:
                _log.warning("manager.scan.failed", error=str(exc))
                continue
            for name in scan.lost(listed, alive):
                keeper, rank = ranks[name]
                if rank.state.alive and rank.process == alive[name]:
                    keeper.lost(name)

    def _states(self) -> list[WorkerState]:
        return [state for keeper in self._keepers.values() for state in keeper.states]

    def _neighbour(self, name: str) -> Neighbour | None:
        cell = self._cell_of.get(name)
        return None if cell is None else self._keepers[cell].neighbour(name)

    def _keep(self, record: Record) -> Keeper:
        ranks: list[Rank] = []
        for spec in record.specs:
            scribe = Scribe(self._publisher, spec, len(record.specs))
            incarnation = record.incarnations.get(spec.name, 0)
            ranks.append(Rank(spec, self._hosts, scribe, self._readiness, incarnation))
            self._cell_of[spec.name] = record.cell
        keeper = self._keepers[record.cell] = Keeper(record, ranks, self._hosts, self._neighbour, self._estate.save)
        self._tasks[record.cell] = asyncio.create_task(self._run(keeper))
        return keeper

    async def _run(self, keeper: Keeper) -> None:
        """Whatever a keeper stumbles over, its worker stays kept, and the others do not notice."""
        while True:
            try:
                await keeper.run()
            except Exception:  # noqa: BLE001 - whatever it is, it is one worker's
                _log.exception("manager.keeper.failed", cell=keeper.record.cell)
                await asyncio.sleep(1)
            else:
                return
