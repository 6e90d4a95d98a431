"""The fleet family: what happens to the whole run, and what observers saw of it at once."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rollbook.events.facts.base import Count, Fact, Incarnation, Integer, Name, Sequence


class FleetFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the family."""

    FAMILY: ClassVar[str] = "fleet"
    PUBLISHED_BY: ClassVar[str] = "the trainer"


class FleetStarted(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A run began: workers of earlier runs are retired and the weights bar is reset."""

    run_id: str
    """Names the run, for people and for FleetEnded."""


class FleetEnded(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run is over: everything is deregistered."""

    PUBLISHED_BY: ClassVar[str] = "the trainer; `rollbook end`"

    run_id: str
    """As in FleetStarted."""
    reason: str = ""
    """For people."""


class CellDeclared(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A cell exists with this many workers, whether or not they have started."""

    PUBLISHED_BY: ClassVar[str] = "whoever starts the cell"

    pool: Name
    """The pool that the cell belongs to."""
    cell: Name
    """Its name within the pool."""
    size: Count
    """How many workers live and die together in it."""
    cell_incarnation: Incarnation
    """Which life of the cell this is; a later one has a higher number."""


class WeightsPublished(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The trainer published this version; the last one *by sequence* is the bar for the pool."""

    pool: Name
    """Whose workers are to hold it."""
    version: Integer
    """Of the weights."""


class ObservedWorker(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a `FleetObserved`: a worker that the observer saw alive."""

    worker: Name
    """Its name."""
    incarnation: Incarnation
    """Which life was seen."""
    serving: bool = True
    """False while it starts."""
    cell_size: Count = 1
    """Workers that live and die together, where the observer knows it."""
    cell_incarnation: Incarnation | None = None
    """Of its cell; needed for a cell of several. Left out: the observer does not know it, and what was said holds."""


class FleetObserved(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A complete listing of some pools: the level that heals lost edges. What it omits is down (`not_observed`)."""

    PUBLISHED_BY: ClassVar[str] = "an observer that lists whole pools; `rollbook up --relist`"

    observer: Name
    """Who looked."""
    pools: tuple[Name, ...]
    """The pools that the listing is complete for."""
    as_of: Sequence
    """The stream's last sequence before the listing began; lives begun after it are not touched."""
    workers: tuple[ObservedWorker, ...] = ()
    """All of these pools that were seen alive: `worker`, `incarnation`, and `serving`, which is false while one
    starts; of a cell of several also `cell_size` and `cell_incarnation`."""


class ObserverSilent(FleetFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An observer that should publish does not. Nobody is down because of it: unknown is never no."""

    PUBLISHED_BY: ClassVar[str] = "the leading controller"

    observer: Name
    """Who does not publish."""
    silent_seconds: float
    """Seconds since it did."""
