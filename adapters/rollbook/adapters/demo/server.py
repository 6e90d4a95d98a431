"""The demo's worker as a program of its own, for workers that are a command: `NAME INCARNATION HOST PORT`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

from rollbook.adapters.demo.worker import DemoWorker


async def main(arguments: Sequence[str], answer_seconds: float = 0.05) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises `OSError` if the port is taken."""
    name, incarnation, host, port = arguments
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    worker = DemoWorker(
        name=name, incarnation=int(incarnation), host=host, port=int(port), answer_seconds=answer_seconds
    )
    await worker.start()
    await stop.wait()
    await worker.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
