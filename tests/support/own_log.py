"""A fleet's log on a server of the test's own, which breaks underneath: what goes into it, and goes in for sure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from support.nats import DEADLINE, NatsServer

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.events import Draft, stream_name
from rollbook.projections.ports import LogUnavailable

FLEET = "f"
STREAM = stream_name(FLEET)
SYNCED = "{ sync_interval: always }"
"""The server stores before it acknowledges: what it said is true also if it is killed."""

_ids = UuidV7()


def draft(payload: bytes = b"{}", worker: str = "a", *, fleet: str = FLEET) -> Draft:
    return Draft(f"rollbook.{fleet}.worker.{worker}", _ids.new(), payload)


async def append_for_sure(
    log: JetStreamLog, drafts: Sequence[Draft], expect: Mapping[str, int] | None = None
) -> list[int]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await log.append(drafts, expect=expect)
            except LogUnavailable:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def provisioned(server: NatsServer) -> AsyncGenerator[Client]:
    """A connection to a server that has the fleet's stream."""
    client = await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)
    try:
        await provision(client, FLEET, timeout=DEADLINE)
        yield client
    finally:
        await client.close()
