"""A local Ray for the length of a demo, with its files in a folder of its own; and a second node for it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import msgspec

from rollbook.adapters.children import crash, tied
from rollbook.adapters.demo.errors import DemoFailed, MissingExtra

ADDRESS: Final = "127.0.0.2"
"""Where the workers listen. Loopback, so that nobody else on the network can reach them; and not 127.0.0.1, which Ray
replaces by the machine's own address."""

SECOND_ADDRESS: Final = "127.0.0.3"
"""The same for the second node."""

NODE_SECONDS: Final = 600.0
"""For the second node to join: it takes 4 s alone on two cores. Its raylet dies if its agents need more than 15 s to
start, so on a machine that is far too busy it is started again and again."""

_STORE_BYTES: Final = 100_000_000
"""For Ray's objects on the second node, which has none."""

_WATCHFUL: Final = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
"""With Ray's own settings a dead node is noticed after half a minute. A slow one has as long as ever."""

_QUIET: Final = {
    # Ray would print every death of a worker on standard output, where the report goes. Read when it is imported.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # Ray would take SIGTERM for a crash, and print a trace of the stack before the demo ends.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
}

_POLL_SECONDS: Final = 0.2


def require_ray() -> None:
    """Raise `MissingExtra` if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("ray")


class LocalRay(msgspec.Struct, frozen=True):
    """One that runs."""

    address: str
    """As `ray.init` takes it."""
    folder: str
    """Where its files are; removed with it."""


@contextlib.asynccontextmanager
async def local_ray(cpus: int, *, watchful: bool = False) -> AsyncGenerator[LocalRay]:
    """Start one and connect this process to it; end all of its processes at the end. Raises `DemoFailed`.

    A `watchful` one notices within seconds that another node is dead.
    """
    first = thread = _Thread(cpus, watchful=watchful)
    try:
        try:
            started = await thread.start()
        except DemoFailed:  # Ray waits 30 s for itself, which can be too little on a busy machine
            thread = _Thread(cpus, watchful=watchful)
            started = await thread.start()
        yield started
    finally:
        await thread.stop()
        # Once more: what a start that failed had begun may have written on for a while.
        shutil.rmtree(first.folder, ignore_errors=True)


class SecondNode:
    """A second node of a local Ray: a raylet of its own, which can be killed and brought back.

    Its processes end with the one that is killed here, and that one ends with this process.
    """

    def __init__(self, ray: LocalRay, cpus: int, directory: Path) -> None:
        self._ray = ray
        self._cpus = cpus
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return when it has joined. Raises `DemoFailed`.

        Ray waits 30 s for itself, which can be too little on a busy machine: then it is started once more.
        """
        until = time.monotonic() + NODE_SECONDS
        process = await self._spawn()
        while not await asyncio.to_thread(_is_alive, SECOND_ADDRESS):
            if time.monotonic() > until:
                await self.kill()
                raise DemoFailed(f"the second Ray node did not join within {NODE_SECONDS:g} s; see ray-node.log")
            if process.returncode is not None:
                await self.kill()
                process = await self._spawn()
            await asyncio.sleep(_POLL_SECONDS)

    async def _spawn(self) -> asyncio.subprocess.Process:
        line = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            f"--address={self._ray.address}",
            f"--node-ip-address={SECOND_ADDRESS}",
            f"--num-cpus={self._cpus}",
            f"--object-store-memory={_STORE_BYTES}",
            f"--temp-dir={Path(self._ray.folder) / 'b'}",
            "--disable-usage-stats",
        ]
        with (self._directory / "ray-node.log").open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *tied(line),
                cwd=self._directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._process

    async def kill(self) -> None:
        """End it as a machine's crash does. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            await crash(process)

    async def gone(self) -> None:
        """Wait until Ray knows that it is dead: before that it is not to come back under its address."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NODE_SECONDS):
                while await asyncio.to_thread(_is_alive, SECOND_ADDRESS):  # noqa: ASYNC110 - Ray tells nobody
                    await asyncio.sleep(_POLL_SECONDS)


def _is_alive(address: str) -> bool:
    """Whether Ray has a living node there. Blocks."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return any(node["Alive"] and node["NodeManagerAddress"] == address for node in nodes)


class _Thread:
    """Starts Ray, lives as long as it, and ends it.

    Ray's calls block for seconds; and its processes end with the thread that started them, so that neither a demo that
    is killed nor a start that failed leaves any behind.
    """

    def __init__(self, cpus: int, *, watchful: bool) -> None:
        self._cpus = cpus
        self._watchful = watchful
        self.folder = ""
        self._ready: Future[LocalRay] = Future()
        self._gone: Future[None] = Future()
        self._stop = threading.Event()

    async def start(self) -> LocalRay:
        threading.Thread(target=self._run, name="local-ray", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(self._ready))

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.wrap_future(self._gone)

    def _run(self) -> None:
        os.environ.update(_QUIET)
        import ray

        # Ray has a handler of its own on standard error, and warns of what is meant to be so here.
        logging.getLogger("ray").setLevel(logging.ERROR)
        # Not in the run's folder: Ray puts sockets there, whose paths have room for about a hundred letters.
        folder = self.folder = tempfile.mkdtemp(prefix="rollbook-ray-")
        try:
            ray.init(
                address="local",
                num_cpus=self._cpus,
                include_dashboard=False,
                configure_logging=False,
                log_to_driver=False,
                _node_ip_address=ADDRESS,
                _temp_dir=folder,
                _system_config=_WATCHFUL if self._watchful else None,
            )
            self._ready.set_result(LocalRay(str(ray.get_runtime_context().gcs_address), folder))
            self._stop.wait()
        except Exception as exc:  # noqa: BLE001 - it belongs to whoever waits
            self._ready.set_exception(DemoFailed(f"Ray did not start: {exc}"))
        finally:
            ray.shutdown(wait_for_processes=True)
            shutil.rmtree(folder, ignore_errors=True)
            if self._gone.set_running_or_notify_cancel():
                self._gone.set_result(None)
