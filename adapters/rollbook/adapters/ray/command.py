"""A shell command as a worker: the actor's life is the command's, and the command's the actor's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Final

import structlog

from rollbook.adapters.ray import leash
from rollbook.adapters.ray.seat import Seat

_GRACE: Final = leash.SWEEP_SECONDS + 1.0
"""Seconds beyond the command's own time that the leash gets to kill and to exit."""

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
        self._leash: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, str]:
        """Run it; return the addresses that it was given. Does not wait until it listens: `ready_path` does."""
        line = [sys.executable, "-I", "-S", leash.__file__, str(self._stop_seconds), self._command]
        self._leash = subprocess.Popen(line, stdin=subprocess.PIPE, cwd=self._cwd, start_new_session=True)
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
        """The exit code of the leash; nothing of its process group is left then."""
        running = self._leash
        assert running is not None  # noqa: S101 - started first, by the contract
        code = running.wait(seconds)
        if running.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                running.stdin.close()
        # Only needed if somebody killed the leash itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        return code if code >= 0 else leash.SIGNALLED - code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
