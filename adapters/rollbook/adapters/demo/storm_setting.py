"""What a chaos run is set up with: the configuration of Rollbook's programs, and how the workers are started."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from rollbook.adapters.demo.stage import ANSWER_SECONDS, FLEET, POOL, PROXY
from rollbook.adapters.demo.worker import DemoWorker
from rollbook.adapters.ray.spec import CommandWorkerSpec, ServeWorkerSpec, import_path
from rollbook.adapters.settings import FILE_NAME

_AUTH_FILE: Final = ".rollbook/token"

_COMMON: Final[dict[str, Any]] = {
    "restart": "recoverer",
    "process_seconds": 30.0,
    "start_seconds": 30.0,
    "ray_options": {"scheduling_strategy": "SPREAD"},
}
"""Of the specs of all workers. With the default times one that hangs while it starts would outlast a short run."""

_CONFIGURATION: Final = """\
# What `rollbook demo --chaos` runs with.
fleet = "{fleet}"

[nats]
url = "nats://127.0.0.1:{nats}"
token = {{ file = "{token}" }}

[provider]
kind = "ray"
address = "{ray}"

[pools.{pool}]

[pools.{pool}.health]  # the defaults are for engines that load weights, and for fleets in which this is rare
interval = 1.0
timeout = 2.0
slow_threshold = 2
first_wait = 10.0

[pools.{pool}.recovery]
attempts = 30
window = 2100.0
backoff_first = 0.5
backoff_most = 2.0
claim = 60.0

[[proxies]]
name = "{proxy}"
kind = "sglang"
admin_url = "{router}"
pools = ["{pool}"]

[reconcile]
resync = 1.0  # the default is 5: how long it may take to notice that a router lost its list

[logs]
format = "json"
"""


def write_configuration(directory: Path, *, nats: str, ray: str, router: str) -> Path:
    """Write it into the folder, and the token that the URL of NATS holds into a file that only its owner can read."""
    token, _, place = nats.removeprefix("nats://").rpartition("@")
    with os.fdopen(os.open(directory / _AUTH_FILE, os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
        stream.write(token)
    port = place.rpartition(":")[2]
    file = directory / FILE_NAME
    about = {"fleet": FLEET, "pool": POOL, "proxy": PROXY, "router": router, "nats": port, "token": _AUTH_FILE}
    file.write_text(_CONFIGURATION.format(**about, ray=ray), encoding="utf-8")
    return file


def served(name: str) -> ServeWorkerSpec:
    """A worker whose server is in its actor's process."""
    actor, kwargs = import_path(DemoWorker), {"answer_seconds": ANSWER_SECONDS}
    return ServeWorkerSpec(name=name, actor=actor, kwargs=kwargs, **_COMMON)


def command(name: str) -> CommandWorkerSpec:
    """A worker whose server is a process of its own, which its actor has started."""
    program = f"exec {shlex.quote(sys.executable)} -m rollbook.adapters.demo.server"
    arguments = "{name} {incarnation} {host} {primary.port}"
    return CommandWorkerSpec(name=name, command=f"{program} {arguments}", **_COMMON)
