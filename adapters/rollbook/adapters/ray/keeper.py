"""Keeps one worker alive: makes its process, gives it its number, sees it serve, notices its end, begins again.

It begins again by itself, or, where a recoverer restarts the worker, when it is told to.

A life is over when Ray says that its actor is dead, when the worker says that it ended, or when it did not come to
serve in time. What cannot be told, because the log or Ray does not answer, is waited for: nobody is declared dead for
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rollbook.adapters.ray.border import AGAIN_SECONDS, ActorGone, ActorSilent, call, cause_of_death, translated
from rollbook.adapters.ray.guest import PRIMARY
from rollbook.adapters.ray.host import Identity
from rollbook.adapters.ray.hosts import LOOK_SECONDS, Hosts
from rollbook.adapters.ray.records import Record
from rollbook.adapters.ray.scribe import Scribe
from rollbook.adapters.ray.spec import WorkerState
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.events import Evidence, RecoveryFailed, RecoveryStarted, RollbookError, WorkerDown, WorkerUp
from rollbook.projections.ports import Readiness
from rollbook.projections.recovery.ports import NotStarted, Termination

T = TypeVar("T")

STABLE_SECONDS: Final = 10.0
"""A life that served this long was a good one: the next begins at once, and restarts are counted anew."""
BACKOFF_FIRST: Final = 0.2
"""Seconds; upper bound of the random wait after the first life in a row that was no good one. Doubles."""
BACKOFF_MOST: Final = 15.0
_WATCH_SECONDS: Final = 20.0
"""One long poll at the host. It ends by itself, so that a manager which is gone leaves no thread blocked there."""
_PROBE_FIRST: Final = 0.05
_PROBE_MOST: Final = 1.0
"""Seconds between two readiness probes: the first, and, doubling, the most."""

_SHORTLY: Final = 0.05
_OVER: Final = frozenset({"down", "given_up", "stopped"})

_log = structlog.get_logger()


class _Over(Exception):
    """A life is over."""

    def __init__(self, evidence: Evidence, reason: str, *, orderly: bool = False) -> None:
        super().__init__(reason)
        self.evidence: Evidence = evidence
        self.reason = reason
        self.orderly = orderly
        """Whether the process is ending by itself, and is given the time for it."""


class Keeper:
    """One worker. `run` goes on until it is cancelled, or until the worker is given up."""

    def __init__(
        self,
        record: Record,
        hosts: Hosts,
        scribe: Scribe,
        readiness: Readiness,
        save: Callable[[Record], Awaitable[None]],
    ) -> None:
        self.record = record
        self.state = WorkerState(
            name=record.spec.name,
            stage="creating",
            incarnation=record.incarnation,
            identity=record.spec.identity_of(record.incarnation),
        )
        self._spec = record.spec
        self._asked = f"worker {record.spec.name!r}"
        self._hosts = hosts
        self._scribe = scribe
        self._readiness = readiness
        self._save = save
        self._handle: Any = None
        self._open = False
        """Whether the log knows, or is about to know, a life that is not over."""
        self._wanted = asyncio.Event()
        """A life that is down is to be followed by another one; for who is told."""
        self._lives = 0
        """How many were begun here."""
        self._ordered: Future[_Over] | None = None
        """Resolved to end the life that goes on; None if none does."""
        self._concluded = asyncio.Event()
        """Whether its process is gone."""
        self._served: float | None = None
        """Monotonic moment at which the present life came to serve."""

    async def run(self) -> None:
        """Take over the process that is alive, or make one; then one life after the other."""
        died = await self._take_over()
        if self.told:
            await self._run_told(died=died)
        else:
            await self._run_by_itself(int(died))

    @property
    def told(self) -> bool:
        """Whether it begins no life after the first one unless it is told to."""
        return self._spec.restart == "recoverer"

    async def start(self) -> bool:
        """Begin a life if none goes on, and wait until it has its number; whether it was begun by this call.

        Only for who is told. Raises `NotStarted` if it ends before that.
        """
        begun = self.state.stage in _OVER
        life = self._lives + begun
        if begun:
            self._wanted.set()
        while not self.state.alive:
            if self.state.stage in _OVER and self._lives >= life:
                raise NotStarted(f"{self._asked} did not come to have a life: {self.state.reason}")
            await asyncio.sleep(_SHORTLY)
        return begun

    async def terminate(self, expected: int, reason: str = "it was terminated to be replaced") -> Termination:
        """Kill the life of this number, and wait for its end."""
        if not self.state.alive or self.state.incarnation < expected:
            return Termination.ALREADY_GONE
        if self.state.incarnation > expected:
            return Termination.STALE
        await self._order(_Over("exited", reason))
        return Termination.TERMINATED

    async def halt(self, reason: str) -> None:
        """End its life in order, as planned. Only for who is told: another one would begin anew."""
        handle = self._handle
        if handle is not None and self.state.stage not in _OVER:
            ending = asyncio.ensure_future(self._order(_Over("planned", reason, orderly=True)))
            # Ordered first: otherwise the worker's own word that it ended would come before it.
            await asyncio.sleep(0)
            with contextlib.suppress(RollbookError):
                await call(handle.halt.remote(reason), LOOK_SECONDS, self._asked)
            await ending

    async def _order(self, over: _Over) -> None:
        """End the life that goes on, for the reason that `over` gives, and wait until its process is gone."""
        ordered = self._ordered
        if ordered is None:
            return
        if not ordered.done():
            ordered.set_result(over)
        await self._concluded.wait()

    async def _run_told(self, *, died: bool) -> None:
        """The first life, and each further one when it is wanted."""
        if died:
            self._note(stage="down", reason="its process was gone when its manager began")
        while True:
            if self.state.stage == "down":
                await self._wanted.wait()
                self._note(restarts=self.state.restarts + 1)
            self._wanted.clear()
            self._lives += 1
            await self._conclude(await self._live(0), 0)

    async def _run_by_itself(self, attempt: int) -> None:
        while True:
            over = await self._live(attempt)
            good = self._served is not None and time.monotonic() - self._served >= STABLE_SECONDS
            await self._conclude(over, attempt)
            attempt = 1 if good else attempt + 1
            if self._spec.max_restarts is not None and attempt > self._spec.max_restarts:
                _log.error("manager.worker.given_up", worker=self._spec.name, restarts=attempt - 1, reason=over.reason)
                self._note(stage="given_up", reason=f"{over.reason}; given up after {attempt - 1} restarts in a row")
                return
            if not good:
                bound = min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(attempt - 1, 10))
                await asyncio.sleep(random.uniform(0, bound))  # noqa: S311 - jitter
            self._note(restarts=self.state.restarts + 1)

    async def stop(self, reason: str) -> None:
        """Once `run` was cancelled: say that the worker is down as planned, and end its process."""
        if self._open:
            self._open = False
            self._scribe.say(WorkerDown, evidence="planned", reason=reason)
        self._note(stage="stopped", reason=reason)
        if self._handle is not None:
            with contextlib.suppress(RollbookError):
                await call(self._handle.halt.remote(reason), LOOK_SECONDS, self._asked)
            with contextlib.suppress(RollbookError):
                await self._hosts.end(self._handle, self._spec.name, self._spec.stop_seconds)
            self._handle = None

    async def _take_over(self) -> bool:
        """Find the process that an earlier manager made. If it is gone, its life is over; say so, and return True."""
        while True:
            try:
                self._handle = await self._hosts.find(self._spec.name)
            except ActorSilent as exc:
                _log.warning("manager.worker.unknown", worker=self._spec.name, error=str(exc))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                break
        died = self._handle is None and self.record.incarnation > 0
        if died:
            self._scribe.resume(self.record.incarnation)
            self._scribe.say(WorkerDown, evidence="actor_dead", reason="its process was gone when its manager began")
        return died

    async def _live(self, attempt: int) -> _Over:
        """One life, from its process to its end."""
        self._served = None
        try:
            if self._handle is None:
                if attempt:
                    self._scribe.say(RecoveryStarted, attempt=attempt)
                self._note(stage="creating", reason="Ray has not started its process yet")
                self._handle = await self._hosts.create(self._spec)
            death = asyncio.ensure_future(self._death(self._handle))
            try:
                await self._come_to_serve(self._handle, death)
                return await death
            finally:
                death.cancel()
        except _Over as over:
            return over
        except RollbookError as exc:
            return _Over("exited", str(exc))

    async def _come_to_serve(self, handle: Any, death: Future[_Over]) -> None:
        """Number, start, probe. Raises `_Over` if it dies meanwhile, or is not ready in time."""
        spec = self._spec
        answer = await self._ask(handle.identity.remote, death, spec.process_seconds)
        who = msgspec.json.decode(answer, type=Identity)
        self._note(pid=who.pid, node=who.node)
        self._open = True
        number = who.incarnation
        if number:
            self._scribe.resume(number)
        else:
            self._note(stage="waiting", reason="the log has not numbered this life yet")
            number = await _unless(death, self._scribe.begin(pid=who.pid, node=who.node))
        await self._keep(incarnation=number)
        identity = spec.identity_of(number)
        self._note(stage="starting", incarnation=number, addresses={}, identity=identity, reason="it is starting")
        until = time.monotonic() + spec.start_seconds
        former = self.record.port
        ports = [former, spec.port] if spec.keep_port and former not in {0, spec.port} else [spec.port]
        named = await self._ask(lambda: handle.begin.remote(number, ports), death, spec.start_seconds)
        addresses = {name: parse_host_and_port(text) for name, text in named.items()}
        self._note(addresses=addresses)
        await self._keep(port=addresses[PRIMARY].port)
        await self._ready(f"http://{addresses[PRIMARY]}", death, until)
        self._served = time.monotonic()
        self._note(stage="serving", reason="")
        self._scribe.say(WorkerUp)
        _log.info("manager.worker.up", worker=spec.name, incarnation=number, address=str(addresses[PRIMARY]))

    async def _ask(self, method: Callable[[], Awaitable[T]], death: Future[_Over], seconds: float) -> T:
        """What the host answers, however often Ray's connection to it breaks. Raises `_Over`."""
        until = time.monotonic() + seconds
        while True:
            try:
                return await _unless(death, call(method(), until - time.monotonic(), self._asked))
            except ActorGone as exc:
                raise _Over("actor_dead", str(exc)) from exc
            except ActorSilent as exc:
                if time.monotonic() + AGAIN_SECONDS >= until:
                    raise _Over("exited", f"no answer within {seconds:g} s, and it is killed: {exc}") from exc
                await asyncio.sleep(AGAIN_SECONDS)
            except RollbookError as exc:
                raise _Over("exited", str(exc)) from exc

    async def _ready(self, url: str, death: Future[_Over], until: float) -> None:
        """Probe until it answers. Raises `_Over`."""
        if self._spec.ready_path is None:
            return
        wait = _PROBE_FIRST
        while True:
            asked = self._readiness.check(url, self._spec.ready_path, self.state.identity)
            if (reason := await _unless(death, asked)) is None:
                return
            self._note(reason=reason)
            if time.monotonic() + wait >= until:
                told = f"it was not ready within {self._spec.start_seconds:g} s, and it is killed: {reason}"
                raise _Over("exited", told)
            await _unless(death, asyncio.sleep(wait))
            wait = min(_PROBE_MOST, wait * 2)

    async def _death(self, handle: Any) -> _Over:
        """How its life ends: by what was ordered here, or by itself."""
        self._concluded = asyncio.Event()
        ordered = self._ordered = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(self._watched(handle))
        either: list[Future[_Over]] = [ordered, watching]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return ordered.result() if ordered.done() else watching.result()
        finally:
            watching.cancel()

    async def _watched(self, handle: Any) -> _Over:
        """How it ends by itself. Has no deadline: only Ray's verdict or the worker's own word is an end."""
        while True:
            try:
                reason = await handle.watch.remote(_WATCH_SECONDS)
            except Exception as exc:  # noqa: BLE001 - translated at once
                error = translated(exc, self._asked, _WATCH_SECONDS)
                if isinstance(error, ActorGone):
                    return _Over("actor_dead", cause_of_death(exc))
                _log.debug("manager.watch.broke", worker=self._spec.name, error=str(error))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                if reason is not None:
                    return _Over("exited", reason, orderly=True)

    async def _conclude(self, over: _Over, attempt: int) -> None:
        """Say what ended, and see that the process is gone: its name, its port and its GPUs are needed again."""
        _log.warning(
            "manager.worker.down",
            worker=self._spec.name,
            incarnation=self.state.incarnation,
            evidence=over.evidence,
            reason=over.reason,
        )
        if self._open:
            self._open = False
            self._scribe.say(WorkerDown, evidence=over.evidence, reason=over.reason)
        if attempt and self._served is None:
            self._scribe.say(RecoveryFailed, attempt=attempt, reason=over.reason)
        self._note(stage="down", reason=over.reason)
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(RollbookError):
                await self._hosts.end(handle, self._spec.name, self._spec.stop_seconds if over.orderly else 0)
        self._ordered = None
        self._concluded.set()

    async def _keep(self, **changes: int) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)
        await self._save(self.record)

    def _note(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


async def _unless(death: Future[_Over], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, unless death comes first. Raises `_Over` then."""
    task = asyncio.create_task(work)
    either: list[Future[Any]] = [task, death]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise death.result()
        return task.result()
    finally:
        task.cancel()
