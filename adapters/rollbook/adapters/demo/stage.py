"""What every run of the demo has in common: parts are put up, workers launched, traffic sent, and all is recorded.

How Rollbook itself runs is the business of the two kinds of stage: `calm` and `storm`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from rollbook.adapters.cli.reading import read_in_order
from rollbook.adapters.demo.cluster import require_ray
from rollbook.adapters.demo.errors import DemoFailed
from rollbook.adapters.demo.hunting import Hunter, Victim
from rollbook.adapters.demo.live import TICK_SECONDS, Show, showing
from rollbook.adapters.demo.records import Disturbance, Fall, Foreign, Listed, Request, RouterRestart, Run
from rollbook.adapters.demo.router import Router, find_program, list_router
from rollbook.adapters.demo.traffic import Traffic
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.ray.border import manager_name
from rollbook.adapters.ray.client import ManagerClient
from rollbook.adapters.ray.manager import RayWorkerManager
from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.ray.spec import Spec, WorkerState
from rollbook.events import Recorded, RollbookError
from rollbook.events.names import format_worker
from rollbook.projections.ending import end
from rollbook.projections.policy import Policy
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told
from rollbook.projections.state.worker import Phase

FLEET: Final = "demo"
POOL: Final = "rollout"
PROXY: Final = "router"
READY_SECONDS: Final = 120.0
"""For all workers to serve and to be registered."""
REQUESTS_PER_WORKER: Final = 6.0
"""Per second."""
ANSWER_SECONDS: Final = 0.05
"""What a worker takes for one answer, so that a kill finds requests under way."""
ASK_SECONDS: Final = 5.0
"""Deadline of one question to the manager."""
MOST_REQUESTS: Final = 50.0
"""Per second, in all."""
_POLL_SECONDS: Final = 0.1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the person chose."""

    workers: int
    seconds: float
    kills: int
    """In a storm: faults of every kind."""
    seed: int


class Up(msgspec.Struct, frozen=True):
    """What is up before the workers are launched."""

    policy: Policy
    log: JetStreamLog
    environ: Mapping[str, str]
    """How publishers find NATS."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: what the kind of stage has to add to what all have recorded."""

    live_sequence: int
    live_digest: str
    kills_wanted: int
    restarts: tuple[RouterRestart, ...] = ()
    faults_wanted: int = 0
    disturbances: tuple[Disturbance, ...] = ()
    falls: tuple[Fall, ...] = ()


def require_parts() -> None:
    """Raise `MissingExtra` if a program or package of the `demo` extra is not installed."""
    require_ray()
    find_program()


class Stage(ABC):
    """One run. `directory` is an empty folder that exists; the log and the programs' own logs are put there."""

    foreign: str | None = None
    """URL of the entry that the demo itself has put into the router."""
    foreign_name = ""
    """How whoever answers there calls itself."""
    converge_seconds: float
    """After the time is over, for everything to be as it should; then the run is judged as it is."""

    def __init__(self, options: Options, directory: Path) -> None:
        self.workers = tuple(format_worker(POOL, cell, 0) for cell in range(options.workers))
        self.traffic: Traffic | None = None
        self.options = options
        self.directory = directory
        self.router = Router(directory)
        self.manager = ManagerClient(manager_name(FLEET))
        self._step = "starting"
        self._began = 0.0

    @property
    def title(self) -> str:
        """One line about the run as it is now."""
        if self._began == 0:
            return self._step
        return f"{self._step}, {time.time() - self._began:.0f} s of {self.options.seconds:g} s"

    @property
    @abstractmethod
    def state(self) -> State | None:
        """The fold of the log as far as it is known here; None before there is one."""

    @abstractmethod
    def put_up(self, show: Show) -> contextlib.AbstractAsyncContextManager[Up]:
        """Router, Ray, NATS and Rollbook's own programs, for as long as the context is open. Raises `RollbookError`."""

    @abstractmethod
    def specs(self) -> list[Spec]:
        """The workers to be launched."""

    @abstractmethod
    async def disturb(self, hunter: Hunter, show: Show) -> None:
        """Do to the fleet what was chosen, and return when it is done."""

    @abstractmethod
    def settled(self, *, well: bool) -> bool:
        """Whether nothing is under way at Rollbook's own programs any more, where by the log all is `well`."""

    @abstractmethod
    async def ended(self) -> Ended:
        """Once the run is over: what Rollbook's own programs have to say. Raises `RollbookError`."""

    def hunter(self, show: Show) -> Hunter:
        """Who ends lives of workers."""
        return Hunter(self.find_victim, show.note)

    async def run(self) -> Run:
        """Put it up, let it run, take it down. Raises `RollbookError` if a part does not come up, or dies."""
        with showing(self, PROXY) as show:
            async with background(_tick(show)), self.put_up(show) as up:
                try:
                    return await self._play(up, show)
                finally:
                    show.note("taking everything down")

    async def _launch(self, up: Up, show: Show) -> None:
        """Start the workers, and wait until they are registered."""
        show.note(f"launching {len(self.workers)} workers as Ray actors")
        launching = asyncio.ensure_future(
            asyncio.to_thread(RayWorkerManager.launch, self.specs(), fleet=FLEET, environ=up.environ)
        )
        try:
            await asyncio.shield(launching)
        finally:  # Ray ends the whole process if it is shut down under a call
            await asyncio.wait([launching])
        if not await until(self._all_registered, READY_SECONDS):
            states = await self.manager.states(None, READY_SECONDS)
            told = ", ".join(f"{name} is {state.stage} ({state.reason})" for name, state in states.items())
            raise DemoFailed(f"the workers were not all registered within {READY_SECONDS:g} s: {told}")

    def _all_registered(self) -> bool:
        """Whether the log says that every worker's current life serves and is registered."""
        state = self.state
        if state is None:
            return False
        registrations = state.ledger.look(PROXY).registrations
        for name in self.workers:
            worker = state.roster.workers.get(name)
            if worker is None or worker.phase is not Phase.SERVING:
                return False
            lives = registrations.get(name, {})
            if list(lives) != [worker.incarnation] or lives[worker.incarnation].told is not Told.REGISTERED:
                return False
        return True

    # -------------------------------------------------------------- the run

    async def _play(self, up: Up, show: Show) -> Run:
        self._step = "waiting for the workers"
        await self._launch(up, show)
        hunter = self.hunter(show)
        pace = min(MOST_REQUESTS, REQUESTS_PER_WORKER * len(self.workers))
        traffic = self.traffic = Traffic(self.router.url, pace)
        self._step, self._began = "running", time.time()
        enough = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(traffic.run(enough))
                await asyncio.gather(self.disturb(hunter, show), asyncio.sleep(self.options.seconds))
                self._step = "converging"
                show.note("nothing more is done to the fleet; waiting until all is as it should be")
                await until(lambda: self._at_rest(hunter, traffic), self.converge_seconds)
                enough.set()
                listed = await self._listed()
            return await self._recorded(up, hunter, traffic, listed)
        finally:
            await hunter.close()

    async def _listed(self) -> tuple[Listed, ...]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            return await list_router(session, self.router.url)

    async def find_victim(self, worker: str) -> Victim | None:
        """The life that the manager knows now."""
        try:
            state = (await self.manager.states([worker], ASK_SECONDS)).get(worker)
        except RollbookError:
            return None
        pid = None if state is None or not state.alive else await self.serving_pid(state)
        if state is None or pid is None:
            return None
        return Victim(state.incarnation, pid, state.addresses.get(PRIMARY), state.stage == "serving")

    async def serving_pid(self, state: WorkerState) -> int | None:
        """The process that serves for a worker that is alive; None if that is not known."""
        return state.pid

    def _at_rest(self, hunter: Hunter, traffic: Traffic) -> bool:
        """Whether there is nothing left to wait for: all registered, nothing under way, victims' next lives met."""
        newest: dict[str, int] = {}
        for request in traffic.requests:
            if request.worker is not None and request.incarnation is not None:
                newest[request.worker] = max(newest.get(request.worker, 0), request.incarnation)
        served = all(newest.get(kill.worker, 0) > kill.incarnation for kill in hunter.kills)
        return self.settled(well=served and self._all_registered())

    async def _recorded(self, up: Up, hunter: Hunter, traffic: Traffic, listed: tuple[Listed, ...]) -> Run:
        ended = await self.ended()
        ends = await up.log.state()
        log = [stored async for stored in read_in_order(up.log, 0, ends.last_sequence)]
        ours = tuple(request for request in traffic.requests if not self._is_foreign(request))
        foreign = None
        if self.foreign is not None:
            foreign = Foreign(
                url=self.foreign,
                listed=any(entry.url == self.foreign for entry in listed),
                served=len(traffic.requests) - len(ours),
            )
        return Run(
            policy=up.policy,
            proxy=PROXY,
            seed=self.options.seed,
            workers=self.workers,
            began=self._began,
            ended=time.time(),
            kills_wanted=ended.kills_wanted,
            kills=tuple(hunter.kills),
            restarts=ended.restarts,
            requests=ours,
            log=tuple(log),
            live_sequence=ended.live_sequence,
            live_digest=ended.live_digest,
            listed=tuple(entry for entry in listed if entry.url != self.foreign),
            faults_wanted=ended.faults_wanted,
            disturbances=ended.disturbances,
            falls=ended.falls,
            foreign=foreign,
        )

    def _is_foreign(self, request: Request) -> bool:
        return self.foreign is not None and request.worker == self.foreign_name


def show_fact(show: Show, stored: Stored, recorded: Recorded | None) -> None:
    """A fact, or what is none, was folded."""
    if recorded is not None:
        show.fact(stored, recorded)


async def _tick(show: Show) -> None:
    while True:
        show.tick()
        await asyncio.sleep(TICK_SECONDS)


async def until(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait until it is reached; False if it is not within `seconds`."""
    moment = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > moment:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncGenerator[asyncio.Task[None]]:
    """Run `work` beside the body, not longer."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await end(task)
