"""A fleet's stream as a test sees it from outside: made, written to behind everybody's back, read to its end.

Blocking, because tests of the publisher mostly run on plain threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest
from support.core import TIME
from support.nats import DEADLINE, NatsServer

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.events import Codec, Fact, Recorded, Undecodable, stream_name

T = TypeVar("T")


class Line(msgspec.Struct, frozen=True):
    """One message of the stream. `recorded` is None if it is no fact."""

    sequence: int
    subject: str
    recorded: Recorded | None

    @property
    def fact(self) -> Fact:
        assert self.recorded is not None
        return self.recorded.fact

    @property
    def id(self) -> str:
        assert self.recorded is not None
        return self.recorded.id


class FleetStream:
    """The stream of `fleet` on the server at `url`."""

    def __init__(self, url: str, fleet: str) -> None:
        self.url = url
        self.fleet = fleet
        self._codec = Codec(fleet)

    def make(self) -> FleetStream:
        async def work(client: Client) -> None:
            await provision(client, self.fleet, timeout=DEADLINE)

        self._with_client(work)
        return self

    def make_anew(self) -> None:
        """Delete it with all that it holds, and make it again: its sequences begin with 1."""

        async def work(client: Client) -> None:
            await question(client, f"STREAM.DELETE.{stream_name(self.fleet)}", timeout=DEADLINE)
            await provision(client, self.fleet, timeout=DEADLINE)

        self._with_client(work)

    def put(self, subject: str, payload: bytes) -> None:
        """Write raw bytes to a subject of the stream."""

        async def work(client: Client) -> None:
            await client.ask(subject, payload, timeout=DEADLINE)

        self._with_client(work)

    def say(self, *facts: Fact) -> None:
        """Store facts in this order, as controllers and workers would."""

        async def work(client: Client) -> None:
            ids = UuidV7()
            drafts = [self._codec.draft(fact, id=ids.new(), time=TIME, publisher="test") for fact in facts]
            await JetStreamLog(client, self.fleet, timeout=DEADLINE).append(drafts)

        self._with_client(work)

    def lines(self) -> list[Line]:
        """Everything in the stream now."""

        async def work(client: Client) -> list[Line]:
            log = JetStreamLog(client, self.fleet, timeout=DEADLINE)
            last = (await log.state()).last_sequence
            found: list[Line] = []
            reading = log.read(0)
            try:
                while len(found) < last:
                    found += [self._line(one.sequence, one.subject, one.payload) for one in await anext(reading)]
            finally:
                await reading.aclose()
            return found

        return self._with_client(work)

    def _line(self, sequence: int, subject: str, payload: bytes) -> Line:
        try:
            return Line(sequence, subject, self._codec.decode(payload, subject=subject, sequence=sequence))
        except Undecodable:
            return Line(sequence, subject, None)

    def _with_client(self, work: Callable[[Client], Awaitable[T]]) -> T:
        async def main() -> T:
            client = await connect(Connection(url=self.url), name="tests", timeout=DEADLINE)
            try:
                async with asyncio.timeout(DEADLINE):
                    return await work(client)
            finally:
                await client.close()

        return in_thread(lambda: asyncio.run(main()))


def in_thread(work: Callable[[], T], seconds: float = 2 * DEADLINE) -> T:
    """`work()` on a thread of its own, also when the caller runs a loop; what it raises is raised here."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as exc:  # noqa: BLE001 - raised again below, where somebody waits for it
            failure.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the work did not end"
    if failure:
        raise failure[0]
    return outcome[0]


@pytest.fixture
def stream(nats_server: NatsServer, fleet: str) -> FleetStream:
    """The fleet's stream on the shared server."""
    return FleetStream(nats_server.url, fleet).make()
