"""The roles of deploy/nats-roles.conf on a real nats-server, each with a password of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.nats import DEADLINE, NatsServer, StartNats

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.events import Codec, Fact, WorkerUp

ROLES = (Path(__file__).parents[2] / "deploy/nats-roles.conf").read_text()
FLEET = "math-rl"
"""The one that they are made for."""
PASSWORDS = {role: f"pw-{role}" for role in ("controller", "publisher", "operator", "reader")}
W = "rollout-0-0"
WORKER = WorkerUp(worker=W, incarnation=1)


def server_with_roles(start_nats: StartNats, monkeypatch: pytest.MonkeyPatch, config: str = ROLES) -> NatsServer:
    for role, password in PASSWORDS.items():
        monkeypatch.setenv(f"NATS_{role.upper()}_PASSWORD", password)
    return start_nats(config=config)


def connection(server: NatsServer, role: str) -> Connection:
    return Connection(url=server.url, user=role, password=PASSWORDS[role])


@asynccontextmanager
async def as_role(server: NatsServer, role: str) -> AsyncGenerator[Client]:
    client = await connect(connection(server, role), name=role, timeout=DEADLINE)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def fleets_stream(server: NatsServer) -> AsyncGenerator[Client]:
    """The fleet's stream, as its controller makes it, with one worker in it; the controller's connection."""
    async with as_role(server, "controller") as client:
        await provision(client, FLEET, timeout=DEADLINE)
        await append(client, WORKER)
        yield client


async def append(client: Client, fact: Fact, fleet: str = FLEET) -> list[int]:
    draft = Codec(fleet).draft(fact, id=UuidV7().new(), time="2026-01-01T00:00:00Z", publisher="test")
    return await JetStreamLog(client, fleet, timeout=2.0, patience=2.0).append([draft])


async def messages(client: Client) -> int:
    """The last sequence of the fleet's log."""
    return (await JetStreamLog(client, FLEET).state()).last_sequence
