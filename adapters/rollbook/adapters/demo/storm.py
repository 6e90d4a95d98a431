"""The demo with `--chaos`: every part of a deployment is a process of its own, and every one of them is hurt.

Two controllers (one leads, one stands by), a monitor and a recoverer as processes that are started again when they
end; workers that only the recoverer restarts; a Ray of two nodes; a NATS server with its store; a router. In the router
there is one entry that Rollbook did not make, which must stay [I11].
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from rollbook.adapters.demo.arms import STRIKES, Arms
from rollbook.adapters.demo.cluster import SECOND_ADDRESS, SecondNode, local_ray
from rollbook.adapters.demo.errors import DemoFailed
from rollbook.adapters.demo.faults import make_faults
from rollbook.adapters.demo.hunting import Hunter
from rollbook.adapters.demo.live import Show
from rollbook.adapters.demo.programs import Program, kept
from rollbook.adapters.demo.stage import (
    ASK_SECONDS,
    FLEET,
    Ended,
    Options,
    Stage,
    Up,
    background,
)
from rollbook.adapters.demo.storm_setting import command, served, write_configuration
from rollbook.adapters.demo.traffic import who_answered
from rollbook.adapters.demo.watching import Watching, watching
from rollbook.adapters.demo.worker import serve
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.ray.border import NAMESPACE, ActorGone, ActorSilent, aside, find, host_name
from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.ray.spec import Spec, WorkerState
from rollbook.adapters.settings import load
from rollbook.events import RollbookError
from rollbook.projections.state.fold import State

STRANGER: Final = "stranger"
"""Who answers at the entry that Rollbook did not make."""
CALM_SECONDS: Final = 5.0
"""For so long all must be as it should be: Ray takes as long to notice a dead node."""


class StormStage(Stage):
    """Faults of every kind at every part."""

    converge_seconds = 150.0
    foreign_name = STRANGER

    def __init__(self, options: Options, directory: Path) -> None:
        super().__init__(options, directory)
        self.monitor = Program("monitor", ["monitor", "--name", "monitor"], ["monitor.started"], directory)
        self.recoverer = Program("recoverer", ["recover", "--name", "recoverer"], ["recovery.started"], directory)
        begun = ["controller.started", "controller.standing_by"]
        self.controllers = [Program(f"controller-{one}", ["up"], begun, directory) for one in "ab"]
        self._server = EmbeddedServer(directory / ".rollbook")
        self._watching: Watching | None = None
        self._node: SecondNode | None = None
        self._arms: Arms | None = None
        self._hunter: Hunter | None = None
        self._calm_since: float | None = None
        self._url = ""

    @property
    def programs(self) -> list[Program]:
        """Rollbook's own."""
        return [*self.controllers, self.monitor, self.recoverer]

    @property
    def state(self) -> State | None:
        """What the demo has read of the log."""
        return None if self._watching is None else self._watching.state

    # -------------------------------------------------------------- up

    @contextlib.asynccontextmanager
    async def put_up(self, show: Show) -> AsyncGenerator[Up]:
        """See `Stage`."""
        show.note("starting sglang-router, a local Ray of two nodes and a nats-server")
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.router.kill)
            async with background(self.router.start()) as starting:
                workers = len(self.workers)
                ray = await stack.enter_async_context(local_ray(workers + 1, watchful=True))
                self._node = SecondNode(ray, workers, self.directory)
                stack.push_async_callback(self._node.kill)
                await self._node.start()
                await starting
            self._url = await self._server.start()
            stack.push_async_callback(self._server.stop)
            file = write_configuration(self.directory, nats=self._url, ray=ray.address, router=self.router.url)
            config = load(file, environ={}, cwd=self.directory)
            self.foreign = f"http://{await stack.enter_async_context(serve(STRANGER, 1))}"
            await self._put_stranger()
            show.note(f"sglang-router answers on {self.router.url}; rollbook's other commands work in {self.directory}")
            show.note("starting two controllers, a monitor and a recoverer")
            await stack.enter_async_context(kept(self.controllers))
            for program in self.controllers:
                await program.work()
            connection = Connection(url=self._url)
            self._watching = await stack.enter_async_context(watching(connection, FLEET, show.fact))
            await stack.enter_async_context(background(self._watching.run()))
            await stack.enter_async_context(kept([self.monitor, self.recoverer]))
            yield Up(config.settings.policy(), self._watching.log, connection.environ())

    def specs(self) -> list[Spec]:
        """See `Stage`. Every other worker is a command, so that its server and its actor are two processes."""
        return [command(name) if name in self.commands else served(name) for name in self.workers]

    @property
    def commands(self) -> tuple[str, ...]:
        """The workers whose server is a process of its own."""
        return self.workers[1::2]

    async def serving_pid(self, state: WorkerState) -> int | None:
        """See `Stage`. The manager knows the actor's process; the server says which one it is itself."""
        if state.name not in self.commands:
            return state.pid
        address = state.addresses.get(PRIMARY)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_SECONDS)) as session,
                session.get(f"http://{address}/health") as response,
            ):
                who = who_answered(await response.read())
                return who.pid if (who.worker, who.incarnation) == (state.name, state.incarnation) else None
        return None

    async def _put_stranger(self) -> None:
        """As its owner would: add the entry again whenever the router has forgotten it. Raises `DemoFailed`."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_SECONDS)) as session,
                session.post(f"{self.router.url}/workers", json={"url": self.foreign}) as response,
            ):
                response.raise_for_status()
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise DemoFailed(f"sglang-router did not take the foreign entry: {exc}") from exc

    # -------------------------------------------------------------- the run

    async def disturb(self, hunter: Hunter, show: Show) -> None:
        """See `Stage`."""
        options = self.options
        self._hunter = hunter
        faults = make_faults(options.seed, workers=self.workers, seconds=options.seconds, count=options.kills)
        self._arms = Arms(faults, self, hunter, show.note)
        await self._arms.run()

    def settled(self, *, well: bool) -> bool:
        """See `Stage`. To be asked again and again: it must have been so for a while."""
        now = time.monotonic()
        if not (well and all(program.works for program in self.programs)):
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        return self._calm_since is not None and now - self._calm_since >= CALM_SECONDS

    async def ended(self) -> Ended:
        """See `Stage`."""
        if self._watching is None or self._arms is None:
            raise DemoFailed("the run ended before it had begun")
        info = await self._watching.ask()
        if info.digest is None:
            raise DemoFailed("the controller does not say what it has folded")
        strikes = sum(fault.kind in STRIKES for fault in self._arms.faults)
        return Ended(
            live_sequence=info.sequence,
            live_digest=info.digest,
            kills_wanted=strikes,
            faults_wanted=len(self._arms.faults) - strikes,
            disturbances=tuple(sorted(self._arms.disturbances, key=lambda one: one.at)),
            falls=tuple(fall for program in self.programs for fall in program.falls),
        )

    # -------------------------------------------------------------- the parts, as the arms want them

    def leader(self) -> Program | None:
        """See `Parts`."""
        return next((one for one in self.controllers if one.works and self._leads(one)), None)

    def standby(self) -> Program | None:
        """See `Parts`."""
        return next((one for one in self.controllers if one.works and not self._leads(one)), None)

    def _leads(self, program: Program) -> bool:
        leader = None if self._watching is None else self._watching.leader
        return leader is not None and leader.rpartition("-")[2] == str(program.pid)

    @property
    def takeovers(self) -> int:
        """See `Parts`."""
        return 0 if self._watching is None else self._watching.takeovers

    @property
    def nats_pid(self) -> int | None:
        """See `Parts`."""
        return self._server.pid

    async def nats_answers(self) -> bool:
        """See `Parts`."""
        port = int(self._url.rpartition(":")[2])
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    return (await reader.readline()).startswith(b"INFO")
                finally:
                    writer.close()
        return False

    async def manager_pid(self) -> int | None:
        """See `Parts`."""
        try:
            return (await self.manager.describe(ASK_SECONDS)).pid
        except RollbookError:
            return None

    def hunter(self, show: Show) -> Hunter:
        """See `Stage`."""
        return Hunter(self.find_victim, show.note, self._kill_actor)

    async def _kill_actor(self, worker: str) -> None:
        """Have Ray kill it. Raises `ProcessLookupError` if Ray has no such actor."""
        import ray

        def kill() -> None:
            ray.kill(find(host_name(FLEET, worker), NAMESPACE))

        try:
            await aside(self.manager.threads, kill, ASK_SECONDS, f"worker {worker!r}")
        except (ActorGone, ActorSilent) as exc:
            raise ProcessLookupError(str(exc)) from exc

    def stop_router(self) -> None:
        """See `Parts`."""
        self._signal_router(signal.SIGSTOP)

    def continue_router(self) -> None:
        """See `Parts`."""
        self._signal_router(signal.SIGCONT)

    def _signal_router(self, number: signal.Signals) -> None:
        if self.router.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.router.pid, number)

    async def router_answers(self) -> bool:
        """See `Parts`."""
        return await self.router.answers()

    async def kill_router(self) -> None:
        """See `Parts`."""
        await self.router.kill()

    async def start_router(self) -> None:
        """See `Parts`. The stranger's owner puts it back."""
        await self.router.start()
        await self._put_stranger()

    async def kill_node(self) -> None:
        """See `Parts`."""
        if self._node is None:
            return
        with contextlib.suppress(RollbookError):
            states = await self.manager.states(None, ASK_SECONDS)
            there = [state for state in states.values() if state.alive and state.node == SECOND_ADDRESS]
            if self._hunter is not None:
                for state in there:
                    self._hunter.died(state.name, state.incarnation, time.time())
        await self._node.kill()

    async def start_node(self) -> None:
        """See `Parts`. A node that Ray still takes for alive would be refused under the same address."""
        if self._node is not None:
            await self._node.gone()
            await self._node.start()
