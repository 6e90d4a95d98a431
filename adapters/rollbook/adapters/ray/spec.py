"""What a worker is: a `WorkerSpec` says how to start it, `WorkerState` how it is now. Plain data, written as JSON.

Two kinds of worker: `ServeWorkerSpec` is a class of Python, `CommandWorkerSpec` a shell command. Workers of one pool
and cell are one cell: they are launched together, live and die together.

A spec outlives the process that wrote it: a manager that comes back reads it again, maybe on another node. So it holds
no objects: a class is named by its import path and its arguments are JSON values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from rollbook.adapters.ray.ports import PortInfo
from rollbook.events import RollbookError, WorkerName, parse_worker
from rollbook.projections.ports import HostAndPort, Identity


class InvalidSpec(RollbookError, ValueError):
    """A worker's description that cannot be started. The message names the worker and what to change."""


class Says(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a worker says who it is, so that a stranger on a reused port is not taken for it.

    Either in a header of its answer at `ready_path`, or in a field of the JSON object at another path.
    """

    header: str | None = None
    path: str | None = None
    """Such as `/server_info`."""
    field: str | None = None
    """The key in that object."""
    value: str = "{name}"
    """What it says there. `{name}` and `{incarnation}` stand for its own; the number tells its lives apart too."""


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What both kinds of worker have in common. Checked when it is made: raises `InvalidSpec`."""

    name: str
    """`<pool>-<cell>-<rank>`, or any name; then `pool` says where it belongs."""
    pool: str | None = None
    cell: str | None = None
    rank: int | None = None
    """Left out, the three come from the name. A cell of n workers has the ranks 0 to n-1."""
    entrypoint: bool | None = None
    """Whether it takes requests. Left out: rank 0 does."""
    ports: tuple[PortInfo, ...] = (PortInfo(),)
    """What it listens on."""
    urls: dict[str, str] = {}
    """URL template per kind of address, with `{address}`, `{host}` and `{port}`; left out: `http://{address}`."""
    env: dict[str, str] = {}
    """Environment of its code. The values are templates, filled in when its addresses are known: see `seat`."""
    ready_path: str | None = "/health"
    """It is up when GET on this path of its primary URL answers 200; None believes that it serves once started."""
    identity: Says | None = None
    """Where it says who it is; None for one that does not."""
    process_seconds: float = 300.0
    """How long Ray may take to start its process, the wait for free resources included."""
    start_seconds: float = 600.0
    """From the moment that all of its cell have numbers until it is ready. Long, because models are."""
    stop_seconds: float = 10.0
    """How long its own `stop` may take before its process is killed."""
    max_restarts: int | None = None
    """Restarts in a row that did not come to serve; then the manager gives it up. None: it never does."""
    restart: Literal["manager", "recoverer"] = "manager"
    """Who begins its next life: the manager at once, or a recoverer (`rollbook recover`), until which it stays down."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = None
    """The cell gets a placement group of this strategy, a bundle for each rank; None: Ray places each by itself."""
    ray_options: dict[str, Any] = {}
    """For `ray.remote`: num_cpus, num_gpus, resources, runtime_env, ... JSON values only."""

    def __post_init__(self) -> None:
        from rollbook.adapters.ray.checking import problems_of

        for problem in problems_of(self):
            raise InvalidSpec(f"worker {self.name!r}: {problem}")

    @property
    def place(self) -> WorkerName:
        """Its pool, cell and rank, whoever says them."""
        parsed = parse_worker(self.name)
        rank = parsed.rank if self.rank is None else self.rank
        return WorkerName(self.name, self.pool or parsed.pool, self.cell or parsed.cell, rank)

    @property
    def cell_key(self) -> str:
        """`<pool>/<cell>`, which names its cell within the fleet; a worker without a cell is one by itself."""
        place = self.place
        return f"{place.pool}/{place.cell}" if place.cell is not None else f"{place.pool}//{self.name}"

    def templates(self) -> list[str]:
        """All text of it that is filled in at every start."""
        return list(self.env.values())

    def identity_of(self, incarnation: int) -> Identity | None:
        """How that life of it says who it is."""
        says = self.identity
        if says is None:
            return None
        value = says.value.replace("{name}", self.name).replace("{incarnation}", str(incarnation))
        return Identity(value, says.header, says.path, says.field)


class ServeWorkerSpec(WorkerSpec, frozen=True, kw_only=True, omit_defaults=True, tag="serve"):
    """A worker that is a class of Python, held by Rollbook's own actor."""

    actor: str
    """Import path `module:Class` of a class that keeps the contract of `guest.WorkerActor`, importable where the worker
    runs. `import_path(Class)` writes it."""
    kwargs: dict[str, Any] = {}
    """Passed to the class besides `name`, `incarnation`, `host`, `port` and `seat`. JSON values only."""


class CommandWorkerSpec(WorkerSpec, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """A worker that is a shell command, and ends with it: see `command.CommandActor`."""

    command: str
    """For `/bin/sh`. A template: `sglang serve --host {host} --port {primary.port} --dist-init-addr {master.rpc}`."""
    cwd: str | None = None
    """Folder in which it runs; None: that of Ray's worker process."""

    def templates(self) -> list[str]:
        """See `WorkerSpec`."""
        return [self.command, *self.env.values()]


Spec = ServeWorkerSpec | CommandWorkerSpec


def import_path(cls: type) -> str:
    """`module:Class` for `ServeWorkerSpec.actor`. Raises `InvalidSpec` for a class that others cannot import."""
    if cls.__module__ == "__main__" or "." in cls.__qualname__:
        raise InvalidSpec(
            f"{cls.__module__}.{cls.__qualname__} cannot be imported by a worker's process; put the class at the top "
            "of a module that workers can import"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


Stage = Literal["creating", "waiting", "starting", "serving", "down", "given_up", "stopped"]
"""creating: Ray makes a process. waiting: it has no number yet, because the log does not answer. starting: its own code
runs, or it is not ready. down: dead, and will be started again. given_up: `max_restarts` is used up. stopped: as
planned, until it is started."""


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as the manager knows it at this moment."""

    name: str
    stage: Stage
    pool: str | None = None
    cell_incarnation: int = 0
    """The same for all ranks of one start of its cell; 0 in a cell of one worker."""
    incarnation: int = 0
    """Of its newest life; 0 before the log has numbered its first one."""
    addresses: dict[str, HostAndPort] = {}
    """Of its newest life; they stay when that is over, as where it was last."""
    urls: dict[str, str] = {}
    """Of the same, as the spec's `urls` write them."""
    identity: Identity | None = None
    """How its newest life says who it is."""
    pid: int | None = None
    node: str | None = None
    restarts: int = 0
    """Lives that this manager began after the first one."""
    reason: str = ""
    """Why it is not serving, for people."""
    unsure: bool = False
    """Whether its newest life may go on: its manager was restarted, and the process has not said yet who it is."""

    @property
    def alive(self) -> bool:
        """Whether its newest life goes on."""
        return self.stage in {"starting", "serving"}

    @property
    def over(self) -> bool:
        """Whether its newest life is over, and the manager has seen its end."""
        return self.stage in {"down", "given_up", "stopped"}


def encode_specs(specs: Iterable[Spec]) -> bytes:
    """For the way to the manager and into its records."""
    return msgspec.json.encode(list(specs))


def decode_specs(data: bytes) -> list[Spec]:
    """The inverse. Raises `InvalidSpec` for what another version wrote differently."""
    try:
        return msgspec.json.decode(data, type=list[Spec])
    except msgspec.MsgspecError as exc:
        raise InvalidSpec(f"the specs cannot be read: {exc}; are launcher and manager of one version?") from exc


def encode_states(states: Iterable[WorkerState]) -> bytes:
    """For the way back."""
    return msgspec.json.encode(list(states))


def decode_states(data: bytes) -> dict[str, WorkerState]:
    """The inverse, by name. Raises `msgspec.MsgspecError` for what another version wrote differently."""
    return {state.name: state for state in msgspec.json.decode(data, type=list[WorkerState])}
