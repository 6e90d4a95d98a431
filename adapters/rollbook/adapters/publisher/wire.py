"""Publishing in bulk over one NATS connection: one inbox takes all replies, with no future per message.

What needs no such speed goes through `JetStreamLog`. nats-py's errors end here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Final

import msgspec
import nats.errors

from rollbook.adapters.jetstream.api import Ack, refused
from rollbook.adapters.jetstream.client import Client, Message, NotPermitted
from rollbook.projections.ports import LogUnavailable

ANSWER_WITHIN: Final = 5.0
"""Seconds. JetStream with `sync_interval: always` answers in milliseconds, a new leader of three replicas in 5 s."""


_CLOSE_WITHIN: Final = 2.0
"""Seconds for the last bytes to be written."""


class Answer(Message, frozen=True, gc=False):
    """What came back."""

    def acknowledged(self, subject: str) -> int:
        """The sequence that the log gave to what was published. Raises `LogUnavailable`: not stored, try again."""
        if self.status:
            raise LogUnavailable(f"no stream takes {subject}; it is made when the fleet's controller starts")
        try:
            ack = msgspec.json.decode(self.payload, type=Ack)
        except msgspec.MsgspecError as exc:
            raise LogUnavailable(f"{subject}: somebody who is no stream answered ({exc})") from exc
        if ack.error is not None:
            raise LogUnavailable(str(refused(subject, ack.error)))
        return ack.seq


Take = Callable[[Answer | LogUnavailable], bool]
"""Called with every answer, or with why none will come. True ends it."""


class _Open(msgspec.Struct, frozen=True, gc=False):
    """What is waited for."""

    until: float
    subject: str
    take: Take


class Wire:
    """Made anew for every client; belongs to its loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._tokens = itertools.count(1)
        self._open: dict[int, _Open] = {}

    async def listen(self) -> None:
        """Begin to take replies. Raises `LogUnavailable`."""
        self.client.denials.add(self._denied)
        try:
            await self.client.sink(self._reply, f"{self._inbox}.*")
        except (nats.errors.Error, OSError) as exc:
            raise LogUnavailable(f"the connection to NATS broke at once: {exc}") from exc

    async def send(self, subject: str, payload: bytes, headers: dict[str, str] | None, take: Take) -> None:
        """Publish, and hand what comes back to `take`; also that nothing came back, so this never raises."""
        token = next(self._tokens)
        self._open[token] = _Open(time.monotonic() + ANSWER_WITHIN, subject, take)
        try:
            await self.client.publish(subject, payload, f"{self._inbox}.{token}", headers)
        except (nats.errors.Error, OSError):
            self._lose(token, _broke())

    def lose_all(self) -> None:
        """The connection was lost: no reply to anything sent before will come."""
        for token in list(self._open):
            self._lose(token, _broke())

    def lose_overdue(self, now: float) -> None:
        """Give up waiting for what should have come by now."""
        for token in [token for token, one in self._open.items() if one.until <= now]:
            self._lose(token, LogUnavailable(f"NATS did not answer in time ({ANSWER_WITHIN:g} s); it is tried again"))

    async def close(self) -> None:
        """Close the connection; what is open is lost."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_WITHIN):
                    await self.client.close()
        finally:
            # A server that hangs holds up `close` beyond its time, until we are cancelled once more.
            await self.client.abort()
            self.lose_all()

    def _lose(self, token: int, why: LogUnavailable) -> None:
        waiting = self._open.pop(token, None)
        if waiting is not None:
            waiting.take(why)

    def _denied(self, subject: str, why: NotPermitted) -> None:
        """Whatever is open on `subject` (in lower case) will get no answer."""
        for token in [token for token, one in self._open.items() if one.subject.lower() == subject]:
            self._lose(token, why)

    def _reply(self, subject: bytes, _reply: bytes, payload: bytes, headers: bytes | None) -> None:
        token = int(subject.rpartition(b".")[2])
        waiting = self._open.get(token)
        if waiting is not None and waiting.take(Answer(bytes(payload), headers)):
            self._open.pop(token, None)


def _broke() -> LogUnavailable:
    return LogUnavailable("the connection to NATS broke; it is tried again")
