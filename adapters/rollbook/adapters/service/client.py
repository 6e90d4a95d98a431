"""The asking side: one question to the controller of a fleet, its progress, and its reply.

::

    RollbookError
    ├── NoController      nobody answers for the fleet: no controller runs, or it does not lead yet
    ├── ControllerSilent  one is there, or was, and says nothing any more
    └── Refusal           it answered that it cannot
        └── BadRequest    because of what was asked
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeAlias

import msgspec
import nats.errors
from nats.aio.msg import Msg

from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.adapters.service.frames import ALIVE, ALIVE_SECONDS, FRAME, PROGRESS, BrokenReply, Joining
from rollbook.adapters.service.messages import Answer, Asked, Problem, Update, Verb
from rollbook.events import RollbookError

SILENCE_SECONDS: Final = 5 * ALIVE_SECONDS
"""Without any sign of life, after which a controller is taken to be stuck or gone."""
GRACE_SECONDS: Final = 5.0
"""Beyond the request's own deadline, for the reply to arrive."""

_NO_RESPONDERS: Final = "503"

_Inbox: TypeAlias = asyncio.Queue[Msg | NotPermitted]


class NoController(RollbookError):
    """Nobody answers for the fleet."""

    def __init__(self, fleet: str) -> None:
        super().__init__(f"no controller of fleet {fleet!r} answers on this NATS server; start one with `rollbook up`")


class ControllerSilent(RollbookError):
    """It says nothing any more."""


class Refusal(RollbookError):
    """It answered that it cannot."""


class BadRequest(Refusal):
    """What was asked cannot be."""


class Controllers:
    """Asks the controller of one fleet. Belongs to the client's loop."""

    def __init__(self, client: Client, fleet: str) -> None:
        self._client = client
        self._fleet = fleet

    async def ask(
        self,
        verb: Verb[Asked, Update, Answer],
        request: Asked,
        progress: Callable[[Update], None] | None = None,
        *,
        silence: float = SILENCE_SECONDS,
    ) -> Answer:
        """The reply. `progress` is called for every message on the way. `silence` (seconds): how long nothing may come.

        Raises `NoController`, `ControllerSilent`, `Refusal`, `BrokenReply`, or `NotPermitted` if NATS refuses to ask.
        """
        joining = Joining()
        try:
            async with (
                asyncio.timeout(request.deadline_seconds + GRACE_SECONDS),
                self._question(verb, request) as inbox,
            ):
                while True:
                    message = await self._next(inbox, verb, silence)
                    body = self._take(message, verb, joining, progress)
                    if body is not None:
                        return self._decode(body, verb.reply)
        except TimeoutError as exc:
            seconds = request.deadline_seconds
            msg = f"the controller of fleet {self._fleet!r} has not finished `{verb.name}` within {seconds:g} s"
            raise ControllerSilent(msg) from exc
        except (nats.errors.Error, OSError) as exc:
            msg = f"`{verb.name}` could not be asked: {str(exc) or type(exc).__name__}; try again"
            raise ControllerSilent(msg) from exc

    @contextlib.asynccontextmanager
    async def _question(self, verb: Verb[Asked, Any, Any], request: Asked) -> AsyncGenerator[_Inbox]:
        inbox: _Inbox = asyncio.Queue()
        asked, reply = verb.subject(self._fleet), self._client.new_inbox()

        def denied(subject: str, why: NotPermitted) -> None:
            if subject == asked.lower():
                inbox.put_nowait(why)

        subscription = await self._client.subscribe(reply, cb=inbox.put)
        self._client.denials.add(denied)
        try:
            await self._client.publish(asked, msgspec.json.encode(request), reply=reply)
            yield inbox
        finally:
            self._client.denials.discard(denied)
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _next(self, inbox: _Inbox, verb: Verb[Any, Any, Any], silence: float) -> Msg:
        try:
            async with asyncio.timeout(silence):
                message = await inbox.get()
        except TimeoutError as exc:
            msg = (
                f"the controller of fleet {self._fleet!r} gave no sign of life for {silence:g} s during "
                f"`{verb.name}`: it is stopped or gone, or its answer was lost on the way"
            )
            raise ControllerSilent(msg) from exc
        if isinstance(message, NotPermitted):
            raise message
        return message

    def _take(
        self, message: Msg, verb: Verb[Any, Update, Any], joining: Joining, progress: Callable[[Update], None] | None
    ) -> bytes | None:
        headers = message.headers or {}
        if headers.get("Status") == _NO_RESPONDERS:
            raise NoController(self._fleet)
        if "Nats-Service-Error" in headers:
            problem = self._decode(message.data, Problem)
            raise (BadRequest if problem.kind == "usage" else Refusal)(problem.message)
        kind = headers.get(FRAME)
        if kind is None:
            return joining.take(message.data, headers)
        if kind not in {ALIVE, PROGRESS}:
            msg = f"the controller sent a frame {kind!r} that this version does not know; use the same version"
            raise BrokenReply(msg)
        if kind == PROGRESS and progress is not None:
            progress(self._decode(message.data, verb.progress))
        return None

    def _decode(self, body: bytes, kind: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, RecursionError) as exc:
            msg = f"the controller's answer cannot be read ({exc}); is it of another version of Rollbook?"
            raise BrokenReply(msg) from exc
