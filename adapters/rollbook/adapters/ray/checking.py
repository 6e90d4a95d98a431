"""What can be wrong with the description of a worker, and of a cell; each as a sentence. Pure.

A cell's workers are described together: their ranks, and what holds for the cell as a whole, must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from rollbook.adapters.ray import ports, seat
from rollbook.adapters.ray.ports import PRIMARY, PortInfo, of_rank
from rollbook.adapters.ray.spec import CommandWorkerSpec, InvalidSpec, Says, ServeWorkerSpec, Spec, WorkerSpec
from rollbook.events import InvalidName, parse_worker, validate_name

_OWNED_OPTIONS: Final = frozenset(
    {"get_if_exists", "lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name", "namespace"}
)
"""Options of `ray.remote` that the manager sets itself: they carry the worker's identity."""
_PLACING: Final = frozenset({"placement_group", "placement_group_bundle_index", "scheduling_strategy"})
_ANY_OF_ITS_TYPE: Final = 0.001
"""What Ray asks a node for to see that it has an accelerator of a type."""
_OWNED_ARGUMENTS: Final = frozenset({"name", "incarnation", "host", "port", "seat"})
_STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_FIELD: Final = re.compile(r"\{\w*\}")
_OF_A_URL: Final = frozenset({"{address}", "{host}", "{port}"})
_OF_THE_CELL: Final = ("restart", "max_restarts", "placement")
"""Fields that a cell's workers must have in common."""


def problems_of(spec: WorkerSpec) -> Iterable[str]:
    """What is wrong with one worker, if anything is."""
    yield from _misnamed(spec)
    yield from _out_of_range(spec)
    yield from _misplaced(spec)
    yield from ports.problems(spec.ports)
    yield from _unwritable(spec)
    yield from _untakable(spec)


def cells_of(specs: Iterable[Spec]) -> dict[str, tuple[Spec, ...]]:
    """The specs by cell, in the order of ranks. Raises `InvalidSpec` for what does not go together."""
    names: set[str] = set()
    cells: dict[str, list[Spec]] = {}
    for spec in specs:
        if spec.name in names:
            raise InvalidSpec(f"worker {spec.name!r} is described twice; a name belongs to one worker")
        names.add(spec.name)
        cells.setdefault(spec.cell_key, []).append(spec)
    found: dict[str, tuple[Spec, ...]] = {}
    for key, members in cells.items():
        ranks = tuple(sorted(members, key=lambda spec: spec.place.rank))
        for problem in _discordant(ranks):
            raise InvalidSpec(f"cell {key}: {problem}")
        found[key] = ranks
    return found


def bundle_of(spec: WorkerSpec) -> dict[str, float]:
    """What one worker asks of its node, as a bundle of a placement group: Ray's own names, without zeros."""
    options = spec.ray_options
    asked: dict[str, Any] = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    asked |= {kind: options.get(kind, 0) for kind in ("memory", "object_store_memory")}
    if (accelerator := options.get("accelerator_type")) is not None:
        asked[f"accelerator_type:{accelerator}"] = _ANY_OF_ITS_TYPE
    asked |= options.get("resources") or {}
    return {name: float(amount) for name, amount in asked.items() if amount}


def _discordant(ranks: Sequence[Spec]) -> Iterable[str]:
    first = ranks[0]
    if len(ranks) > 1 and [spec.place.rank for spec in ranks] != list(range(len(ranks))):
        told = ", ".join(f"{spec.name} has {spec.place.rank}" for spec in ranks)
        yield f"its {len(ranks)} workers must have the ranks 0 to {len(ranks) - 1}, each once: {told}"
    for field in _OF_THE_CELL:
        for spec in ranks:
            if getattr(spec, field) != getattr(first, field):
                yield (
                    f"{first.name} and {spec.name} differ in {field}; its workers live and die together, so they must "
                    "have it in common"
                )
    of_first = of_rank(first.ports, first.place.rank)
    shared = _counts(info for info in of_first if info.per == "master" and first.place.rank == 0)
    for spec in ranks:
        own = _counts(of_rank(spec.ports, spec.place.rank))
        for text in spec.templates():
            try:
                seat.check(text, own | shared, _counts(of_first))
            except seat.TemplateError as exc:
                yield f"{spec.name}: {exc}"


def _counts(infos: Iterable[PortInfo]) -> dict[str, int]:
    return {info.name: info.count for info in infos}


def _misnamed(spec: WorkerSpec) -> Iterable[str]:
    try:
        parsed = parse_worker(spec.name)
        for kind, value in (("pool", spec.pool), ("cell", spec.cell)):
            if value is not None:
                validate_name(kind, value)
    except InvalidName as exc:
        yield str(exc)
        return
    if parsed.pool is None and spec.pool is None:
        yield "its name does not say its pool; call it <pool>-<cell>-<rank>, or give pool"
    if isinstance(spec, ServeWorkerSpec):
        module, _, name = spec.actor.partition(":")
        if not (module and name):
            yield f"actor {spec.actor!r} is no import path; write module:Class"
    if isinstance(spec, CommandWorkerSpec) and not spec.command.strip():
        yield "its command is empty"


def _out_of_range(spec: WorkerSpec) -> Iterable[str]:
    if spec.rank is not None and spec.rank < 0:
        yield f"rank {spec.rank} is less than 0"
    if spec.ready_path is not None and not spec.ready_path.startswith("/"):
        yield f"ready_path {spec.ready_path!r} must begin with '/', or be None"
    if spec.identity is not None:
        yield from _nameless(spec, spec.identity)
    for field in ("process_seconds", "start_seconds", "stop_seconds"):
        seconds = getattr(spec, field)
        if not 0 < seconds < float("inf"):
            yield f"{field} is {seconds}; it must be more than 0 and finite"
    if spec.max_restarts is not None and spec.max_restarts < 0:
        yield f"max_restarts is {spec.max_restarts}; it must be 0 or more, or None"
    if spec.max_restarts is not None and spec.restart == "recoverer":
        yield "max_restarts is the manager's; with restart 'recoverer' set attempts in the pool's recovery policy"
    if spec.restart not in {"manager", "recoverer"}:
        yield f"restart {spec.restart!r} is neither 'manager' nor 'recoverer'"


def _nameless(spec: WorkerSpec, says: Says) -> Iterable[str]:
    """Why nobody could ask it who it is."""
    if spec.ready_path is None:
        yield "identity is asked for at ready_path, which is None"
    if (says.header is None) == (says.path is None) or (says.path is None) != (says.field is None):
        yield "identity names either a header, or a path and a field"
    if says.path is not None and not says.path.startswith("/"):
        yield f"identity.path {says.path!r} must begin with '/'"


def _misplaced(spec: WorkerSpec) -> Iterable[str]:
    kwargs: dict[str, Any] = spec.kwargs if isinstance(spec, ServeWorkerSpec) else {}
    if taken := _OWNED_ARGUMENTS & kwargs.keys():
        yield f"kwargs may not hold {_listed(taken)}: the manager passes them"
    if taken := _OWNED_OPTIONS & spec.ray_options.keys():
        yield f"ray_options may not hold {_listed(taken)}: the manager sets them"
    if not _is_text(spec.env):
        yield "env must be text, each value under its name"
        return
    for field, values in (("kwargs", kwargs), ("ray_options", spec.ray_options)):
        if not _is_plain(values):
            yield f"{field} must be JSON values (text, numbers, lists, dictionaries with text keys, None)"
            return
    if spec.placement is None:
        return
    if spec.placement not in _STRATEGIES:
        yield f"placement {spec.placement!r} is none of {', '.join(_STRATEGIES)}"
    if taken := _PLACING & spec.ray_options.keys():
        yield f"ray_options may not hold {_listed(taken)} together with placement"
    if not bundle_of(spec):
        yield "placement needs something to reserve: give num_cpus, num_gpus or resources in ray_options"


def _unwritable(spec: WorkerSpec) -> Iterable[str]:
    own = [info.name for info in of_rank(spec.ports, spec.place.rank)]
    if taken := seat.RESERVED & set(own):
        yield f"no port can be called {_listed(taken)}: templates mean something else by that"
    if spec.ready_path is not None and isinstance(spec, CommandWorkerSpec) and PRIMARY not in own:
        yield f"ready_path is asked at its port {PRIMARY!r}, which it does not have; give that port, or ready_path=None"
    for text in spec.templates():
        try:
            seat.check(text)
        except seat.TemplateError as exc:
            yield str(exc)
    for kind, template in spec.urls.items():
        for field in sorted(set(_FIELD.findall(template)) - _OF_A_URL):
            yield f"the url of {kind!r} names {field}; there are {_listed(_OF_A_URL)}"


def _untakable(spec: WorkerSpec) -> Iterable[str]:
    """What no operating system takes: every start would fail of it."""
    for name in spec.env:
        if not name or "=" in name or "\0" in name:
            yield f"env: {name[:80]!r} can be no variable's name"
    texts = {f"env: the value of {name}": value for name, value in spec.env.items()}
    if isinstance(spec, CommandWorkerSpec):
        texts |= {"its command": spec.command, "cwd": spec.cwd or ""}
    yield from (f"{what} holds a NUL character" for what, text in texts.items() if "\0" in text)


def _is_text(values: object) -> bool:
    try:
        msgspec.convert(values, dict[str, str])
    except msgspec.ValidationError:
        return False
    return True


def _is_plain(values: object) -> bool:
    """Whether JSON gives back the same."""
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(values)) == values)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return False


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
