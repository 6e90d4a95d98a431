"""Keeps one cell alive: its workers start together, serve together and end together, and then it begins again.

A start has barriers, which all workers pass together or none::

    launch   every process is there
    number   the log has numbered every life, under one cell incarnation
    ports    every worker has chosen its ports, so that all can be told of all
    ready    every worker has started and answers

Whichever fails, all are ended, and their ports, resources and placement group are free. It begins again by itself, or,
where a recoverer restarts the cell and after a planned stop, when it is told to.

Here it is decided when a life begins and ends; `crew` has the steps themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rollbook.adapters.ray.barrier import first, together, unless
from rollbook.adapters.ray.border import ActorSilent
from rollbook.adapters.ray.crew import Crew
from rollbook.adapters.ray.hosts import Hosts
from rollbook.adapters.ray.rank import Over, Rank
from rollbook.adapters.ray.records import Record
from rollbook.adapters.ray.seat import Neighbour
from rollbook.adapters.ray.seating import Neighbours
from rollbook.adapters.ray.spec import WorkerState
from rollbook.events import Evidence, RollbookError
from rollbook.projections.ending import end
from rollbook.projections.recovery.ports import NotStarted, Termination

STABLE_SECONDS: Final = 10.0
"""A life that served this long was a good one: the next begins at once, and restarts are counted anew."""
BACKOFF_FIRST: Final = 0.2
"""Seconds; upper bound of the random wait after the first life in a row that was no good one. Doubles."""
BACKOFF_MOST: Final = 15.0
_SHORTLY: Final = 0.05

_log = structlog.get_logger()


class Keeper:
    """One cell. `run` goes on until it is cancelled."""

    def __init__(
        self,
        record: Record,
        ranks: list[Rank],
        hosts: Hosts,
        neighbours: Neighbours,
        save: Callable[[Record], Awaitable[None]],
    ) -> None:
        self.ranks = ranks
        self.crew = Crew(record, ranks, hosts, neighbours, save)
        self._named = {rank.name: rank for rank in ranks}
        self._taken_over = asyncio.Event()
        """Whether it is known which processes an earlier manager left: what is told to it before waits."""
        self._wanted = asyncio.Event()
        """A cell without a life is to begin one."""
        self._resting = False
        """Whether it begins no life unless it is wanted."""
        self._begun = 0
        """How many lives were begun here."""
        self._numbered = 0
        """The last one of them whose workers all had numbers."""
        self._ordered: Future[Over] | None = None
        """Resolved to end the life that goes on; None if none does."""
        self._gone = asyncio.Event()
        """Whether no process is left."""
        self._there = False
        """Whether all processes of the present life are there, or were."""
        self._served: float | None = None
        """When the present life came to serve, by the loop's clock."""

    @property
    def record(self) -> Record:
        """What the next manager will know of it."""
        return self.crew.record

    @property
    def told(self) -> bool:
        """Whether a recoverer begins its lives, after the first one that has a number."""
        return self.record.specs[0].restart == "recoverer"

    @property
    def _left_to_others(self) -> bool:
        """Whether a recoverer begins its next life: one that the log knows, where it is seen to be down."""
        return self.told and any(rank.known for rank in self.ranks)

    @property
    def states(self) -> list[WorkerState]:
        """How its workers are at this moment, by rank."""
        return [rank.state for rank in self.ranks]

    async def run(self) -> None:
        """Take over the processes that are alive, or make them; then one life after the other. Can be run again."""
        try:
            await self._go_on()
        except Exception:  # the life that it stumbled over is none that goes on
            self._ordered = None
            self._taken_over.clear()
            raise

    async def _go_on(self) -> None:
        attempt = await self._take_over()
        self._taken_over.set()
        while True:
            if self._resting:
                while not self._wanted.is_set():  # a stop may come after it was set, and before this goes on
                    await self._wanted.wait()
                attempt = 0
            self._resting = False
            self._wanted.clear()
            if self._begun:
                for rank in self.ranks:
                    rank.note(restarts=rank.state.restarts + 1)
            self._begun += 1
            counted = 0 if self.told else attempt
            over = await self._live(counted)
            good = self._served is not None and _now() - self._served >= STABLE_SECONDS
            await self._conclude(over, counted)
            if self._resting:
                continue
            attempt = 1 if good else attempt + 1
            most = self.record.specs[0].max_restarts
            if most is not None and attempt > most:
                self._give_up(attempt - 1)
            elif not good:
                bound = min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(attempt - 1, 10))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(0, bound)):  # noqa: S311 - jitter
                        await self._wanted.wait()

    # -------------------------------------------------------------- what it can be told

    def want(self) -> None:
        """Begin a life if none goes on."""
        if self._ordered is None:
            self._wanted.set()

    def neighbour(self, name: str) -> Neighbour | None:
        """Where one of its workers is reached in the present life; None until its ports are chosen."""
        place, rank = self.crew.places.get(name), self._named[name]
        return None if place is None else Neighbour(place.addresses | rank.state.addresses, place.urls)

    async def start(self) -> bool:
        """Begin a life if none goes on, and wait until all have their numbers; whether it was begun by this call.

        Raises `NotStarted` if it ends before that.
        """
        await self._taken_over.wait()
        if any(rank.state.over for rank in self.ranks) and self._ordered is not None:
            await self._gone.wait()
        begun = self._ordered is None
        life = self._begun + begun
        self.want()
        while self._numbered < life:
            if self._begun < life and self._resting and not self._wanted.is_set():
                raise NotStarted(f"worker {self.ranks[0].name!r} did not begin a life: it was stopped before")
            if self._begun > life or (self._begun == life and self._ordered is None):
                told = next((rank for rank in self.ranks if rank.state.over), self.ranks[0])
                raise NotStarted(f"worker {told.name!r} did not begin a life: {told.state.reason}")
            await asyncio.sleep(_SHORTLY)
        return begun

    async def terminate(self, name: str, expected: int) -> Termination:
        """Kill the life of this number, and with it the cell's; wait for its end."""
        await self._taken_over.wait()
        while self._named[name].state.unsure:  # noqa: ASYNC110 - a state is a value
            await asyncio.sleep(_SHORTLY)
        state = self._named[name].state
        if state.incarnation > expected and state.alive:
            return Termination.STALE
        if not state.alive or state.incarnation < expected:
            if self._ordered is not None and state.over:
                await self._gone.wait()
            return Termination.ALREADY_GONE
        await self._order(Over(name, "exited", "it was terminated to be replaced", kill=True))
        return Termination.TERMINATED

    async def halt(self, reason: str) -> None:
        """End its life in order, as planned; it rests until it is wanted."""
        await self._taken_over.wait()
        self._rest()
        if self._ordered is not None:
            await self._order(Over("", "planned", reason, orderly=True))
            self._rest()
        # It may have ended by itself, before or just then: that it is to stay down the next manager must know.
        for rank in self.ranks:
            rank.note(stage="stopped")
        await self.crew.keep(over="planned")

    async def stop(self, reason: str) -> None:
        """Once `run` was cancelled: say that all are down as planned, and end their processes."""
        await self.crew.conclude(Over("", "planned", reason, orderly=True), failed=0)

    def lost(self, name: str) -> None:
        """Ray's head does not list its actor any more."""
        self._give_order(Over(name, "actor_dead", "Ray's head does not list its actor any more"))

    def _rest(self) -> None:
        self._wanted.clear()
        self._resting = True

    async def _order(self, over: Over) -> None:
        self._give_order(over)
        await self._gone.wait()

    def _give_order(self, over: Over) -> None:
        if self._ordered is not None and not self._ordered.done():
            self._ordered.set_result(over)

    # -------------------------------------------------------------- one life

    async def _take_over(self) -> int:
        """Find the processes that an earlier manager made; which attempt the next life is."""
        found = await together({rank.name: rank.find() for rank in self.ranks})
        record, whole = self.record, all(found.values())
        if record.over:
            self._resting = self._left_to_others or record.over == "planned"
            for rank in self.ranks:
                rank.note(stage="stopped" if record.over == "planned" else "down")
                if not record.told:
                    rank.resume(record.incarnations.get(rank.name, 0), record.cell_incarnation)
            if not record.told:
                evidence: Evidence = "planned" if record.over == "planned" else "exited"
                self.crew.say_over(Over("", evidence, "its manager ended while it was ending this"))
                await self.crew.note_told()
        elif numbers := await self.crew.begun_numbers():
            # Also of those that are there: one that hangs may never say who it is, and its life is over then.
            for rank in self.ranks:
                rank.resume(numbers.get(rank.name, 0), record.cell_incarnation)
            if not whole:
                missing = next(name for name, there in found.items() if not there)
                why = "its process was gone when its manager began"
                await self._conclude(Over(missing, "actor_dead", why, gone=True), 0)
        if record.over or not whole:
            # What the log was told of as over, or was never told of: it begins anew, or not at all.
            await self.crew.end_what_is_left()
        return int(bool(record.incarnations) and (bool(record.over) or not whole))

    async def _live(self, attempt: int) -> Over:
        """One life, from its processes to its end: by itself, or by what was ordered here."""
        self._served = None
        self._there = self.record.served
        self._gone.clear()
        ordered = self._ordered = asyncio.get_running_loop().create_future()
        living = asyncio.ensure_future(self._life(attempt))
        try:
            return await first(ordered, living)
        finally:
            await end(living)

    async def _life(self, attempt: int) -> Over:
        try:
            await self.crew.launch(attempt)
            watches = [asyncio.ensure_future(rank.watched()) for rank in self.ranks]
            death = asyncio.ensure_future(first(*watches))
            try:
                await unless(death, self._come_to_serve())
                return await death
            finally:
                await end(death, *watches)
        except Over as over:
            if over.silent and not self._there:
                over.reason = await self.crew.unplaced(over.reason)
            return over
        except ActorSilent as exc:
            return Over("", "exited", await self.crew.unplaced(str(exc)))
        except RollbookError as exc:
            return Over("", "exited", str(exc))

    async def _come_to_serve(self) -> None:
        """Pass the barriers. Raises `Over`."""
        who = await self.crew.identify()
        self._there = True
        numbers = await self.crew.number(who)
        self._numbered = self._begun
        await self.crew.begin(numbers)
        self._served = _now()
        await self.crew.up()

    async def _conclude(self, over: Over, attempt: int) -> None:
        planned = over.evidence == "planned"
        self._resting = self._resting or self._left_to_others or planned
        await self.crew.conclude(over, failed=attempt if self._served is None and not planned else 0)
        self._ordered = None
        self._gone.set()

    def _give_up(self, restarts: int) -> None:
        self._resting = True
        for rank in self.ranks:
            _log.error("manager.worker.given_up", worker=rank.name, restarts=restarts, reason=rank.state.reason)
            rank.note(stage="given_up", reason=f"{rank.state.reason}; given up after {restarts} restarts in a row")


def _now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()
