"""Rollbook's own programs as an operator runs them, and workers for them that answer HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 90.0
"""Seconds for anything that another process does; the machine may be busy."""
ROLLBOOK: Final = (sys.executable, "-m", "rollbook.adapters.cli.main")

_WORKERS: Final = """
import asyncio, contextlib, sys
from rollbook.adapters.demo.worker import serve

async def main():
    async with contextlib.AsyncExitStack() as stack:
        print(*[await stack.enter_async_context(serve(name, 1)) for name in sys.argv[1:]], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would configure Rollbook, and `more`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBOOK_")}
    return clean | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "NO_COLOR": "1"} | more


def wait_until(seen: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Look again and again until something is seen; returns it."""
    until = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < until, "not seen in time"
        time.sleep(0.02)
    return found


@contextmanager
def demo_workers(names: Sequence[str]) -> Generator[dict[str, str]]:
    """Workers in a process of their own: the `host:port` of each, by name."""
    command = [sys.executable, "-c", _WORKERS, *names]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield dict(zip(names, process.stdout.readline().decode().split(), strict=True))
        finally:
            process.kill()
