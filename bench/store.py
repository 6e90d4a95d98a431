"""Logs of any length, built fast: an unsynced server of its own, and facts as bytes without a round trip for each.

The facts are those of a fleet whose workers die and come back in turns, behind one router: seven for every life.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import msgspec

from rollbook.adapters.jetstream.api import publish
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.jetstream.provision import provision

CHUNK = 2_000
"""Messages that the server is sent before it is asked for an acknowledgement: it holds back no more than 10,000."""
PROXY = "router-a"
_ENVELOPE = (
    '{"specversion":"1.0","id":"01900000-0000-7000-8000-%012x","source":"rollbook://%s/bench","type":"rollbook.%s.v1",'
    '"time":"2026-01-01T00:00:00.000Z","data":%s,"subject":"%s","datacontenttype":"application/json"}'
)


class Server(msgspec.Struct, frozen=True):
    """Where the logs are."""

    connection: Connection
    client: Client


@contextlib.asynccontextmanager
async def unsynced(folder: Path) -> AsyncGenerator[Server]:
    """A server that syncs when it pleases, with its store in `folder`."""
    server = EmbeddedServer(folder / ".rollbook", sync="default")
    url = await server.start()
    try:
        client = await connect(Connection(url=url), name="bench")
        try:
            yield Server(Connection(url=url), client)
        finally:
            await client.close()
    finally:
        await server.stop()


async def fill(client: Client, fleet: str, facts: int, workers: int) -> None:
    """Make the log of `fleet` with so many facts about so many workers."""
    await provision(client, fleet)
    messages = itertools.islice(_messages(fleet, workers), facts)
    stored = 0
    while chunk := list(itertools.islice(messages, CHUNK)):
        *others, (subject, payload) = chunk
        blob = bytearray()
        for on, data in others:
            blob += b"PUB %b %d\r\n%b\r\n" % (on, len(data), data)
        await client._send_command(bytes(blob))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - `publish` is slower
        stored += len(chunk)
        ack = await publish(client, subject.decode(), payload, {}, timeout=60)
        if ack.seq != stored:
            msg = f"the server has {ack.seq} facts, {stored} were sent"
            raise RuntimeError(msg)


def _messages(fleet: str, workers: int) -> Iterator[tuple[bytes, bytes]]:
    numbers = itertools.count(1)
    proxy = f"rollbook.{fleet}.proxy.{PROXY}".encode()
    for life in itertools.count(1):
        for number in range(workers):
            name = f"rollout-{number}-0"
            worker = f"rollbook.{fleet}.worker.{name}".encode()
            about = f'{{"worker":"{name}","incarnation":{life}'
            url = f"http://10.0.{number >> 8}.{number & 255}:8000"
            place = f'{{"proxy":"{PROXY}","worker":"{name}","incarnation":{life},"url":"{url}"'
            for family, kind, data in (
                ("worker", "started", f'{about},"node":"10.0.0.1","pid":4711}}'),
                ("worker", "up", f'{about},"seen":1}}'),
                ("proxy", "registering", f'{place},"reason":"belongs here, is not listed"}}'),
                ("proxy", "registered", f"{place}}}"),
                ("worker", "down", f'{about},"seen":1,"evidence":"exited","reason":"exit code 137"}}'),
                ("proxy", "deregistering", f'{place},"reason":"serving: down"}}'),
                ("proxy", "deregistered", f"{place}}}"),
            ):
                entity = name if family == "worker" else PROXY
                payload = _ENVELOPE % (next(numbers), fleet, f"{family}.{kind}", data, entity)
                yield worker if family == "worker" else proxy, payload.encode()
