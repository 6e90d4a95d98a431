"""The NATS subjects of a fleet's facts, and the stream that holds them (semantics.md, 1).

The subject decides whom a fact is about. The families are listed one by one, never as `rollbook.<fleet>.>`: a stream
on such a wildcard would answer service requests itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollbook.events.errors import InvalidName, InvalidSubject
from rollbook.events.facts import (
    Fact,
    FleetFact,
    MessageQuarantined,
    OperatorProxyFact,
    OperatorWorkerFact,
    ProxyFact,
    WorkerFact,
)
from rollbook.events.names import validate_name


class Subject(msgspec.Struct, frozen=True, gc=False):
    """A parsed subject. `entity` is the worker or proxy, None for the fleet as a whole."""

    fleet: str
    family: str
    kind: str
    """`worker`, `proxy`, `fleet` or `quarantine`: what the entity is."""
    entity: str | None


def stream_name(fleet: str) -> str:
    """The name of the fleet's stream: `ROLLBOOK_<fleet>`."""
    return f"ROLLBOOK_{validate_name('fleet', fleet)}"


def stream_subjects(fleet: str) -> list[str]:
    """All subjects of the fleet's stream."""
    root = f"rollbook.{validate_name('fleet', fleet)}"
    return [
        f"{root}.worker.*",
        f"{root}.fleet",
        f"{root}.operator.worker.*",
        f"{root}.operator.proxy.*",
        f"{root}.operator.fleet",
        f"{root}.proxy.*",
        f"{root}.quarantine",
    ]


def worker_subject(fleet: str, worker: str) -> str:
    """Where the facts of one worker stand."""
    return f"rollbook.{fleet}.worker.{worker}"


def operator_worker_subject(fleet: str, worker: str) -> str:
    """Where an operator's decisions about one worker stand."""
    return f"rollbook.{fleet}.operator.worker.{worker}"


def proxy_subject(fleet: str, proxy: str) -> str:
    """Where the registrations at one proxy stand; its last sequence is the leader's fence."""
    return f"rollbook.{fleet}.proxy.{proxy}"


def quarantine_subject(fleet: str) -> str:
    """Where it is written down which messages are no facts."""
    return f"rollbook.{fleet}.quarantine"


def entity_of(fact: Fact) -> str | None:
    """The worker or proxy that `fact` is filed under, None for the fleet as a whole."""
    match fact:
        case WorkerFact() | OperatorWorkerFact():
            return fact.worker
        case ProxyFact() | OperatorProxyFact():
            return fact.proxy
        case _:
            return None


def subject_of(fact: Fact, fleet: str) -> str:
    """The subject on which `fact` is published. Raises `InvalidSubject` for a fact that has none (`UnknownFact`)."""
    root = f"rollbook.{fleet}"
    match fact:
        case WorkerFact():
            return worker_subject(fleet, fact.worker)
        case ProxyFact():
            return proxy_subject(fleet, fact.proxy)
        case FleetFact():
            return f"{root}.fleet"
        case OperatorWorkerFact():
            return operator_worker_subject(fleet, fact.worker)
        case OperatorProxyFact():
            return f"{root}.operator.fleet" if fact.proxy is None else f"{root}.operator.proxy.{fact.proxy}"
        case MessageQuarantined():
            return quarantine_subject(fleet)
        case _:
            msg = f"{type(fact).__name__} has no subject: only facts that this version knows can be published"
            raise InvalidSubject(msg)


def covers(patterns: Iterable[str], subject: str) -> bool:
    """Whether one of `patterns` is `subject`, or has `*` where they differ, as NATS reads it."""
    return any(pattern == subject or ("*" in pattern and _matches(pattern, subject)) for pattern in patterns)


def _matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    return len(wanted) == len(tokens) and all(w in {"*", t} for w, t in zip(wanted, tokens, strict=True))


def parse_subject(subject: str) -> Subject:
    """Take a subject apart. Raises `InvalidSubject` for anything that is not a fact's subject."""
    match subject.split("."):
        case ["rollbook", fleet, ("worker" | "proxy") as family, entity]:
            parsed = Subject(fleet, family, family, entity)
        case ["rollbook", fleet, ("fleet" | "quarantine") as family]:
            parsed = Subject(fleet, family, family, None)
        case ["rollbook", fleet, "operator", ("worker" | "proxy") as kind, entity]:
            parsed = Subject(fleet, "operator", kind, entity)
        case ["rollbook", fleet, "operator", "fleet"]:
            parsed = Subject(fleet, "operator", "fleet", None)
        case _:
            msg = f"{subject[:300]!r} is not a subject of facts; expected rollbook.<fleet>.worker.<worker> or a sibling"
            raise InvalidSubject(msg)
    try:
        validate_name("fleet", parsed.fleet)
        if parsed.entity is not None:
            validate_name(parsed.kind, parsed.entity)
    except InvalidName as exc:
        msg = f"{subject[:300]!r} is not a subject of facts: {exc}"
        raise InvalidSubject(msg) from exc
    return parsed
