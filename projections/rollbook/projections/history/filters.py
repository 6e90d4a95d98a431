"""Which facts a person asked for, and which subjects they can stand on: what the server need not send is left to it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollbook.events import (
    FACTS,
    Fact,
    FleetObserved,
    InvalidSubject,
    OperatorFact,
    OperatorProxyFact,
    OperatorWorkerFact,
    Recorded,
    WorkerFact,
    parse_worker,
    stream_subjects,
    type_of,
)
from rollbook.events.subjects import operator_worker_subject, parse_subject, proxy_subject, worker_subject
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State

Place = tuple[str | None, str | None]
"""Pool and cell."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted; None or empty: all. Every condition must hold."""

    worker: str | None = None
    """Facts about it, and those that mention it."""
    pool: str | None = None
    """Facts about its workers, and those that name the pool."""
    cell: str | None = None
    proxy: str | None = None
    types: frozenset[str] = frozenset()
    operator: str | None = None
    """Who decided."""
    incarnation: int | None = None
    places: dict[str, Place] = {}
    """Pool and cell of workers whose names do not say them."""

    def admits(self, recorded: Recorded) -> bool:
        """Whether a fact is wanted."""
        fact = recorded.fact
        return (
            (not self.types or type_of(fact) in self.types)
            and (self.worker is None or mentions(fact, self.worker))
            and (self.proxy is None or _at(fact, self.proxy))
            and (self.operator is None or (isinstance(fact, OperatorFact) and fact.by == self.operator))
            and (self.incarnation is None or self._of_life(fact, self.incarnation))
            and ((self.pool is None and self.cell is None) or self._of_place(fact))
        )

    def may_admit(self, payload: bytes) -> bool:
        """Whether a message is worth reading; False only if no fact in it can be wanted."""
        return self.worker is None or may_name(payload, self.worker)

    def admits_unreadable(self, stored: Stored) -> bool:
        """Whether a message that is no fact is wanted: only its subject says whom it is about, and nothing the rest."""
        if self.types or self.operator is not None or self.incarnation is not None:
            return False
        try:
            about = parse_subject(stored.subject)
        except InvalidSubject:
            return self == Filter()
        if about.kind == "proxy":
            return (
                self.worker is None and self.pool is None and self.cell is None and self.proxy in {None, about.entity}
            )
        named = self.worker is None or about.entity == self.worker
        somewhere = self.pool is None and self.cell is None
        return named and self.proxy is None and (somewhere or (about.entity is not None and self._in(about.entity)))

    def subjects(self, fleet: str) -> tuple[str, ...] | None:
        """The subjects that such facts can stand on; empty for all of them, None if there can be no such fact."""
        root = f"rollbook.{fleet}"
        everything = stream_subjects(fleet)
        found: Iterable[str] = everything
        if self.types:
            found = _common(found, {pattern for kind in self.types for pattern in _patterns(root, kind)})
        if self.worker is not None:
            worker = [worker_subject(fleet, self.worker), operator_worker_subject(fleet, self.worker)]
            found = _common(found, [*worker, f"{root}.proxy.*", f"{root}.fleet"])
        if self.pool is not None or self.cell is not None:
            found = _common(
                found, [f"{root}.worker.*", f"{root}.operator.worker.*", f"{root}.proxy.*", f"{root}.fleet"]
            )
        if self.proxy is not None:
            proxy = [proxy_subject(fleet, self.proxy), f"{root}.operator.proxy.{self.proxy}", f"{root}.operator.fleet"]
            found = _common(found, proxy)
        if self.operator is not None:
            found = _common(found, [s for s in everything if s.startswith(f"{root}.operator.")])
        if self.incarnation is not None:
            found = _common(found, [f"{root}.worker.*", f"{root}.proxy.*", f"{root}.fleet"])
        subjects = tuple(found)
        if not subjects:
            return None
        return () if set(subjects) == set(everything) else subjects

    def _of_life(self, fact: Fact, incarnation: int) -> bool:
        if isinstance(fact, FleetObserved):
            lines = (line for line in fact.workers if self.worker in {None, line.worker})
            return any(line.incarnation == incarnation for line in lines)
        return getattr(fact, "incarnation", None) == incarnation

    def _of_place(self, fact: Fact) -> bool:
        match fact:
            case WorkerFact() if fact.pool is not None:
                cell = fact.cell if fact.cell is not None else self._place(fact.worker)[1]
                return self.pool in {None, fact.pool} and self.cell in {None, cell}
            case FleetObserved():
                return any(self._in(line.worker) for line in fact.workers) or (
                    self.cell is None and self.pool in fact.pools
                )
            case _:
                return self._by_names(fact)

    def _by_names(self, fact: Fact) -> bool:
        """Of the other facts: by the workers that they name, or a pool or cell of their own."""
        if (worker := getattr(fact, "worker", None)) is not None:
            return self._in(worker)
        lists = (value for field in fact.__struct_fields__ if isinstance(value := getattr(fact, field), tuple))
        if self.cell is None and getattr(fact, "pool", None) == self.pool:
            return True
        if self.pool in {None, getattr(fact, "pool", "")} and getattr(fact, "cell", None) == self.cell is not None:
            return True
        return any(isinstance(name, str) and "/" not in name and self._in(name) for names in lists for name in names)

    def _in(self, worker: str) -> bool:
        pool, cell = self._place(worker)
        return self.pool in {None, pool} and self.cell in {None, cell}

    def _place(self, worker: str) -> Place:
        known = self.places.get(worker)
        if known is not None:
            return known
        parsed = parse_worker(worker)
        return parsed.pool, parsed.cell


def places_of(state: State) -> dict[str, Place]:
    """Where the roster says that its workers belong, as far as their names do not say it."""
    found: dict[str, Place] = {}
    for worker in state.roster.workers.values():
        parsed = parse_worker(worker.name)
        if (parsed.pool, parsed.cell) != (worker.pool, worker.cell):
            found[worker.name] = (worker.pool, worker.cell)
    return found


def may_name(payload: bytes, worker: str) -> bool:
    """Whether a message can name a worker: asked of the bytes, which costs a fraction of reading them."""
    return f'"{worker}"'.encode() in payload or b"\\u" in payload  # names need no escapes, but may have some


def mentions(fact: Fact, worker: str) -> bool:
    """Whether a fact names a worker: as its subject, or in a list of it."""
    for field in fact.__struct_fields__:
        value = getattr(fact, field)
        if field == "worker" and value == worker:
            return True
        if isinstance(value, tuple) and any(
            item == worker or getattr(item, "worker", None) == worker for item in value
        ):
            return True
    return False


def _at(fact: Fact, proxy: str) -> bool:
    if isinstance(fact, OperatorProxyFact):
        return fact.proxy in {None, proxy}
    return getattr(fact, "proxy", None) == proxy


def _patterns(root: str, kind: str) -> Iterable[str]:
    """Where facts of a type stand; of a type that this version does not know, its family says where."""
    fact = FACTS.get(kind)
    family = kind.split(".")[1] if kind.count(".") > 1 else ""
    family = family if fact is None else fact.FAMILY
    if fact is not None and issubclass(fact, OperatorWorkerFact):
        return (f"{root}.operator.worker.*",)
    where: dict[str, tuple[str, ...]] = {
        "worker": (f"{root}.worker.*",),
        "proxy": (f"{root}.proxy.*",),
        "fleet": (f"{root}.fleet",),
        "quarantine": (f"{root}.quarantine",),
        "operator": (f"{root}.operator.worker.*", f"{root}.operator.proxy.*", f"{root}.operator.fleet"),
    }
    return where.get(family, tuple(found for patterns in where.values() for found in patterns))


def _common(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """What both sets of patterns cover."""
    others = list(other)
    return list(dict.fromkeys(both for a in one for b in others if (both := _both(a, b)) is not None))


def _both(one: str, other: str) -> str | None:
    a, b = one.split("."), other.split(".")
    if len(a) != len(b):
        return None
    tokens = [y if x == "*" else x for x, y in zip(a, b, strict=True)]
    return ".".join(tokens) if all(x == y or "*" in {x, y} for x, y in zip(a, b, strict=True)) else None
