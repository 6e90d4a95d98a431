"""Real nats-servers for tests: one shared by the session, and as many more as a test wants to break."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from support.ports import free_ports

from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect

DEADLINE = 20.0
"""Seconds within which a server must be up; generous, because the machine may be busy."""


class NatsServer:
    """One nats-server with its own directory; the port stays the same over restarts."""

    def __init__(self, directory: Path, *, config: str = "", jetstream: str = "{}", port: int = 0) -> None:
        self.directory = directory
        self.port = port or free_ports(1)[0]
        self.config = config
        self.jetstream = jetstream
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> NatsServer:
        assert self._process is None
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "nats.conf"
        jetstream = f'jetstream {{ store_dir: "{self.directory}/store", {self.jetstream.strip("{}")} }}'
        lines = [f"listen: 127.0.0.1:{self.port}", f'ports_file_dir: "{self.directory}"', self.config]
        file.write_text("\n".join([*lines, jetstream if self.jetstream else ""]))
        program = shutil.which("nats-server")
        assert program, "nats-server is in the `server` extra"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(file)], stdout=log, stderr=log)
        ports = self.directory / f"nats-server_{self._process.pid}.ports"
        until = time.monotonic() + DEADLINE
        while True:
            try:
                self.port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except (OSError, ValueError):
                if self._process.poll() is not None or time.monotonic() > until:
                    pytest.fail((self.directory / "log").read_text()[-2000:])
                time.sleep(0.005)
            else:
                return self

    def pause(self) -> None:
        """Stop it from doing anything, as a server that hangs."""
        os.kill(self.pid, signal.SIGSTOP)
        until = time.monotonic() + DEADLINE
        while any(_state(task) != "T" for task in Path(f"/proc/{self.pid}/task").iterdir()):
            assert time.monotonic() < until
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        self._process.wait(DEADLINE)
        self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "T"  # it ended meanwhile


StartNats = Callable[..., NatsServer]


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that all tests share: never stop it. JetStream's default sync, for speed."""
    server = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.kill()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[StartNats]:
    """Starts a server of the test's own, to restart, kill and misconfigure."""
    servers: list[NatsServer] = []

    def start(**options) -> NatsServer:
        server = NatsServer(tmp_path / f"nats-{len(servers)}", **options)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.kill()


_fleets = itertools.count(1)


@pytest.fixture
def fleet() -> str:
    """A fleet's name that no other test has, also not in another process on the same server."""
    return f"t{os.getpid()}-{next(_fleets)}"


@pytest.fixture
async def nats_client(nats_server: NatsServer) -> AsyncIterator[Client]:
    """A connection to the shared server."""
    client = await connect(Connection(url=nats_server.url), name="tests", timeout=DEADLINE)
    yield client
    await client.close()
