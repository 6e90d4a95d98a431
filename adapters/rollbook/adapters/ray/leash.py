"""Run as a program of its own between an actor and its command, so that neither outlives the other.

    python leash.py SECONDS COMMAND        with a pipe from the actor as standard input

The end of the pipe is the actor's death, however it died: then everything that the command started is killed at once.
A letter in the pipe asks for an orderly end: SIGTERM, and SIGKILL after SECONDS. When the command ends, what it left
behind is killed, and the leash exits as the command did (128 + n for signal n). Should the leash itself be killed, the
command's own process dies with it, by the kernel, and the actor kills the rest, known by its environment.

Standard library only, and nothing of Rollbook: it starts in 20 ms, beside processes that load models. Linux only, as
Ray's fleets are.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a command."""
ORDERLY = b"t"
SWEEP_SECONDS = 5.0
"""For what was killed to be gone. A process that the kernel still holds (a GPU's driver may) delays nobody longer."""


def main(seconds: float, command: str) -> int:
    """Run the command until it ends or is to end; its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Whoever loses his parent becomes a child of this process, so that no descendant gets away.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    me = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, libc, me)
    watched = [0, woken]
    until: float | None = None
    code: int | None = None
    while code is None:
        left = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select(watched, [], [], left)
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready:
            if os.read(0, 1) != ORDERLY:
                break
            watched, until = [woken], time.monotonic() + seconds
            os.killpg(0, signal.SIGTERM)
        code = _reaped(child)
        if until is not None and time.monotonic() >= until:
            break
    _kill_the_rest()
    if code is None:
        return SIGNALLED + signal.SIGKILL
    return code if code >= 0 else SIGNALLED - code


def _become(command: str, libc: ctypes.CDLL, parent: int) -> None:
    """Replace this new process by the command. Does not return."""
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(SIGNALLED + signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv("/bin/sh", ["/bin/sh", "-c", command])  # noqa: S606 - it is the shell
    finally:
        os._exit(127)


def _reaped(child: int) -> int | None:
    """Take note of all processes that have ended; how `child` did, if it is one of them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _kill_the_rest() -> None:
    until = time.monotonic() + SWEEP_SECONDS
    while (left := _descendants(os.getpid())) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reaped(0)
        time.sleep(0.005)


def _descendants(pid: int) -> list[int]:
    """All processes below that one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *_descendants(child)]
    return found


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2]))
