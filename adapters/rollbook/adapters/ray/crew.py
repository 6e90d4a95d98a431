"""The workers of one cell in the steps that they take together: their processes, numbers, ports, start and end.

Each step is all or nothing, and is noted in the cell's record, because a manager that comes back has nothing else to go
by. Which step comes when, and what follows from one that failed, is the keeper's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from rollbook.adapters.publisher import Receipt
from rollbook.adapters.ray.barrier import together
from rollbook.adapters.ray.border import AGAIN_SECONDS
from rollbook.adapters.ray.host import Identity
from rollbook.adapters.ray.hosts import Hosts
from rollbook.adapters.ray.rank import Over, Rank
from rollbook.adapters.ray.records import Record
from rollbook.adapters.ray.seat import Neighbour
from rollbook.adapters.ray.seating import Neighbours, first_ports, seated, shared
from rollbook.events import RecoveryFailed, RecoveryStarted, RollbookError

ANSWER_SECONDS: Final = 20.0
"""For a process that has served to tell a manager that comes back who it is. One that is still being made gets the
`process_seconds` of its spec."""

_HEARD_SECONDS: Final = 2.0
"""For the log to answer that it has the end of a life."""

_log = structlog.get_logger()


class Crew:
    """All workers of one cell. The steps raise `Over` as the first of them that fails does."""

    def __init__(
        self,
        record: Record,
        ranks: list[Rank],
        hosts: Hosts,
        neighbours: Neighbours,
        save: Callable[[Record], Awaitable[None]],
    ) -> None:
        self.record = record
        self.ranks = ranks
        self.places: dict[str, Neighbour] = {}
        """Where its workers will be reached, by name, once their ports are chosen."""
        self._hosts = hosts
        self._neighbours = neighbours
        self._save = save
        self._said: list[Receipt[Any]] = []
        """What the log was told of the newest end."""

    async def keep(self, **changes: object) -> None:
        """Note it in the record."""
        self.record = msgspec.structs.replace(self.record, **changes)
        await self._save(self.record)

    # -------------------------------------------------------------- a start, step by step

    async def launch(self, attempt: int) -> None:
        """Have the processes that are not there made, in room for all of them."""
        room = None
        if not all(rank.handle for rank in self.ranks):
            if attempt:
                self.ranks[0].scribe.say(RecoveryStarted, attempt=attempt)
            room = await self._hosts.make_room(self.record.specs)
        await together({rank.name: rank.make(room) for rank in self.ranks})

    async def identify(self) -> dict[str, Identity]:
        """Wait until every process says who it is: all are there then."""
        most = ANSWER_SECONDS if self.record.served else math.inf
        return await together({rank.name: rank.identity(most) for rank in self.ranks})

    async def number(self, who: Mapping[str, Identity]) -> dict[str, int]:
        """Have the log number every life, under one cell incarnation."""
        life = max(one.cell_incarnation for one in who.values()) or await self._next_life()
        await self.keep(cell_incarnation=life, over="", numbering=True)
        return await together({rank.name: rank.number(who[rank.name], life) for rank in self.ranks})

    async def begin(self, numbers: Mapping[str, int]) -> None:
        """Choose all ports, then start the code of each, which is told of all; until every one answers."""
        await self.keep(incarnations=numbers, numbering=False)
        former = self.record.ports
        places = await together({rank.name: rank.reserve(former.get(rank.name, {})) for rank in self.ranks})
        self.places = shared(self.ranks[0].spec, places)
        await self.keep(ports={name: first_ports(place) for name, place in self.places.items()})
        told = partial(
            seated,
            numbers=numbers,
            cell_incarnation=self.record.cell_incarnation,
            rank0=self.ranks[0].name,
            places=self.places,
            neighbours=self._neighbours,
        )
        await together({rank.name: told(rank) for rank in self.ranks})

    async def up(self) -> None:
        """Say that all are up."""
        for rank in self.ranks:
            rank.up()
        await self.keep(served=True)

    async def _next_life(self) -> int:
        """One above all numbers that the log has given to any of its workers, which no former life of it can have had.

        0 in a cell of one worker, whose own number says all.
        """
        if len(self.ranks) == 1:
            return 0
        for rank in self.ranks:
            rank.note(stage="waiting", reason="the log has not said yet which life of its cell comes next")
        last = await together({rank.name: rank.scribe.last_number() for rank in self.ranks})
        return max(*last.values(), self.record.cell_incarnation) + 1

    # -------------------------------------------------------------- what an earlier manager left

    async def begun_numbers(self) -> dict[str, int]:
        """The newest life of each that may have begun, as far as the former manager could note it, or the log knows."""
        noted = self.record.incarnations
        if not self.record.numbering:
            return noted
        given = await together({rank.name: rank.scribe.last_number() for rank in self.ranks})
        return {name: number for name, number in given.items() if number}

    # -------------------------------------------------------------- an end

    async def conclude(self, over: Over, failed: int) -> None:
        """Say what ended, and see that all processes are gone: their names, ports and GPUs are needed again.

        `failed` is the attempt that this life was, if it was one and did not come to serve.
        """
        self.places = {}
        planned = over.evidence == "planned"
        ended: Any = {"over": "planned" if planned else "ended", "numbering": False, "served": False, "told": False}
        if not over.gone:
            # First: the next manager would find all processes, and take for alive what the log was told of as over.
            await self.keep(**ended)
        self.say_over(over)
        if failed:
            self.ranks[0].scribe.say(RecoveryFailed, attempt=failed, reason=over.reason)
        if over.gone:
            await self.keep(**ended)
        await together({"processes": self.end_processes(over), "log": self.note_told()})

    def say_over(self, over: Over) -> None:
        """The one whose end it was first."""
        self._said = []
        for rank in sorted(self.ranks, key=lambda rank: rank.name != over.worker):
            if rank.name == over.worker or not over.worker:
                receipt = rank.over(over.evidence, over.reason, stopped=over.evidence == "planned")
            else:
                receipt = rank.over("exited", f"{over.worker} of its cell ended: {over.reason}", stopped=False)
            if receipt is not None:
                self._said.append(receipt)

    async def note_told(self) -> None:
        """That the log has all that was said of the end; not, if it does not say so soon: what waits dies with us."""
        with contextlib.suppress(TimeoutError, RollbookError):
            async with asyncio.timeout(_HEARD_SECONDS):
                for receipt in self._said:
                    await receipt
            await self.keep(told=True)

    async def end_processes(self, over: Over) -> None:
        """Let those end in order that can, kill the others, and free their room."""

        async def one(rank: Rank) -> None:
            orderly = over.orderly if rank.name == over.worker else not over.kill
            if orderly:
                await rank.halt(over.reason)
            await rank.end(rank.spec.stop_seconds if orderly else 0)

        await together({rank.name: one(rank) for rank in self.ranks})
        await self._free_room()

    async def end_what_is_left(self) -> None:
        """Kill all that are there, and free their room."""
        await together({rank.name: rank.end(0) for rank in self.ranks})
        await self._free_room()

    async def _free_room(self) -> None:
        """Waits until Ray takes the order: a cell that stays down would keep its resources from everybody."""
        told = False
        while True:
            try:
                await self._hosts.free_room(self.record.specs)
            except RollbookError as exc:
                if not told:
                    told = True
                    _log.warning("manager.room.not_freed", cell=self.record.cell, error=str(exc))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    async def unplaced(self, reason: str) -> str:
        """`reason` with what may be behind it, where Ray has not made all processes."""
        told = await self._hosts.shortage(self.record.specs)
        return f"{reason}; {told}" if told else reason
