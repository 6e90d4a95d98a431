"""The catalogue of facts: one module per family, and the CloudEvents type of each.

A type is `rollbook.<family>.<fact>.v<N>`, the fact in snake case without its family's word: `WorkerUp` is
`rollbook.worker.up.v1`. A type that this version does not know decodes to `UnknownFact`: kept, counted, passed over.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

import msgspec

from rollbook.events.errors import InvalidFact
from rollbook.events.facts.base import Fact
from rollbook.events.facts.fleet import (
    CellDeclared,
    FleetEnded,
    FleetFact,
    FleetObserved,
    FleetStarted,
    ObservedWorker,
    ObserverSilent,
    WeightsPublished,
)
from rollbook.events.facts.operator import (
    DrainRequested,
    OperatorFact,
    OperatorProxyFact,
    OperatorWorkerFact,
    ReconcileHeld,
    ReconcileReleased,
    WorkerCordoned,
    WorkerForgotten,
    WorkerUncordoned,
)
from rollbook.events.facts.proxy import (
    Deregistered,
    Deregistering,
    DriftFound,
    ForeignFact,
    ForeignRemovalFailed,
    ForeignRemoved,
    ForeignRemoving,
    LeadershipTaken,
    ProxyFact,
    ProxyReachable,
    ProxyUnreachable,
    Registered,
    Registering,
    RegistrationFact,
    RegistrationFailed,
    RemovalWithheld,
)
from rollbook.events.facts.quarantine import MessageQuarantined
from rollbook.events.facts.worker import (
    DIRECT_EVIDENCE,
    Evidence,
    RecoveryFailed,
    RecoveryStarted,
    WeightsLoaded,
    WorkerDown,
    WorkerDraining,
    WorkerFact,
    WorkerResumed,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUp,
)

__all__ = [
    "DIRECT_EVIDENCE",
    "FACTS",
    "CellDeclared",
    "Deregistered",
    "Deregistering",
    "DrainRequested",
    "DriftFound",
    "Evidence",
    "Fact",
    "FleetEnded",
    "FleetFact",
    "FleetObserved",
    "FleetStarted",
    "ForeignFact",
    "ForeignRemovalFailed",
    "ForeignRemoved",
    "ForeignRemoving",
    "LeadershipTaken",
    "MessageQuarantined",
    "ObservedWorker",
    "ObserverSilent",
    "OperatorFact",
    "OperatorProxyFact",
    "OperatorWorkerFact",
    "ProxyFact",
    "ProxyReachable",
    "ProxyUnreachable",
    "ReconcileHeld",
    "ReconcileReleased",
    "RecoveryFailed",
    "RecoveryStarted",
    "Registered",
    "Registering",
    "RegistrationFact",
    "RegistrationFailed",
    "RemovalWithheld",
    "UnknownFact",
    "WeightsLoaded",
    "WeightsPublished",
    "WorkerCordoned",
    "WorkerDown",
    "WorkerDraining",
    "WorkerFact",
    "WorkerForgotten",
    "WorkerResumed",
    "WorkerRetired",
    "WorkerStarted",
    "WorkerSuspected",
    "WorkerSuspended",
    "WorkerUncordoned",
    "WorkerUp",
    "type_of",
]


class UnknownFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A fact of a type or version that this Rollbook does not know: kept as it is, changes nothing."""

    FAMILY: ClassVar[str] = ""

    type: str
    data: msgspec.Raw


_CLASSES: Final[tuple[type[Fact], ...]] = (
    WorkerStarted,
    WorkerUp,
    WorkerDown,
    WorkerSuspected,
    WorkerSuspended,
    WorkerResumed,
    WorkerDraining,
    WorkerRetired,
    WeightsLoaded,
    RecoveryStarted,
    RecoveryFailed,
    FleetStarted,
    FleetEnded,
    CellDeclared,
    WeightsPublished,
    FleetObserved,
    ObserverSilent,
    WorkerCordoned,
    WorkerUncordoned,
    WorkerForgotten,
    DrainRequested,
    ReconcileHeld,
    ReconcileReleased,
    Registering,
    Registered,
    Deregistering,
    Deregistered,
    RegistrationFailed,
    DriftFound,
    RemovalWithheld,
    ForeignRemoving,
    ForeignRemoved,
    ForeignRemovalFailed,
    ProxyUnreachable,
    ProxyReachable,
    LeadershipTaken,
    MessageQuarantined,
)


def _type(cls: type[Fact]) -> str:
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    return f"rollbook.{cls.FAMILY}.{snake.removeprefix(cls.FAMILY + '_')}.v{cls.VERSION}"


FACTS: Final[dict[str, type[Fact]]] = {_type(cls): cls for cls in _CLASSES}
"""CloudEvents type → class, for every fact that this version can publish."""

_TYPES: Final[dict[type[Fact], str]] = {cls: name for name, cls in FACTS.items()}


def type_of(fact: Fact) -> str:
    """The CloudEvents type of `fact`: `rollbook.worker.up.v1`. Raises `InvalidFact` for a class of no type."""
    if isinstance(fact, UnknownFact):
        return fact.type
    try:
        return _TYPES[type(fact)]
    except KeyError:
        msg = f"{type(fact).__name__} is not in the catalogue of facts: only those can be published"
        raise InvalidFact(msg) from None
