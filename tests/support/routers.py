"""A real sglang-router as a process of its own, which can be killed and started again on the same port."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 60.0
"""It takes 2 to 4 seconds alone on this kind of machine."""

QUICK = (
    "--worker-startup-timeout-secs=6",
    "--worker-startup-check-interval=1",
    "--health-check-interval-secs=1",
    "--cb-timeout-duration-secs=1",
    "--cb-success-threshold=1",
)
"""Flags that let a test see in seconds what takes minutes with the defaults."""


class RouterProcess:
    """`sglang-router launch` on loopback. The ports are chosen once and kept."""

    def __init__(self, directory: Path, flags: tuple[str, ...] = QUICK) -> None:
        self.port = 0
        self._directory = directory
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._metrics_port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it answers. The first time, ports that were taken meanwhile are chosen anew."""
        fresh = self.port == 0
        deadline = time.monotonic() + START_SECONDS
        while True:
            if fresh:
                self.port, self._metrics_port = _free_ports(2)
            self._spawn()
            while self._process is not None and self._process.poll() is None:
                if self._answers():
                    return
                if time.monotonic() > deadline:
                    self.kill()
                    raise TimeoutError(f"sglang-router did not answer within {START_SECONDS:g} s:\n{self.output()}")
                time.sleep(0.05)
            if time.monotonic() > deadline:
                raise RuntimeError(f"sglang-router ended by itself:\n{self.output()}")

    def kill(self) -> None:
        """End it as a crash does. It forgets everything."""
        process, self._process = self._process, None
        if process is not None:
            # Its own session: whatever it started goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def output(self) -> str:
        return (self._directory / "router.log").read_text(errors="replace")[-4000:]

    def _spawn(self) -> None:
        program = shutil.which("sglang-router")
        if program is None:
            raise RuntimeError("sglang-router is not on PATH: install the `demo` extra")
        command = [
            program,
            "launch",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--prometheus-host=127.0.0.1",
            f"--prometheus-port={self._metrics_port}",
            "--policy=round_robin",
            "--log-level=warn",
            *self._flags,
        ]
        with (self._directory / "router.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextmanager
def running_router(directory: Path, *extra: str, flags: tuple[str, ...] = QUICK) -> Iterator[RouterProcess]:
    router = RouterProcess(directory, (*flags, *extra))
    try:
        router.start()
        yield router
    finally:
        router.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
