"""Programs that do not outlive the process that started them, whatever it dies of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# The kernel kills the program when the thread that started it ends, and the launcher sees to it that this thread did
# not end before. A launcher and not `preexec_fn`, which is not safe in a process with threads.
_LAUNCHER: Final = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(arguments: Sequence[str]) -> list[str]:
    """The command that starts `arguments` (a program's path and its arguments), tied to this thread.

    The program keeps the process id that its parent sees. Only Linux ties it; elsewhere its parent has to end it.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *arguments]


async def crash(process: asyncio.subprocess.Process) -> None:
    """End the leader of a session, and all that it started, as a crash does; return when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
