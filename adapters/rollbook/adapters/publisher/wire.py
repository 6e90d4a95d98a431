"""Publishing and asking over one NATS connection, without a future per message: one inbox takes all replies.

The border to nats-py: its errors end here.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import msgspec
import nats.errors

from rollbook.adapters.jetstream.client import Client, Sink
from rollbook.projections.ports import LogUnavailable

ANSWER_WITHIN = 5.0
"""Seconds. JetStream with `sync_interval: always` answers in milliseconds, a new leader of three replicas in 5 s."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One message that came back, as bytes."""

    payload: bytes
    raw_headers: bytes | None

    @property
    def status(self) -> int:
        """The status in the first header line, 0 for none; 503 says that nobody listens on the subject."""
        line = (self.raw_headers or b"").partition(b"\r\n")[0].split()
        return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0

    def headers(self) -> dict[str, str]:
        """The headers by name; of a repeated one the last, which is the server's."""
        pairs = (line.partition(":") for line in (self.raw_headers or b"").decode(errors="replace").split("\r\n")[1:])
        return {name.strip(): value.strip() for name, _, value in pairs}


Take = Callable[[Answer | None], bool]
"""Called with every answer, and with None if the connection or the time ran out first. True ends it."""


class Wire:
    """Made anew for every connected client; belongs to its loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sink: Sink | None = None
        self._inbox = client.new_inbox()
        self._tokens = itertools.count(1)
        self._open: dict[int, tuple[float, Take]] = {}

    async def listen(self) -> None:
        """Begin to take replies. Raises `LogUnavailable`."""
        try:
            self._sink = await self._client.sink(self._reply, f"{self._inbox}.*")
        except (nats.errors.Error, OSError) as exc:
            raise LogUnavailable(f"the connection to NATS broke at once: {exc}") from exc

    @property
    def connected(self) -> bool:
        """Whether what is sent now can be expected to arrive."""
        return self._client.is_connected

    @property
    def finished(self) -> bool:
        """Whether the client gave up for good, as it does when NATS refuses its credentials at a reconnection."""
        return self._client.is_closed

    @property
    def max_payload(self) -> int:
        """Bytes that this server takes in one message, headers included."""
        return self._client.max_payload

    async def send(self, subject: str, payload: bytes, headers: dict[str, str] | None, take: Take) -> None:
        """Publish, and hand what comes back to `take`; also what goes wrong, so this never raises."""
        token = next(self._tokens)
        self._open[token] = (time.monotonic() + ANSWER_WITHIN, take)
        try:
            await self._client.publish(subject, payload, f"{self._inbox}.{token}", headers)
        except (nats.errors.Error, OSError):
            self._lose(token)

    async def ask(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """Publish and return the one answer. Raises `LogUnavailable`; it is unknown then whether it arrived."""
        return (await self.ask_for_many(subject, payload, lambda _: True, headers))[0]

    async def ask_for_many(
        self, subject: str, payload: bytes, is_last: Callable[[Answer], bool], headers: dict[str, str] | None = None
    ) -> list[Answer]:
        """Publish and return all answers up to the last. Raises `LogUnavailable`."""
        answers: list[Answer] = []
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def take(answer: Answer | None) -> bool:
            if answer is not None:
                answers.append(answer)
            if answer is None or is_last(answer):
                if not done.done():
                    done.set_result(answer is not None)
                return True
            return False

        await self.send(subject, payload, headers, take)
        if not await done:
            raise LogUnavailable("NATS did not answer in time, or the connection broke; it is tried again")
        return answers

    def lose_all(self) -> None:
        """The connection was lost: no reply to anything sent before will come."""
        for token in list(self._open):
            self._lose(token)

    def lose_overdue(self, now: float) -> None:
        """Give up waiting for what should have come by now."""
        for token in [token for token, (until, _) in self._open.items() if until <= now]:
            self._lose(token)

    async def close(self) -> None:
        """Close the connection; what is open is lost."""
        await self._client.close()
        self.lose_all()

    def _lose(self, token: int) -> None:
        _, take = self._open.pop(token, (0.0, None))
        if take is not None:
            take(None)

    def _reply(self, subject: bytes, _reply: bytes, payload: bytes, headers: bytes | None) -> None:
        token = int(subject.rpartition(b".")[2])
        waiting = self._open.get(token)
        if waiting is not None and waiting[1](Answer(bytes(payload), headers)):
            self._open.pop(token, None)
