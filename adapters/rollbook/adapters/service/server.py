"""The leader's side: a NATS micro service that lives as long as this process leads.

Each request is answered by a task of its own, so that a pass of minutes holds up no query. Whatever goes wrong in one
is told to whoever asked, and ends nothing here.

Whoever leads hears every question, and only who leads answers: a leader that was stopped or cut off keeps its
subscriptions until the server notices, and must not take the questions of its successor. When it runs on, it finds
them in its socket; by then its lease says that it does not lead. Where the lease was longer than the patience of who
asked, a pass begins only if somebody still listens for its reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec
import nats.errors
import nats.micro
import structlog
from nats.micro.request import Request as MicroRequest
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.service.frames import ALIVE, ALIVE_SECONDS, FRAME, PROGRESS, cut
from rollbook.adapters.service.messages import Answer, Asked, Problem, Update, Verb
from rollbook.events import Recorded, RollbookError
from rollbook.events.reasons import tellable
from rollbook.events.times import rfc3339
from rollbook.projections.ending import apart, end
from rollbook.projections.leading.controller import Companion, Leading
from rollbook.projections.looking.saved import Overtaken
from rollbook.projections.ports import Stored
from rollbook.projections.state.roster import Change

_log = structlog.get_logger(__name__)

MOST_AT_ONCE: Final = 32
"""Requests under way; more are refused, so that a loop of a script cannot drown the controller."""
LONGEST_SECONDS: Final = 3600.0
"""What a request may ask for as its deadline."""
LONGEST_MESSAGE: Final = 100_000
"""Letters of why there is no reply: NATS takes no message of more than a megabyte, unless it is told to."""
ECHO_SECONDS: Final = 10.0
"""For one's own message to come back from the server."""
STOP_SECONDS: Final = 2.0
"""To take the service back; a server that is gone has forgotten it anyway."""


class WrongRequest(RollbookError):
    """The request names something that is not there, or contradicts itself."""


Observer = Callable[[Recorded], None]


class Serving:
    """What the answers are made from."""

    def __init__(self, leading: Leading) -> None:
        self.leading = leading
        clock = leading.resources.clock
        self.since = rfc3339(clock.now())
        self._began = clock.monotonic()

    @property
    def uptime(self) -> float:
        """Seconds since the lanes began to act."""
        return self.leading.resources.clock.monotonic() - self._began

    @property
    def leads(self) -> bool:
        """Whether the lease is certainly held, as of this line [I7]."""
        return self.leading.resources.leadership.left() > 0

    def now(self) -> str:
        """RFC 3339, by this process's clock."""
        return rfc3339(self.leading.resources.clock.now())

    @contextlib.contextmanager
    def observing(self, observer: Observer) -> Generator[None]:
        """Hand every fact that is folded within the block to `observer`."""

        def witness(_: Stored, recorded: Recorded | None, __: Change) -> None:
            if recorded is not None:
                observer(recorded)

        forget = self.leading.projector.witness(witness)
        try:
            yield
        finally:
            forget()


Progress = Callable[[Update], Awaitable[None]]


class Handler(msgspec.Struct, frozen=True):
    """Who answers a verb. Made by `handler`, so that the types fit."""

    verb: Verb[Any, Any, Any]
    answer: Callable[[Serving, Any, Progress[Any]], Awaitable[Any]]


def handler(
    verb: Verb[Asked, Update, Answer], answer: Callable[[Serving, Asked, Progress[Update]], Awaitable[Answer]]
) -> Handler:
    """`answer` for `verb`. It may raise `RollbookError`, which whoever asked gets as a sentence."""
    return Handler(verb, answer)


def service(client: Client, handlers: Sequence[Handler]) -> Companion:
    """A companion of the controller that serves `handlers` on `client`."""

    async def serve(leading: Leading) -> None:
        serving = Serving(leading)
        tasks = _Tasks()
        micro = await _open(client, leading, [_Endpoint(client, serving, one, tasks) for one in handlers])
        try:
            await asyncio.Event().wait()
        finally:
            await apart(_close(micro))
            await tasks.end()

    return serve


def rollbook_version() -> str:
    """Of the installed package; `0.0.0` where it runs from its sources."""
    try:
        return version("rollbook")
    except PackageNotFoundError:
        return "0.0.0"


class _Tasks:
    """The answers under way."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    @property
    def full(self) -> bool:
        return len(self._running) >= MOST_AT_ONCE

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        await end(*self._running)


async def _open(client: Client, leading: Leading, endpoints: Sequence[_Endpoint]) -> Service:
    fleet = leading.policy.fleet
    number = re.match(r"\d+\.\d+\.\d+", rollbook_version())
    micro = await nats.micro.add_service(
        client,
        ServiceConfig(
            name=f"rollbook-{fleet}",
            version=number[0] if number else "0.0.0",
            description=f"The controller of fleet {fleet}",
            metadata={"owner": leading.owner, "epoch": str(leading.epoch)},
            queue_group=f"epoch-{leading.epoch}",  # of its own: in a common one a question goes to one of its members
        ),
    )
    for endpoint in endpoints:
        verb = endpoint.verb
        await micro.add_endpoint(EndpointConfig(verb.name, endpoint.handle, subject=verb.subject(fleet)))
    return micro


async def _close(micro: Service) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await micro.stop()
    except (TimeoutError, nats.errors.Error, OSError) as exc:
        _log.info("service.not_taken_back", reason=str(exc) or "no answer in time")


class _Endpoint:
    """One verb."""

    def __init__(self, client: Client, serving: Serving, handler: Handler, tasks: _Tasks) -> None:
        self.verb = handler.verb
        self._client = client
        self._serving = serving
        self._answer = handler.answer
        self._tasks = tasks
        self._decoder = msgspec.json.Decoder(handler.verb.request)

    async def handle(self, request: MicroRequest) -> None:
        """Called by the service for every request, one after the other; so it only starts the work."""
        if not self._serving.leads:
            _log.info("service.not_answered", verb=self.verb.name, reason="the lease is over: its next holder answers")
        elif self._tasks.full:
            text = f"the controller is at work on {MOST_AT_ONCE} requests already; try again"
            await self._problem(request, Problem("failed", text))
        else:
            self._tasks.start(self._work(request))

    async def _work(self, request: MicroRequest) -> None:
        try:
            if self.verb.acts and not await self._awaited(request):
                _log.info("service.not_begun", verb=self.verb.name, reason="nobody listens for the reply any more")
                return
            reply = msgspec.json.encode(await self._reply(request))
        except RollbookError as exc:
            await self._problem(request, _problem(exc))
        except TimeoutError:
            await self._problem(request, Problem("late", f"{self.verb.name}: not done within the time that was given"))
        except Exception as exc:  # noqa: BLE001 - a defect in one answer must not end the controller
            _log.exception("service.failed", verb=self.verb.name)
            text = f"{self.verb.name} failed in the controller: {type(exc).__name__}: {exc}; its log has the traceback"
            await self._problem(request, Problem("defect", text))
        else:
            for body, headers in cut(reply, self._client.max_payload):
                await self._send(request, body, headers)

    async def _reply(self, request: MicroRequest) -> Any:
        try:
            asked = self._decoder.decode(request.data or b"{}")
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise WrongRequest(f"{self.verb.name}: the request cannot be read: {exc}") from exc
        seconds = min(max(asked.deadline_seconds, 0.0), LONGEST_SECONDS)
        alive = asyncio.create_task(self._show_life(request))

        async def progress(update: Any) -> None:
            await self._send(request, msgspec.json.encode(update), {FRAME: PROGRESS})

        try:
            async with asyncio.timeout(seconds):
                return await self._answer(self._serving, asked, progress)
        finally:
            await end(alive)

    async def _awaited(self, request: MicroRequest) -> bool:
        """Whether somebody still listens for the reply: a sign of life that nobody hears comes back as a status.

        No clock is compared. What is sent to oneself after it comes back after that, since the server goes in order.
        (nats-py's `flush` would not do: its ping overtakes what is still to be written.)
        """
        first: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def take(_: bytes, __: bytes, ___: bytes, headers: bytes | None) -> None:
            if not first.done():
                first.set_result(headers)

        sink = await self._client.sink(take)
        try:
            reply = request._msg.reply  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - nowhere public
            await self._client.publish(reply, b"", reply=sink.subject, headers={FRAME: ALIVE})
            await self._client.publish(sink.subject)
            async with asyncio.timeout(ECHO_SECONDS):
                return await first is None
        except (TimeoutError, nats.errors.Error, OSError):
            return False  # nor could it be told what became of it
        finally:
            await sink.close()

    async def _show_life(self, request: MicroRequest) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await self._send(request, b"", {FRAME: ALIVE})

    async def _problem(self, request: MicroRequest, problem: Problem) -> None:
        headers = {"Nats-Service-Error": problem.kind, "Nats-Service-Error-Code": _CODES[problem.kind]}
        told = msgspec.structs.replace(problem, message=tellable(problem.message, LONGEST_MESSAGE))
        await self._send(request, msgspec.json.encode(told), headers)

    async def _send(self, request: MicroRequest, body: bytes, headers: dict[str, str]) -> None:
        """To who asked; if that cannot be done, nobody needs to know but the log."""
        try:
            await request.respond(body, headers=headers)
        except (nats.errors.Error, OSError, ValueError) as exc:
            _log.info("service.reply_not_sent", verb=self.verb.name, reason=str(exc))


_CODES: Final = {"usage": "400", "overtaken": "409", "failed": "503", "late": "504", "defect": "500"}


def _problem(exc: RollbookError) -> Problem:
    match exc:
        case WrongRequest():
            return Problem("usage", str(exc))
        case Overtaken():
            return Problem("overtaken", str(exc))
        case _:
            return Problem("failed", str(exc))
