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
async def local_ray(cpus: int) -> AsyncGenerator[str]:
    """Start one and yield its address; end all of its processes at the end. Raises `DemoFailed`.

    One thread does both and lives in between: Ray's calls block for seconds, and its processes end with the thread
    that started them, so that a demo that is killed leaves none behind.
    """
    ready: Future[str] = Future()
    gone: Future[None] = Future()
    stop = threading.Event()
    thread = threading.Thread(target=_keep, args=(cpus, ready, stop, gone), name="local-ray", daemon=True)
    thread.start()
    try:
        yield await asyncio.shield(asyncio.wrap_future(ready))
    finally:
        stop.set()
        await asyncio.wrap_future(gone)


def _keep(cpus: int, ready: Future[str], stop: threading.Event, gone: Future[None]) -> None:
    os.environ.update(_QUIET)
    import ray

    # Ray has a handler of its own on standard error, and warns of what is meant to be so here.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Not in the run's folder: Ray puts sockets there, whose paths have room for about a hundred letters.
    folder = tempfile.mkdtemp(prefix="rollbook-ray-")
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            _node_ip_address=ADDRESS,
            _temp_dir=folder,
        )
        ready.set_result(str(ray.get_runtime_context().gcs_address))
        stop.wait()
    except Exception as exc:  # noqa: BLE001 - it belongs to whoever waits
        ready.set_exception(DemoFailed(f"Ray did not start: {exc}"))
    finally:
        ray.shutdown(wait_for_processes=True)
        shutil.rmtree(folder, ignore_errors=True)
        if gone.set_running_or_notify_cancel():
            gone.set_result(None)
