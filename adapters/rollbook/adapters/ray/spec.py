"""What a worker is: `WorkerSpec` says how to start it, `WorkerState` how it is now. Plain data, written as JSON.

A spec outlives the process that wrote it: a manager that comes back reads it again, maybe on another node. So it holds
no objects: a class is named by its import path and its arguments are JSON values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from rollbook.events import InvalidName, RollbookError, parse_worker, validate_name
from rollbook.projections.ports import HostAndPort, Identity

_OWNED_OPTIONS: Final = frozenset(
    {"get_if_exists", "lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name", "namespace"}
)
"""Options of `ray.remote` that the manager sets itself: they carry the worker's identity."""
_OWNED_ARGUMENTS: Final = frozenset({"name", "incarnation", "host", "port"})


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


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to start one worker. Checked when it is made: raises `InvalidSpec`."""

    name: str
    """`<pool>-<cell>-<rank>`, or any name; then `pool` says where it belongs."""
    actor: str
    """Import path `module:Class` of a class that keeps the contract of `guest.WorkerActor`, importable where the worker
    runs. `import_path(Class)` writes it."""
    kwargs: dict[str, Any] = {}
    """Passed to the class besides `name`, `incarnation`, `host` and `port`. JSON values only."""
    pool: str | None = None
    cell: str | None = None
    rank: int | None = None
    """Left out, the three come from the name."""
    entrypoint: bool | None = None
    """Whether it takes requests. Left out: rank 0 does."""
    port: int = 0
    """Port of the primary address; 0 lets the worker's system choose."""
    keep_port: bool = True
    """Whether a restarted worker tries the port of its former life first, so that its URL stays. If that port is taken
    it takes `port` instead."""
    ready_path: str | None = "/health"
    """It is up when GET on this path of its primary address answers 200; None believes `start`."""
    identity: Says | None = None
    """Where it says who it is; None for one that does not."""
    process_seconds: float = 300.0
    """How long Ray may take to start its process, the wait for free resources included."""
    start_seconds: float = 600.0
    """From its number until it is ready. Long, because models are."""
    stop_seconds: float = 10.0
    """How long its own `stop` may take before its process is killed."""
    max_restarts: int | None = None
    """Restarts in a row that did not come to serve; then the manager gives it up. None: it never does."""
    restart: Literal["manager", "recoverer"] = "manager"
    """Who begins its next life: the manager at once, or a recoverer (`rollbook recover`), until which it stays down."""
    ray_options: dict[str, Any] = {}
    """For `ray.remote`: num_cpus, num_gpus, resources, runtime_env, ... JSON values only."""

    def __post_init__(self) -> None:
        for problem in (*self._misnamed(), *self._out_of_range(), *self._misplaced()):
            raise InvalidSpec(f"worker {self.name!r}: {problem}")

    def _misnamed(self) -> Iterable[str]:
        try:
            parsed = parse_worker(self.name)
            for kind, value in (("pool", self.pool), ("cell", self.cell)):
                if value is not None:
                    validate_name(kind, value)
        except InvalidName as exc:
            yield str(exc)
        else:
            if parsed.pool is None and self.pool is None:
                yield "its name does not say its pool; call it <pool>-<cell>-<rank>, or give pool"
        module, _, name = self.actor.partition(":")
        if not (module and name):
            yield f"actor {self.actor!r} is no import path; write module:Class"

    def _out_of_range(self) -> Iterable[str]:
        if not 0 <= self.port < 65536:  # noqa: PLR2004 - the range of ports
            yield f"port {self.port} is no port; 0 lets the system choose"
        if self.rank is not None and self.rank < 0:
            yield f"rank {self.rank} is less than 0"
        if self.ready_path is not None and not self.ready_path.startswith("/"):
            yield f"ready_path {self.ready_path!r} must begin with '/', or be None"
        if self.identity is not None:
            yield from self._nameless(self.identity)
        for field in ("process_seconds", "start_seconds", "stop_seconds"):
            seconds = getattr(self, field)
            if not 0 < seconds < float("inf"):
                yield f"{field} is {seconds}; it must be more than 0 and finite"
        if self.max_restarts is not None and self.max_restarts < 0:
            yield f"max_restarts is {self.max_restarts}; it must be 0 or more, or None"
        if self.max_restarts is not None and self.restart == "recoverer":
            yield "max_restarts is the manager's; with restart 'recoverer' set attempts in the pool's recovery policy"
        if self.restart not in {"manager", "recoverer"}:
            yield f"restart {self.restart!r} is neither 'manager' nor 'recoverer'"

    def _nameless(self, says: Says) -> Iterable[str]:
        """Why nobody could ask it who it is."""
        if self.ready_path is None:
            yield "identity is asked for at ready_path, which is None"
        if (says.header is None) == (says.path is None) or (says.path is None) != (says.field is None):
            yield "identity names either a header, or a path and a field"
        if says.path is not None and not says.path.startswith("/"):
            yield f"identity.path {says.path!r} must begin with '/'"

    def identity_of(self, incarnation: int) -> Identity | None:
        """How that life of it says who it is."""
        says = self.identity
        if says is None:
            return None
        value = says.value.replace("{name}", self.name).replace("{incarnation}", str(incarnation))
        return Identity(value, says.header, says.path, says.field)

    def _misplaced(self) -> Iterable[str]:
        if taken := _OWNED_ARGUMENTS & self.kwargs.keys():
            yield f"kwargs may not hold {_listed(taken)}: the manager passes them"
        if taken := _OWNED_OPTIONS & self.ray_options.keys():
            yield f"ray_options may not hold {_listed(taken)}: the manager sets them"
        for field, values in (("kwargs", self.kwargs), ("ray_options", self.ray_options)):
            if not _is_plain(values):
                yield f"{field} must be JSON values (text, numbers, lists, dictionaries with text keys, None)"


def import_path(cls: type) -> str:
    """`module:Class` for `WorkerSpec.actor`. Raises `InvalidSpec` for a class that another process cannot import."""
    if cls.__module__ == "__main__" or "." in cls.__qualname__:
        raise InvalidSpec(
            f"{cls.__module__}.{cls.__qualname__} cannot be imported by a worker's process; put the class at the top "
            "of a module that workers can import"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def check_specs(specs: Iterable[WorkerSpec]) -> list[WorkerSpec]:
    """The specs as a list. Raises `InvalidSpec` if two have one name."""
    found: dict[str, WorkerSpec] = {}
    for spec in specs:
        if spec.name in found:
            raise InvalidSpec(f"worker {spec.name!r} is described twice; a name belongs to one worker")
        found[spec.name] = spec
    return list(found.values())


Stage = Literal["creating", "waiting", "starting", "serving", "down", "given_up", "stopped"]
"""creating: Ray makes a process. waiting: it has no number yet, because the log does not answer. starting: its own code
runs, or it is not ready. down: dead, and will be started again. given_up: `max_restarts` is used up."""


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as the manager knows it at this moment."""

    name: str
    stage: Stage
    incarnation: int = 0
    """Of its newest life; 0 before the log has numbered its first one."""
    addresses: dict[str, HostAndPort] = {}
    """Of its newest life; they stay when that is over, as where it was last."""
    identity: Identity | None = None
    """How its newest life says who it is."""
    pid: int | None = None
    node: str | None = None
    restarts: int = 0
    """Lives that this manager began after the first one."""
    reason: str = ""
    """Why it is not serving, for people."""

    @property
    def alive(self) -> bool:
        """Whether its newest life goes on."""
        return self.stage in {"starting", "serving"}


def _is_plain(values: object) -> bool:
    """Whether JSON gives back the same."""
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(values)) == values)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return False


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def encode_specs(specs: Iterable[WorkerSpec]) -> bytes:
    """For the way to the manager and into its records."""
    return msgspec.json.encode(list(specs))


def decode_specs(data: bytes) -> list[WorkerSpec]:
    """The inverse. Raises `InvalidSpec` for what another version wrote differently."""
    try:
        return msgspec.json.decode(data, type=list[WorkerSpec])
    except msgspec.MsgspecError as exc:
        raise InvalidSpec(f"the specs cannot be read: {exc}; are launcher and manager of one version?") from exc


def encode_states(states: Iterable[WorkerState]) -> bytes:
    """For the way back."""
    return msgspec.json.encode(list(states))


def decode_states(data: bytes) -> dict[str, WorkerState]:
    """The inverse, by name. Raises `msgspec.MsgspecError` for what another version wrote differently."""
    return {state.name: state for state in msgspec.json.decode(data, type=list[WorkerState])}
