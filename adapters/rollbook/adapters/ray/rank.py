"""One worker of a cell: the steps of its start, how its end is noticed, and what is said of it. The keeper orders them.

What cannot be told, because the log or Ray does not answer, is waited for: nobody is declared dead for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rollbook.adapters.publisher import Receipt
from rollbook.adapters.ray.border import AGAIN_SECONDS, ActorGone, ActorSilent, call, cause_of_death, translated
from rollbook.adapters.ray.capacity import needed
from rollbook.adapters.ray.host import Identity
from rollbook.adapters.ray.hosts import LOOK_SECONDS, Hosts
from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.ray.scribe import LONGEST_REASON, Scribe
from rollbook.adapters.ray.seat import Neighbour, Seat
from rollbook.adapters.ray.spec import Spec, WorkerState
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.events import Evidence, RollbookError, WorkerDown, WorkerUp
from rollbook.events.reasons import tellable
from rollbook.projections.ports import HostAndPort, Readiness

T = TypeVar("T")

_WATCH_SECONDS: Final = 20.0
"""One long poll at the host. It ends by itself, so that a manager which is gone leaves no thread blocked there."""
_PROBE_FIRST: Final = 0.05
_PROBE_MOST: Final = 1.0
"""Seconds between two readiness probes: the first, and, doubling, the most."""

_log = structlog.get_logger()


class Over(Exception):
    """The life of a cell is over."""

    def __init__(
        self,
        worker: str,
        evidence: Evidence,
        reason: str,
        *,
        gone: bool = False,
        orderly: bool = False,
        kill: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(reason)
        self.worker = worker
        """Whose end it was; empty for the end of all of them at once."""
        self.evidence: Evidence = evidence
        self.reason = reason
        self.gone = gone
        """Whether Ray says that its process is gone."""
        self.orderly = orderly
        """Whether its process is ending by itself, and is given the time for it."""
        self.kill = kill
        """Whether the others of its cell get no time either: who is replaced may hang."""
        self.silent = silent
        """Whether nothing was heard of it in time."""


class Rank:
    """One worker, life after life."""

    def __init__(self, spec: Spec, hosts: Hosts, scribe: Scribe, readiness: Readiness, incarnation: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.scribe = scribe
        self.state = WorkerState(
            name=spec.name,
            stage="creating",
            pool=spec.place.pool,
            incarnation=incarnation,
            identity=spec.identity_of(incarnation),
        )
        self.process = 0
        """Which one it is, counted here; another one after every start."""
        self.handle: Any = None
        self._hosts = hosts
        self._readiness = readiness
        self._asked = f"worker {spec.name!r}"
        self.known = bool(incarnation)
        """Whether the log knows, or is about to know, a life of it."""
        self._open = False
        """Whether such a life is not over."""
        self._until = 0.0

    # -------------------------------------------------------------- the steps of a start

    async def find(self) -> bool:
        """Whether an earlier manager made a process that is there; waits until Ray can say so."""
        while True:
            try:
                self.handle = await self._hosts.find(self.name)
            except ActorSilent as exc:
                _log.warning("manager.worker.unknown", worker=self.name, error=str(exc))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return self.handle is not None

    async def make(self, room: Any | None) -> None:
        """Have its process made, unless there is one."""
        self.process += 1
        if self.handle is None:
            needs = f", which needs {asked}" if (asked := needed(self.spec)) else ""
            self.note(stage="creating", reason=f"Ray has not started its process yet{needs}")
            self.handle = await self._hosts.create(self.spec, room)

    async def identity(self, most: float) -> Identity:
        """Who the process is, once it runs. It has its `process_seconds` for that, and no more than `most` seconds."""
        answer = await self._ask(self.handle.identity.remote, min(self.spec.process_seconds, most))
        who = msgspec.json.decode(answer, type=Identity)
        self.note(pid=who.pid, node=who.node)
        return who

    async def number(self, who: Identity, cell_incarnation: int) -> int:
        """Have the log number its life, unless it is; the number."""
        self._open = self.known = True
        number = who.incarnation
        if number:
            self.scribe.resume(number, cell_incarnation)
        else:
            self.note(stage="waiting", unsure=False, reason="the log has not numbered this life yet")
            number = await self.scribe.begin(cell_incarnation, pid=who.pid, node=who.node)
            await self._ask(lambda: self.handle.number.remote(number, cell_incarnation), self.spec.start_seconds)
        self.note(
            stage="starting",
            unsure=False,
            incarnation=number,
            cell_incarnation=cell_incarnation,
            addresses={},
            urls={},
            identity=self.spec.identity_of(number),
            reason="it is starting",
        )
        return number

    async def reserve(self, former: dict[str, int]) -> Neighbour:
        """Have its ports chosen on its node; where it will be reached. Its time to start begins: all have numbers."""
        self._until = _now() + self.spec.start_seconds
        ports = await self._ask(lambda: self.handle.reserve.remote(former), self.spec.start_seconds, self._until)
        addresses = {kind: HostAndPort(self.state.node or "", port) for kind, port in ports.items()}
        return Neighbour(addresses, self.spec.urls)

    async def begin(self, seat: Seat) -> None:
        """Have its code started, and wait until it is ready."""
        self.note(reason="its code is starting")
        data = msgspec.json.encode(seat)
        named: dict[str, str] | None = None
        while named is None:
            named = await self._ask(
                lambda: self.handle.begin.remote(data, _WATCH_SECONDS), self.spec.start_seconds, self._until
            )
        told = {kind: parse_host_and_port(text) for kind, text in named.items()}
        neighbour = Neighbour(seat.own | told, self.spec.urls)
        urls = {kind: neighbour.url(kind) for kind in neighbour.addresses}
        self.note(addresses=neighbour.addresses, urls=urls)
        await self._ready(urls.get(PRIMARY, ""))

    def up(self) -> None:
        """All of its cell is ready."""
        self.note(stage="serving", reason="")
        self.scribe.say(WorkerUp)
        address = self.state.addresses.get(PRIMARY)
        _log.info("manager.worker.up", worker=self.name, incarnation=self.state.incarnation, address=str(address))

    # -------------------------------------------------------------- its end

    async def watched(self) -> Over:
        """How it ends by itself. Has no deadline: only Ray's verdict or the worker's own word is an end."""
        while True:
            try:
                reason = await self.handle.watch.remote(_WATCH_SECONDS)
            except Exception as exc:  # noqa: BLE001 - translated at once
                error = translated(exc, self._asked, _WATCH_SECONDS)
                if isinstance(error, ActorGone):
                    return Over(self.name, "actor_dead", cause_of_death(exc), gone=True)
                _log.debug("manager.watch.broke", worker=self.name, error=str(error))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                if reason is not None:
                    return Over(self.name, "exited", reason, orderly=True)

    async def halt(self, reason: str) -> None:
        """Ask its process to end in order. It may be gone, or silent."""
        if self.handle is not None:
            with contextlib.suppress(RollbookError):
                await call(self.handle.halt.remote(reason), LOOK_SECONDS, self._asked)

    def resume(self, incarnation: int, cell_incarnation: int) -> None:
        """An earlier manager told the log of this life (0: of none), and not of its end."""
        self.scribe.resume(incarnation, cell_incarnation)
        self._open = bool(incarnation)
        self.known = self.known or self._open
        if self._open:
            self.note(unsure=True, reason="its manager was restarted, and it has not said yet which life it is")

    def over(self, evidence: Evidence, reason: str, *, stopped: bool) -> Receipt[Any] | None:
        """Say that its life is over; None if the log was told before, or knows of none."""
        receipt = None
        if not self.state.over:
            life = self.state.incarnation
            _log.warning("manager.worker.down", worker=self.name, incarnation=life, evidence=evidence, reason=reason)
        if self._open:
            self._open = False
            receipt = self.scribe.say(WorkerDown, evidence=evidence, reason=reason)
        self.note(stage="stopped" if stopped else "down", unsure=False, reason=reason)
        return receipt

    async def end(self, seconds: float) -> None:
        """See that the process is gone, after `seconds` for ending by itself: its name is needed again.

        Waits until Ray takes the order: who was not killed would be taken for the next life, and for one that goes on.
        """
        handle, self.handle = self.handle, None
        told = False
        while True:
            try:
                # One that was being made when its cell's start failed has a name, and nobody has its handle.
                handle = handle or await self._hosts.find(self.name)
                if handle is not None:
                    await self._hosts.end(handle, self.name, seconds)
            except RollbookError as exc:
                if not told:
                    told = True
                    _log.warning("manager.worker.not_ended", worker=self.name, error=str(exc))
                seconds = 0
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    def note(self, **changes: Any) -> None:
        """Change its state, which is asked for with those of all others: a reason that cannot be written hides them."""
        if "reason" in changes:
            changes["reason"] = tellable(changes["reason"], LONGEST_REASON)
        self.state = msgspec.structs.replace(self.state, **changes)

    # -------------------------------------------------------------- asking

    async def _ask(self, method: Callable[[], Awaitable[T]], seconds: float, until: float | None = None) -> T:
        """What the host answers, however often Ray's connection to it breaks. Raises `Over` after `seconds`.

        `until` is when these are over, if they began before.
        """
        until = _now() + seconds if until is None else until
        while True:
            try:
                return await call(method(), until - _now(), self._asked)
            except ActorGone as exc:
                raise Over(self.name, "actor_dead", str(exc), gone=True) from exc
            except ActorSilent as exc:
                if _now() + AGAIN_SECONDS >= until:
                    told = f"no answer within {seconds:g} s, and it is killed: {exc}"
                    raise Over(self.name, "exited", told, silent=True) from exc
                await asyncio.sleep(AGAIN_SECONDS)
            except RollbookError as exc:
                raise Over(self.name, "exited", str(exc)) from exc

    async def _ready(self, url: str) -> None:
        """Probe until it answers. Raises `Over`."""
        if self.spec.ready_path is None:
            return
        wait = _PROBE_FIRST
        while (reason := await self._readiness.check(url, self.spec.ready_path, self.state.identity)) is not None:
            self.note(reason=reason)
            if self._left() <= wait:
                told = f"it was not ready within {self.spec.start_seconds:g} s, and it is killed: {reason}"
                raise Over(self.name, "exited", told)
            await asyncio.sleep(wait)
            wait = min(_PROBE_MOST, wait * 2)

    def _left(self) -> float:
        """Seconds of its time to start."""
        return self._until - _now()


def _now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()
