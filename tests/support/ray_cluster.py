"""A Ray of two nodes, each a group of processes that a test can kill as a machine's crash does, and start again.

No test process joins it: whoever does goes down with what is tried here. Drivers are processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from support.ray import ROOT

HEAD, SECOND = "127.0.0.12", "127.0.0.13"
RESOURCES = {HEAD: "head", SECOND: "second"}
"""One of these a node has, for a worker that is to be on it."""
SECONDS = 300.0
_STORE_BYTES = 80_000_000
_WATCHFUL = {
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 1000,
}
"""With Ray's own settings a dead node is noticed after half a minute."""

_LIGHT = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
"""Ray would start a Python for every CPU, to have them at hand."""


class Cluster:
    """Two nodes; `address` is for `ray.init`, and stays the same over restarts of the head."""

    def __init__(self, cpus: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rollbook-ray-"))
        self._cpus = cpus
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free:
            free.bind((HEAD, 0))
            self.address = f"{HEAD}:{free.getsockname()[1]}"

    def start(self, ip: str) -> None:
        """Return when the head has counted it. Again, if the machine was too busy for Ray's own patience."""
        until = time.monotonic() + SECONDS
        while not self._start(ip, until):
            self.kill(ip)
            assert time.monotonic() < until, (self._folder / "ray.log").read_text()[-2000:]

    def _start(self, ip: str, until: float) -> bool:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        place = [f"--address={self.address}"]
        if ip == HEAD:
            port = self.address.rpartition(":")[2]
            config = f"--system-config={json.dumps(_WATCHFUL)}"
            place = ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor", config]
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *place]
        line += [f"--node-ip-address={ip}", f"--num-cpus={self._cpus}", f"--object-store-memory={_STORE_BYTES}"]
        line += [
            "--include-log-monitor=false",
            f"--resources={json.dumps({RESOURCES[ip]: 1})}",
            f"--temp-dir={folder}",
            "--disable-usage-stats",
        ]
        with (self._folder / "ray.log").open("ab") as log:
            node = self._nodes[ip] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        while node.poll() is None and time.monotonic() < until:
            if ip in self.alive():
                return True
            time.sleep(0.3)
        return False

    def kill(self, ip: str) -> None:
        """End all its processes at once."""
        node = self._nodes.pop(ip, None)
        if node is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()

    def alive(self) -> set[str]:
        """The nodes that the head counts; none if it does not answer."""
        from ray._raylet import GcsClient

        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
            nodes = GcsClient(address=self.address).get_all_node_info(timeout=5)
        except Exception:  # noqa: BLE001 - Ray has many errors for a head that is not up yet
            return set()
        return {node.node_manager_address for node in nodes.values() if node.state == 0}

    def close(self) -> None:
        for ip in list(self._nodes):
            self.kill(ip)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def two_nodes(cpus: int) -> Iterator[Cluster]:
    """Both up; gone at the end."""
    cluster = Cluster(cpus)
    try:
        cluster.start(HEAD)
        cluster.start(SECOND)
        yield cluster
    finally:
        cluster.close()


def environment(**more: str) -> dict[str, str]:
    """For a process whose Ray workers find our code, and the tests'."""
    path = os.pathsep.join(str(ROOT / part) for part in ("events", "projections", "adapters", "tests"))
    return {**os.environ, "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled", **_LIGHT, **more}
