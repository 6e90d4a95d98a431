"""Puts the whole demo up, lets it run, and takes it down again in every case.

Everything is as a user would have it: `rollbook.toml` in a folder, an embedded NATS, a manager actor in a local Ray,
sglang-router as a process. Other commands of Rollbook work in that folder meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from rollbook.adapters.bootstrap import Built, build
from rollbook.adapters.cli.reading import read_in_order
from rollbook.adapters.demo.chaos import Chaos, Victim, make_schedule
from rollbook.adapters.demo.cluster import local_ray, require_ray
from rollbook.adapters.demo.errors import DemoFailed
from rollbook.adapters.demo.live import TICK_SECONDS, Show, showing
from rollbook.adapters.demo.records import Listed, Run
from rollbook.adapters.demo.router import Router, find_program, list_router
from rollbook.adapters.demo.traffic import Traffic
from rollbook.adapters.demo.worker import DemoWorker
from rollbook.adapters.ray.border import manager_name
from rollbook.adapters.ray.client import ManagerClient
from rollbook.adapters.ray.guest import PRIMARY
from rollbook.adapters.ray.manager import RayWorkerManager
from rollbook.adapters.ray.spec import WorkerSpec, import_path
from rollbook.adapters.settings import FILE_NAME, load
from rollbook.events import Recorded, RollbookError
from rollbook.events.names import format_worker
from rollbook.projections.ending import end
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told
from rollbook.projections.state.worker import Phase

FLEET: Final = "demo"
POOL: Final = "rollout"
PROXY: Final = "router"
READY_SECONDS: Final = 120.0
"""For all workers to serve and to be registered."""
CONVERGE_SECONDS: Final = 60.0
"""After the time is over, for everything to be as it should; then the run is judged as it is."""
REQUESTS_PER_WORKER: Final = 6.0
"""Per second."""
ANSWER_SECONDS: Final = 0.05
"""What a worker takes for one answer, so that a kill finds requests under way."""
ASK_SECONDS: Final = 5.0
"""Deadline of one question to the manager."""
MOST_REQUESTS: Final = 50.0
"""Per second, in all."""
_POLL_SECONDS: Final = 0.1

_CONFIGURATION: Final = """\
# What `rollbook demo` runs with.
fleet = "{fleet}"

[provider]
kind = "ray"

[pools.{pool}]

[[proxies]]
name = "{proxy}"
kind = "sglang"
admin_url = "{router}"
pools = ["{pool}"]

[reconcile]
resync = 1.0  # the default is 5: how long it may take to notice that a router lost its list
"""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the person chose."""

    workers: int
    seconds: float
    kills: int
    seed: int


def require_parts() -> None:
    """Raise `MissingExtra` if a program or package of the `demo` extra is not installed."""
    require_ray()
    find_program()


class Stage:
    """One run. `directory` is an empty folder that exists; the log and the programs' own logs are put there."""

    def __init__(self, options: Options, directory: Path) -> None:
        self.workers = tuple(format_worker(POOL, cell, 0) for cell in range(options.workers))
        self.traffic: Traffic | None = None
        self._options = options
        self._directory = directory
        self._router = Router(directory)
        self._manager = ManagerClient(manager_name(FLEET))
        self._built: Built | None = None
        self._step = "starting"
        self._began = 0.0

    @property
    def title(self) -> str:
        """One line about the run as it is now."""
        if self._began == 0:
            return self._step
        return f"{self._step}, {time.time() - self._began:.0f} s of {self._options.seconds:g} s"

    @property
    def state(self) -> State | None:
        """The controller's state; None before there is one."""
        projector = None if self._built is None else self._built.controller.projector
        return None if projector is None else projector.state

    async def run(self) -> Run:
        """Put it up, let it run, take it down. Raises `RollbookError` if a part does not come up, or dies."""
        with showing(self, PROXY) as show:
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(_background(_tick(show)))
                built = await self._put_up(stack, show)
                async with asyncio.TaskGroup() as group:
                    group.create_task(built.controller.run(), name="controller")
                    try:
                        return await self._play(built, show)
                    finally:
                        show.note("taking everything down")
                        built.controller.stop()

    # -------------------------------------------------------------- up

    async def _put_up(self, stack: contextlib.AsyncExitStack, show: Show) -> Built:
        """Router, Ray, NATS and a controller that does not run yet."""
        show.note("starting sglang-router, a local Ray and an embedded NATS")
        stack.push_async_callback(self._router.kill)
        async with _background(self._router.start()) as starting:
            await stack.enter_async_context(local_ray(len(self.workers) + 1))
            await starting
        file = self._directory / FILE_NAME
        file.write_text(
            _CONFIGURATION.format(fleet=FLEET, pool=POOL, proxy=PROXY, router=self._router.url),
            encoding="utf-8",
        )
        config = load(file, environ={}, cwd=self._directory)
        self._built = await stack.enter_async_context(build(config.settings, config.directory, environ={}))
        show.note(f"sglang-router answers on {self._router.url}; rollbook's other commands work in {self._directory}")
        return self._built

    async def _launch(self, built: Built, show: Show) -> None:
        """Start the workers, and wait until they are registered."""
        show.note(f"launching {len(self.workers)} workers as Ray actors")
        specs = [
            WorkerSpec(name=name, actor=import_path(DemoWorker), kwargs={"answer_seconds": ANSWER_SECONDS})
            for name in self.workers
        ]
        launching = asyncio.ensure_future(
            asyncio.to_thread(RayWorkerManager.launch, specs, fleet=FLEET, environ=built.nats.environ())
        )
        try:
            await asyncio.shield(launching)
        finally:  # Ray ends the whole process if it is shut down under a call
            await asyncio.wait([launching])
        if not await _until(self._all_registered, READY_SECONDS):
            states = await self._manager.states(None, READY_SECONDS)
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

    async def _play(self, built: Built, show: Show) -> Run:
        await built.controller.started.wait()
        if built.controller.projector is None:
            raise DemoFailed("the controller started without a projector")
        built.controller.projector.witness(lambda stored, recorded, _: _show_fact(show, stored, recorded))
        self._step = "waiting for the workers"
        await self._launch(built, show)
        options = self._options
        schedule = make_schedule(options.seed, workers=self.workers, seconds=options.seconds, kills=options.kills)
        chaos = Chaos(schedule, self._find_victim, self._router.restart, show.note)
        traffic = self.traffic = Traffic(self._router.url, min(MOST_REQUESTS, REQUESTS_PER_WORKER * len(self.workers)))
        self._step, self._began = "running", time.time()
        enough = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(traffic.run(enough))
                await asyncio.gather(chaos.run(), asyncio.sleep(options.seconds))
                self._step = "converging"
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
                    await _until(lambda: self._settled(built, chaos, traffic), CONVERGE_SECONDS)
                    enough.set()
                    listed = await list_router(session, self._router.url)
            return await self._recorded(built, chaos, traffic, listed)
        finally:
            await chaos.close()

    async def _find_victim(self, worker: str) -> Victim | None:
        """The life that the manager knows now."""
        try:
            state = (await self._manager.states([worker], ASK_SECONDS)).get(worker)
        except RollbookError:
            return None
        if state is None or not state.alive or state.pid is None:
            return None
        return Victim(state.incarnation, state.pid, state.addresses.get(PRIMARY), state.stage == "serving")

    def _settled(self, built: Built, chaos: Chaos, traffic: Traffic) -> bool:
        """Whether there is nothing left to wait for: all registered, nothing under way, victims' next lives met."""
        newest: dict[str, int] = {}
        for request in traffic.requests:
            if request.worker is not None and request.incarnation is not None:
                newest[request.worker] = max(newest.get(request.worker, 0), request.incarnation)
        return (
            self._all_registered()
            and all(lane.idle for lane in built.controller.lanes.values())
            and all(newest.get(kill.worker, 0) > kill.incarnation for kill in chaos.kills)
        )

    async def _recorded(self, built: Built, chaos: Chaos, traffic: Traffic, listed: tuple[Listed, ...]) -> Run:
        state = self.state
        if state is None:
            raise DemoFailed("the controller has no state at the end of the run")
        sequence, digest = state.sequence, state.digest()
        ends = await built.log.state()
        log = [stored async for stored in read_in_order(built.log, 0, ends.last_sequence)]
        return Run(
            policy=built.controller.policy,
            proxy=PROXY,
            seed=self._options.seed,
            workers=self.workers,
            began=self._began,
            ended=time.time(),
            kills_wanted=self._options.kills,
            kills=tuple(chaos.kills),
            restarts=tuple(chaos.restarts),
            requests=tuple(traffic.requests),
            log=tuple(log),
            live_sequence=sequence,
            live_digest=digest,
            listed=listed,
        )


def _show_fact(show: Show, stored: Stored, recorded: Recorded | None) -> None:
    if recorded is not None:
        show.fact(stored, recorded)


async def _tick(show: Show) -> None:
    while True:
        show.tick()
        await asyncio.sleep(TICK_SECONDS)


async def _until(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait until it is reached; False if it is not within `seconds`."""
    until = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncGenerator[asyncio.Task[None]]:
    """Run `work` beside the body, not longer."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await end(task)
