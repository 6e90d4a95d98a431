"""The fleet family: what happens to the whole run, and what observers saw of it at once."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rollbook.events.facts.base import Count, Fact, Incarnation, Integer, Name, Sequence


class FleetFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the family."""

    FAMILY: ClassVar[str] = "fleet"


class FleetStarted(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A run began: workers of earlier runs are retired and the weights bar is reset."""

    run_id: str


class FleetEnded(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run is over: everything is deregistered."""

    run_id: str
    reason: str = ""


class CellDeclared(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A cell exists with this many workers, whether or not they have started."""

    pool: Name
    cell: Name
    size: Count
    cell_incarnation: Incarnation


class WeightsPublished(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The trainer published this version; the last one *by sequence* is the bar for the pool."""

    pool: Name
    version: Integer


class ObservedWorker(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a `FleetObserved`: a worker that the observer saw alive."""

    worker: Name
    incarnation: Incarnation
    serving: bool = True
    """False while it starts."""


class FleetObserved(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A complete listing of some pools: the level that heals lost edges. What it omits is down (`not_observed`)."""

    observer: Name
    pools: tuple[Name, ...]
    as_of: Sequence
    """The stream's last sequence before the listing began; lives begun after it are not touched."""
    workers: tuple[ObservedWorker, ...] = ()


class ObserverSilent(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An observer that should publish does not. Nobody is down because of it: unknown is never no."""

    observer: Name
    silent_seconds: float
