"""nats-py's client, with three things that a log needs and it does not have.

**Sinks.** A subscription of nats-py parses headers, builds an object, queues it and wakes a task, for every message:
7 µs each, while the fold itself takes less. A sink is a plain function that gets the bytes as they come off the wire
(`wire`), and it never drops a message because a queue is full. It is the one place that reaches into nats-py
(`_process_msg`, and `_ps` for its parser); tests/contract/test_event_log.py and tests/unit/test_wire.py fail if a
version of nats-py takes that away.

**Questions** (`ask`) get their answer through a sink: one hop of the loop less than nats-py's `request`, and no
`wait_for`, which can eat a cancellation on Python 3.11. What goes wrong with them is translated here.

**Disconnections and reconnections** can be listened to by as many as like, and a connection be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription

from rollbook.adapters.jetstream.wire import BulkParser, Take, TakeRun, hand_over, one_by_one
from rollbook.projections.ports import LogUnavailable

_log = structlog.get_logger(__name__)

ASK_AGAIN: Final = 1.0
"""Seconds without an answer after which a question is sent once more."""

_NOBODY: Final = 503
"""Status: nobody listens on the subject."""


class Sink:
    """A subscription whose messages go straight to a function. `subject` is where it listens."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self.subject = subscription.subject

    async def close(self) -> None:
        """Stop listening. Does nothing if the client is closed already."""
        self._client.forget(self._subscription)
        try:
            await self._subscription.unsubscribe()
        except nats.errors.Error:
            return  # closed or draining: the server forgets it too


class NotPermitted(LogUnavailable):
    """NATS does not permit these credentials to do it, and says so at once. The message names the subject."""

    def __init__(self, who: str, act: str, subject: str) -> None:
        super().__init__(
            f"NATS does not permit {who} to {act} {subject}: these are another role's credentials, or its permissions "
            "lack this subject; see docs/permissions.md"
        )
        self.subject = subject


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message that came back, as bytes."""

    payload: bytes
    raw_headers: bytes | None

    @property
    def status(self) -> int:
        """The server's status, 0 for none; 503 says that nobody listens on the subject.

        A message of a stream has none, whatever its author wrote where a status stands: the server adds its sequence.
        """
        headers = self.raw_headers or b""
        line = headers.partition(b"\r\n")[0].split()
        if len(line) < 2 or not line[1].isdigit() or b"\r\nNats-Sequence:" in headers:  # noqa: PLR2004 - as in HTTP
            return 0
        return int(line[1])

    def headers(self) -> dict[str, str]:
        """The headers by name; of a repeated one the last, which is the server's."""
        lines = (self.raw_headers or b"").decode(errors="replace").split("\r\n")[1:]
        return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


class Question(msgspec.Struct, frozen=True, gc=False):
    """One that has been asked."""

    subject: str
    answer: asyncio.Future[list[Message]]
    is_last: Callable[[Message], bool]
    messages: list[Message]
    """What has come so far."""


def _any(_: Message) -> bool:
    return True


class Client(NatsClient):
    """A connection to NATS. Made by `connect`; belongs to the loop that made it."""

    def __init__(self) -> None:
        super().__init__()
        self._sinks: dict[int, TakeRun] = {}
        self._ps = BulkParser(self, self._sinks)
        self.closing = False
        """Whether it was us who closed it."""
        self._connected = asyncio.Event()
        self._answers: str | None = None
        self._questions: dict[str, Question] = {}
        self._tokens = itertools.count(1)
        self.disconnections: set[Callable[[], None]] = set()
        """Called, on the loop, when the connection is lost. They must not block or raise."""
        self.reconnections: set[Callable[[], None]] = set()
        """Called, on the loop, after every reconnection. They must not block or raise."""
        self.denials: set[Callable[[str, NotPermitted], None]] = set()
        """Called, on the loop, with a subject in lower case that must not be published to. They must not block or
        raise."""

    async def sink(self, take: Take, subject: str | None = None) -> Sink:
        """Hand every message on `subject` (a new inbox by default; wildcards are allowed) to `take`."""
        return await self.sink_of_runs(one_by_one(take), subject)

    async def sink_of_runs(self, take: TakeRun, subject: str | None = None) -> Sink:
        """As `sink`, for one that takes at once what has arrived at once. If it raises, the whole run is lost to it."""
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        subscription = await self.subscribe(subject or self.new_inbox(), future=never)
        self._sinks[subscription._id] = take  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - nowhere public
        return Sink(self, subscription)

    def forget(self, subscription: Subscription) -> None:
        """Stop calling the function of `subscription`, also for what is on its way."""
        self._sinks.pop(subscription._id, None)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as in `sink`

    async def ask(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
        again: bool = False,
    ) -> bytes:
        """Publish with a reply subject, and return the payload of the answer. `timeout` is in seconds.

        With `again` it is sent every second until the first answer comes: in a cluster nobody ever answers what was
        asked while there was no leader. For questions only that change nothing, or nothing the second time.
        Raises `LogUnavailable` if there is none: nothing is sent while the connection is gone, but when it breaks or
        the time is up after that, whether it arrived is unknown. `NotPermitted` if the server refuses the subject.
        """
        return (await self._ask(subject, payload, headers, _any, timeout, again=again))[0].payload

    async def ask_for_many(
        self, subject: str, payload: bytes, *, is_last: Callable[[Message], bool], timeout: float = 5.0
    ) -> list[Message]:
        """As `ask`, for a question with several answers: all of them, up to the one that `is_last`."""
        return await self._ask(subject, payload, None, is_last, timeout)

    async def _ask(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None,
        is_last: Callable[[Message], bool],
        timeout: float,
        *,
        again: bool = False,
    ) -> list[Message]:
        token = str(next(self._tokens))
        answer: asyncio.Future[list[Message]] = asyncio.get_running_loop().create_future()
        self._questions[token] = Question(subject, answer, is_last, [])
        try:
            async with self._border(subject, timeout):
                if self._answers is None:
                    self._answers = await self._listen()
                await self._send(subject, payload, f"{self._answers}{token}", headers)
                while again and not (await asyncio.wait([answer], timeout=ASK_AGAIN))[0]:
                    await self._send(subject, payload, f"{self._answers}{token}", headers)
                return await answer
        finally:
            del self._questions[token]
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: asyncio need not complain if we were cancelled at the same moment

    async def tell(self, messages: Iterable[tuple[str, bytes, dict[str, str]]], *, timeout: float = 5.0) -> None:
        """Publish subjects, payloads and headers without waiting for answers. Raises `LogUnavailable` as `ask` does."""
        async with self._border("publish", timeout):
            for subject, payload, headers in messages:
                await self._send(subject, payload, "", headers)

    async def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        await self._connected.wait()
        await self.publish(subject, payload, reply, headers)

    @contextlib.asynccontextmanager
    async def _border(self, subject: str, timeout: float) -> AsyncGenerator[None]:
        """Bounds the time, and translates nats-py's errors."""
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimeoutError as exc:
            what = "no answer" if self.is_connected else "no connection to NATS"
            raise LogUnavailable(f"{subject}: {what} within {timeout:g} s; try again") from exc
        except nats.errors.NoRespondersError as exc:
            raise LogUnavailable(f"{subject}: nobody listens there; is the stream made, and JetStream up?") from exc
        except (nats.errors.Error, OSError) as exc:
            raise LogUnavailable(f"{subject}: {exc}; try again") from exc

    async def _listen(self) -> str:
        inbox = self.new_inbox()
        await self.sink(self._answer, f"{inbox}.*")
        return f"{inbox}."

    def _answer(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes | None) -> None:
        question = self._questions.get(subject.rpartition(b".")[2].decode())
        if question is None or question.answer.done():
            return
        message = Message(bytes(payload), headers)
        if not payload and message.status == _NOBODY:
            question.answer.set_exception(nats.errors.NoRespondersError())
            return
        question.messages.append(message)
        if question.is_last(message):
            question.answer.set_result(question.messages)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        take = self._sinks.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        hand_over(take, [(subject, reply, data, headers)])

    async def close(self) -> None:
        """Close it for good. Whoever waits for an answer gets `LogUnavailable`."""
        self.closing = True
        try:
            await super().close()
        except OSError:
            # The server was gone before the last bytes were written: nats-py then stops in the middle.
            self._status = Client.DISCONNECTED
            await super().close()

    async def discard(self) -> None:
        """Close it, also in the middle of a failed attempt, where nats-py's `close` leaves the socket open."""
        if self._flush_queue is None:
            return  # the attempt never began
        await self.close()
        transport: Any = self._transport
        if transport is not None:
            transport.close()
            # Not `wait_closed`: the future behind it is cancelled together with the attempt that waited for it.
            await asyncio.sleep(0)

    async def abort(self) -> None:
        """Drop the socket with whatever is still to be written: a server that hangs would hold up `close` for ever."""
        self.closing = True
        transport: Any = self._transport
        writer = getattr(transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
            await asyncio.sleep(0)

    def mark_connected(self) -> None:
        """Wake whoever waits for the connection, and tell the listeners."""
        self._connected.set()
        for listener in tuple(self.reconnections):
            listener()

    def mark_disconnected(self) -> None:
        """Note that the connection is gone for now, or for good. No answer will come to what was asked before."""
        self._connected.clear()
        for listener in tuple(self.disconnections):
            listener()
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_exception(nats.errors.ConnectionClosedError())

    def deny_publish(self, who: str, subject: str) -> None:
        """The server refused something that `who` published to `subject`, which it repeats in lower case."""
        for question in self._questions.values():
            if question.subject.lower() == subject and not question.answer.done():
                question.answer.set_exception(NotPermitted(who, "publish to", question.subject))
        for listener in tuple(self.denials):
            listener(subject, NotPermitted(who, "publish to", subject))

    def deny_subscription(self, who: str, subject: str) -> None:
        """The server refused a subscription. Without the one for answers, no question will get any."""
        if self._answers is None or not subject.startswith(self._answers.lower()):
            return
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_exception(NotPermitted(who, "subscribe to", f"{self._answers}*"))

    async def wait_connected(self) -> None:
        """Return as soon as there is a connection. The caller brings the deadline."""
        await self._connected.wait()
