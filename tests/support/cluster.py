"""A cluster of three nats-servers on loopback, each with its own directory; any of them can be killed and started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path

from support.nats import DEADLINE, NatsServer
from support.ports import free_ports

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.events import RollbookError

SIZE = 3
PROBE = {"name": "PROBE", "subjects": ["probe"], "num_replicas": SIZE, "storage": "memory"}


class NatsCluster:
    """`start` it, and wait for `ready`."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(SIZE)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers = {
            f"n{number}": NatsServer(
                directory / f"n{number}",
                jetstream="{ sync_interval: always }",
                config=f"server_name: n{number}\n"
                f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}], no_advertise: true }}",
            )
            for number, port in enumerate(ports, 1)
        }

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers.values())

    def start(self) -> NatsCluster:
        for server in self.servers.values():
            server.start()
        return self

    def stop(self) -> None:
        for server in self.servers.values():
            server.kill()

    async def ready(self) -> Client:
        """A client of it, once a stream of three replicas can be made."""
        async with asyncio.timeout(3 * DEADLINE):
            while True:
                # What is asked while there is no leader is never answered: short, and again.
                with contextlib.suppress(RollbookError):
                    client = await connect(Connection(url=self.url), name="tests", timeout=3.0)
                    try:
                        await question(client, "STREAM.CREATE.PROBE", PROBE, timeout=3.0)
                        await question(client, "STREAM.DELETE.PROBE", timeout=DEADLINE)
                    except BaseException:
                        await client.close()
                        raise
                    return client
                await asyncio.sleep(0.1)

    async def leader(self, client: Client, stream: str) -> str:
        """The name of the server that leads a stream; "" while none does."""
        with contextlib.suppress(RollbookError):
            info = await question(client, f"STREAM.INFO.{stream}", timeout=2.0)
            return str(info["cluster"].get("leader") or "")
        return ""


@contextlib.contextmanager
def running_cluster(directory: Path) -> Generator[NatsCluster]:
    cluster = NatsCluster(directory)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
