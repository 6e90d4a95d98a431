"""Real routers as processes of their own, which can be killed, stopped and started again on the same ports."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import TypeVar

import pytest
from support.ports import free_ports

START_SECONDS = 60.0
"""They take up to 4 seconds alone on this kind of machine."""

PORT_SECONDS = 10.0
"""For a port to be free: by then, a program that ends at once ends for another reason."""

QUICK = (
    "--worker-startup-timeout-secs=6",
    "--worker-startup-check-interval=1",
    "--health-check-interval-secs=1",
    "--cb-timeout-duration-secs=1",
    "--cb-success-threshold=1",
)
"""Flags of both routers that let a test see in seconds what takes minutes with the defaults."""

IN_CI = bool(os.environ.get("ROLLBOOK_CI"))
"""Read when this is imported: no test sees a ROLLBOOK_ variable of its caller's."""

R = TypeVar("R", bound="RouterProcess")


class RouterProcess(ABC):
    """A program on loopback. Its ports are chosen by the first start and kept."""

    ports = 2
    """How many it needs; the first is for clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory})"

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments, with `self._ports`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is ready."""

    def start(self) -> None:
        """Return when it answers. The first time, ports that were taken meanwhile are chosen anew."""
        fresh = not self._ports
        deadline = time.monotonic() + START_SECONDS
        while True:
            if fresh:
                self._ports = free_ports(self.ports)
            self._spawn()
            while self._process is not None and self._process.poll() is None:
                if self.answers():
                    return
                if time.monotonic() > deadline:
                    self.kill()
                    raise TimeoutError(f"{self!r} did not answer within {START_SECONDS:g} s:\n{self.output()}")
                time.sleep(0.05)
            if time.monotonic() > deadline - START_SECONDS + PORT_SECONDS:
                raise RuntimeError(f"{self!r} ended by itself:\n{self.output()}")

    def kill(self) -> None:
        """End it as a crash does, also while it is stopped. It forgets everything."""
        process, self._process = self._process, None
        if process is not None:
            # Its own session: whatever it started goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Until the end of the block it does nothing, and its connections stay open."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        # A signal takes its time: until every thread has stopped, one more call may be answered.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def output(self) -> str:
        return (self._directory / "router.log").read_text(errors="replace")[-4000:]

    def _spawn(self) -> None:
        with (self._directory / "router.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class FlaggedRouter(RouterProcess):
    """sglang-router, and vllm-router, which came of it: their flags are the same."""

    def __init__(self, directory: Path, flags: tuple[str, ...] = QUICK) -> None:
        super().__init__(directory)
        self._flags = flags

    def flags(self, level: str) -> list[str]:
        """Where it listens, what it does with requests, and what it logs."""
        port, metrics = self._ports
        return [
            "--host=127.0.0.1",
            f"--port={port}",
            "--prometheus-host=127.0.0.1",
            f"--prometheus-port={metrics}",
            "--policy=round_robin",
            f"--log-level={level}",
            *self._flags,
        ]

    def answers(self) -> bool:
        return _healthy(self.port)


class SglangRouter(FlaggedRouter):
    """`sglang-router launch`."""

    def command(self) -> list[str]:
        return [_program("sglang-router", "install the `demo` extra"), "launch", *self.flags("warn")]


class VllmRouter(FlaggedRouter):
    """`vllm-router`."""

    def command(self) -> list[str]:
        return [_program("vllm-router", "install the `dev` extra"), *self.flags("warning")]


class Haproxy(RouterProcess):
    """`haproxy` with an empty backend `workers`, and a few others whose servers cannot all come and go.

    Its Runtime API listens on a socket for each level, and on TCP.
    """

    CONFIG = """
        global
            stats socket {sockets}/admin.sock mode 600 level admin
            stats socket {sockets}/operator.sock mode 600 level operator
            stats socket ipv4@127.0.0.1:{ports[1]} level admin
        defaults
            mode http
            timeout connect 2s
            timeout client 60s
            timeout server 60s
        frontend clients
            bind 127.0.0.1:{ports[0]}
            default_backend workers
        backend workers
            balance roundrobin
            option httpchk GET /health
        backend filed
            balance roundrobin
            server by-hand 127.0.0.1:{ports[2]}
            server pinned 127.0.0.1:{ports[2]}
            use-server pinned if {{ path /pinned }}
        backend fixed
            balance static-rr
        backend hashed
            balance uri
            hash-type consistent
        """
    ports = 3

    @property
    def admin_url(self) -> str:
        return f"unix://{self._directory}/admin.sock"

    @property
    def operator_url(self) -> str:
        return f"unix://{self._directory}/operator.sock"

    @property
    def tcp_url(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[1]}"

    def command(self) -> list[str]:
        file = self._directory / "haproxy.cfg"
        file.write_text(dedent(self.CONFIG).format(sockets=self._directory, ports=self._ports) + "\n")
        return [_program("haproxy", "apt-get install haproxy"), "-db", "-f", str(file)]

    def answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            one.settimeout(5)
            one.connect(f"{self._directory}/admin.sock")
            one.sendall(b"show info\n")
            return one.recv(64).startswith(b"Name: HAProxy")
        return False


def need_haproxy() -> None:
    """Skip the test where there is no haproxy; where `.ci/run` runs, that is a failure."""
    if _find("haproxy") is None:
        if IN_CI:
            pytest.fail("there is no haproxy, and ROLLBOOK_CI says that there must be: apt-get install haproxy")
        pytest.skip("there is no haproxy here: apt-get install haproxy")


@contextmanager
def running(router: R) -> Generator[R]:
    try:
        router.start()
        yield router
    finally:
        router.kill()


@contextmanager
def running_router(directory: Path, *extra: str, flags: tuple[str, ...] = QUICK) -> Generator[SglangRouter]:
    with running(SglangRouter(directory, (*flags, *extra))) as router:
        yield router


def _find(name: str) -> str | None:
    """Debian puts haproxy where only root's PATH looks."""
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/local/sbin", "/usr/sbin"]))


def _program(name: str, hint: str) -> str:
    program = _find(name)
    if program is None:
        raise RuntimeError(f"{name} is not on PATH: {hint}")
    return program


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
