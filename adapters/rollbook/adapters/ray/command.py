"""A shell command as a worker: the actor's life is the command's, and the command's the actor's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Final

import structlog

from rollbook.adapters.ray import leash
from rollbook.adapters.ray.seat import Seat

_GRACE: Final = leash.SWEEP_SECONDS + 1.0
"""Seconds beyond the command's own time that the leash gets to kill and to exit."""

_MARK: Final = "_ROLLBOOK_COMMAND"
"""The variable by which what a command started is known after its leash was killed."""

_log = structlog.get_logger()


class CommandActor:
    """Keeps the contract of `guest.WorkerActor` around a command, which is rendered already.

    When the command ends, by itself or by anybody's signal, the actor ends. When the actor ends, whatever killed it,
    the command and all that it started are killed. Its output goes where the actor's goes: to Ray's log of that worker.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        host: str,
        port: int,
        seat: Seat,
        command: str,
        cwd: str | None,
        stop_seconds: float,
    ) -> None:
        self._about = {"worker": name, "incarnation": incarnation, "host": host, "port": port}
        self._seat = seat
        self._command = command
        self._cwd = cwd
        self._stop_seconds = stop_seconds
        self._mark = uuid.uuid4().hex
        self._leash: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, str]:
        """Run it; return the addresses that it was given. Does not wait until it listens: `ready_path` does."""
        line = [sys.executable, "-I", "-S", leash.__file__, str(self._stop_seconds), self._command]
        env = os.environ | {_MARK: self._mark}
        self._leash = subprocess.Popen(line, stdin=subprocess.PIPE, cwd=self._cwd, env=env, start_new_session=True)
        _log.info("worker.command.started", **self._about, command=self._command)
        return {kind: str(address) for kind, address in self._seat.own.items()}

    def wait(self) -> str:
        """Wait until it has ended; how it did."""
        code = self._ended(None)
        if code > leash.SIGNALLED:
            return f"its command was ended by signal {code - leash.SIGNALLED} ({_signal_name(code - leash.SIGNALLED)})"
        return f"its command exited with code {code}"

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after the worker's `stop_seconds`."""
        if self._leash is None or self._leash.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._leash.stdin.write(leash.ORDERLY)
            self._leash.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ended(self._stop_seconds + _GRACE)

    def _ended(self, seconds: float | None) -> int:
        """The exit code of the leash; nothing that the command started is left then."""
        running = self._leash
        assert running is not None  # noqa: S101 - started first, by the contract
        code = running.wait(seconds)
        if running.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                running.stdin.close()
        if code >= 0:
            return code
        # Somebody killed the leash itself, and what it held has lost its parent.
        until = time.monotonic() + leash.SWEEP_SECONDS
        while (left := _marked(f"{_MARK}={self._mark}".encode())) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        return leash.SIGNALLED - code


def _marked(mark: bytes) -> list[int]:
    """The processes that have this in their environment, as whoever the command starts does."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
