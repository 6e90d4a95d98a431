"""Waiting until workers are routed, or gone: for a trainer's code before it starts, and for `rollbook wait`.

It follows the log, where every registration's outcome stands, and asks no proxy. Which pools a proxy serves is asked of
the controller once; where none answers, a worker counts as routed when it is registered anywhere. Fleet and server come
from ROLLBOOK_FLEET and ROLLBOOK_NATS_URL (with its credentials) where they are not given.

    wait_routed(pool="rollout", at_least=8, timeout=300)
    await async_wait_routed(pool="rollout", at_least=8, timeout=300)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import kept_state
from rollbook.adapters.service.client import Controllers, ControllerSilent, NoController, Refusal
from rollbook.adapters.service.frames import BrokenReply
from rollbook.adapters.service.messages import INFO, InfoRequest
from rollbook.events import Codec, RollbookError, validate_name
from rollbook.projections.ending import end
from rollbook.projections.log.projector import Projector
from rollbook.projections.looking.waiting import Goal, Pools, Progress, look
from rollbook.projections.ports import LogUnavailable

LEAST_SECONDS: Final = 0.05
"""Between two looks: facts arrive in crowds."""
ASK_SECONDS: Final = 5.0
"""For the controller to say who it is, and between two tries while there is none."""

_P = ParamSpec("_P")

Watcher = Callable[[Progress], None]
"""Told how far it is whenever that changes. Must not block."""


class NotInTime(RollbookError):
    """The time is over, and it is not so."""

    def __init__(self, goal: Goal, timeout: float, progress: Progress | None, trouble: str) -> None:
        self.progress = progress
        self.missing: dict[str, str] = {} if progress is None else progress.missing
        """Worker → why it is missing."""
        if progress is None:
            text = f"not {goal.state} within {timeout:g} s: {trouble}"
        else:
            lines = [f"  {name}: {reason}" for name, reason in sorted(self.missing.items())]
            text = "\n".join([f"{progress} {goal.state} within {timeout:g} s, at sequence {progress.sequence}", *lines])
        super().__init__(text)


async def async_wait_routed(
    *,
    pool: str | None = None,
    worker: str | None = None,
    incarnation: int | None = None,
    at_least: int | None = None,
    timeout: float = 300.0,
    fleet: str | None = None,
    connection: Connection | str | None = None,
) -> Progress:
    """Wait until workers serve and are registered at every proxy that serves their pool.

    Those of `pool` (of every pool if None): `at_least` so many, or else all that the log knows, and one at the least.
    Or one `worker`, in its life `incarnation` or a later one. `timeout` is in seconds.

    Raises `NotInTime`, whose `missing` gives the reason for each worker; `WrongGoal`; `NotAuthorised`; or
    `RollbookError` if fleet or server are neither given nor in the environment.
    """
    goal = Goal(state="routed", pool=pool, at_least=at_least, worker=worker, incarnation=incarnation)
    return await _wait(goal, timeout, fleet, connection)


async def async_wait_gone(
    *,
    pool: str | None = None,
    worker: str | None = None,
    incarnation: int | None = None,
    timeout: float = 300.0,
    fleet: str | None = None,
    connection: Connection | str | None = None,
) -> Progress:
    """Wait until no proxy has anything left of them, by the log: of `pool`, of one `worker`, or of its lives so far.

    `incarnation` means this life and all before it, so that a new life of the worker may be there already. Otherwise as
    `async_wait_routed`.
    """
    goal = Goal(state="gone", pool=pool, worker=worker, incarnation=incarnation)
    return await _wait(goal, timeout, fleet, connection)


def _blocking(waiting: Callable[_P, Coroutine[Any, Any, Progress]]) -> Callable[_P, Progress]:
    @functools.wraps(waiting)
    def wait(*args: _P.args, **kwargs: _P.kwargs) -> Progress:
        return asyncio.run(waiting(*args, **kwargs))

    wait.__name__ = wait.__qualname__ = waiting.__name__.removeprefix("async_")
    return wait


wait_routed = _blocking(async_wait_routed)
"""The same for code without an event loop: it blocks. On the thread of a loop use `async_wait_routed`."""
wait_gone = _blocking(async_wait_gone)
"""The same for code without an event loop, likewise."""


async def _wait(goal: Goal, timeout: float, fleet: str | None, connection: Connection | str | None) -> Progress:
    if fleet is None:
        fleet = os.environ.get("ROLLBOOK_FLEET")
        if not fleet:
            raise RollbookError("ROLLBOOK_FLEET is not set (for example math-rl), and no fleet was given")
    if connection is None:
        if not os.environ.get("ROLLBOOK_NATS_URL"):
            raise RollbookError(
                "ROLLBOOK_NATS_URL is not set (for example nats://host:4222), and no connection was given"
            )
        connection = Connection.from_env(os.environ)
    elif isinstance(connection, str):
        connection = Connection(url=connection)
    return await wait_for(goal, timeout, fleet, connection)


async def wait_for(
    goal: Goal,
    timeout: float,
    fleet: str,
    connection: Connection,
    *,
    pools: Pools | None = None,
    watcher: Watcher | None = None,
) -> Progress:
    """Wait for `goal` at most `timeout` seconds. `pools`, where they are known, need no controller.

    A server that is not there yet, and a fleet that has no log yet, are waited for. Raises `NotInTime`.
    """
    validate_name("fleet", fleet)
    waiting = _Waiting(goal, fleet, pools, watcher)
    try:
        async with asyncio.timeout(timeout):
            while True:
                try:
                    return await waiting.follow(connection)
                except LogUnavailable as exc:
                    waiting.trouble = str(exc)
                    await asyncio.sleep(ASK_SECONDS / 5)
    except TimeoutError as exc:
        raise NotInTime(goal, timeout, waiting.progress, waiting.trouble or waiting.stage) from exc


class _Waiting:
    """One wait, over as many connections as it takes."""

    def __init__(self, goal: Goal, fleet: str, pools: Pools | None, watcher: Watcher | None) -> None:
        self.progress: Progress | None = None
        self.trouble: str | None = None
        """What failed last."""
        self.stage = "there was no time to ask anybody"
        self._goal = goal
        self._fleet = fleet
        self._pools = pools
        self._watcher = watcher
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        """Set once the controller has answered, or there is none: before that nobody knows what must be registered."""

    async def follow(self, connection: Connection) -> Progress:
        """Fold the log until the goal is reached. Raises `LogUnavailable`."""
        self.stage = f"no NATS server has answered at {connection.url}; start it, or correct the URL"
        client = await connect(connection, name="rollbook-wait")
        self.stage = f"the log at {connection.url} could not be read to its end in that time"
        try:
            log = JetStreamLog(client, self._fleet, direct=True)
            state = await kept_state(client, self._fleet, log)
            self.trouble = None
            projector = Projector(log, Codec(self._fleet), SystemClock(), state)
            projector.witness(lambda *_: self._changed.set())
            return await self._reach(client, projector)
        finally:
            await client.close()

    async def _reach(self, client: Client, projector: Projector) -> Progress:
        folding = asyncio.create_task(projector.run())
        asking = asyncio.create_task(self._ask(client))
        caught_up = asyncio.create_task(projector.caught_up())
        reaching = asyncio.create_task(self._look(projector, caught_up))
        try:
            await asyncio.wait([folding, reaching, asking], return_when=asyncio.FIRST_COMPLETED)
            for task in (folding, asking):
                if task.done():
                    task.result()
            return await reaching
        finally:
            await end(folding, asking, caught_up, reaching)

    async def _ask(self, client: Client) -> None:
        """Ask the controller which pools each proxy serves, until one answers; then wait for ever."""
        controllers = Controllers(client, self._fleet)
        while self._pools is None:
            with contextlib.suppress(NoController, ControllerSilent, Refusal, BrokenReply, NotPermitted):
                info = await controllers.ask(INFO, InfoRequest(deadline_seconds=ASK_SECONDS))
                self._pools = info.proxies
                break
            self._asked.set()
            await asyncio.sleep(ASK_SECONDS)
        self._asked.set()
        self._changed.set()
        await asyncio.Event().wait()

    async def _look(self, projector: Projector, caught_up: asyncio.Task[None]) -> Progress:
        await caught_up
        await self._asked.wait()
        while True:
            self._changed.clear()
            began = time.monotonic()
            progress = look(projector.state, self._goal, self._pools)
            if self._watcher is not None and (self.progress is None or _told(progress) != _told(self.progress)):
                self._watcher(progress)
            self.progress = progress
            if progress.reached:
                return progress
            await self._changed.wait()
            await asyncio.sleep(max(0.0, LEAST_SECONDS - (time.monotonic() - began)))


def _told(progress: Progress) -> tuple[object, ...]:
    return progress.there, progress.missing, progress.wanted
