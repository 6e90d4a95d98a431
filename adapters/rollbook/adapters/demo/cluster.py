"""A local Ray for the length of a demo, with its files in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Final

from rollbook.adapters.demo.errors import DemoFailed, MissingExtra

ADDRESS: Final = "127.0.0.2"
"""Where the workers listen. Loopback, so that nobody else on the network can reach them; and not 127.0.0.1, which Ray
replaces by the machine's own address."""

_QUIET: Final = {
    # Ray would print every death of a worker on standard output, where the report goes. Read when it is imported.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # Ray would take SIGTERM for a crash, and print a trace of the stack before the demo ends.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
}


def require_ray() -> None:
    """Raise `MissingExtra` if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("ray")


@contextlib.asynccontextmanager
async def local_ray(cpus: int) -> AsyncGenerator[None]:
    """Start one and connect this process to it; end all of its processes at the end. Raises `DemoFailed`."""
    thread = _Thread(cpus)
    try:
        try:
            await thread.start()
        except DemoFailed:  # Ray waits 30 s for itself, which can be too little on a busy machine
            thread = _Thread(cpus)
            await thread.start()
        yield
    finally:
        await thread.stop()


class _Thread:
    """Starts Ray, lives as long as it, and ends it.

    Ray's calls block for seconds; and its processes end with the thread that started them, so that neither a demo that
    is killed nor a start that failed leaves any behind.
    """

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._ready: Future[None] = Future()
        self._gone: Future[None] = Future()
        self._stop = threading.Event()

    async def start(self) -> None:
        threading.Thread(target=self._run, name="local-ray", daemon=True).start()
        await asyncio.shield(asyncio.wrap_future(self._ready))

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.wrap_future(self._gone)

    def _run(self) -> None:
        os.environ.update(_QUIET)
        import ray

        # Ray has a handler of its own on standard error, and warns of what is meant to be so here.
        logging.getLogger("ray").setLevel(logging.ERROR)
        # Not in the run's folder: Ray puts sockets there, whose paths have room for about a hundred letters.
        folder = tempfile.mkdtemp(prefix="rollbook-ray-")
        try:
            ray.init(
                address="local",
                num_cpus=self._cpus,
                include_dashboard=False,
                configure_logging=False,
                log_to_driver=False,
                _node_ip_address=ADDRESS,
                _temp_dir=folder,
            )
            self._ready.set_result(None)
            self._stop.wait()
        except Exception as exc:  # noqa: BLE001 - it belongs to whoever waits
            self._ready.set_exception(DemoFailed(f"Ray did not start: {exc}"))
        finally:
            ray.shutdown(wait_for_processes=True)
            shutil.rmtree(folder, ignore_errors=True)
            if self._gone.set_running_or_notify_cancel():
                self._gone.set_result(None)
