"""What `rollbook status` shows: the roster against what the proxies list at one moment, and why. Plain data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rollbook.projections.ports import Located
from rollbook.projections.state.decisions import DecisionStatus
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Worker


class Standing(StrEnum):
    """A worker at a proxy that serves its pool."""

    REGISTERED = "registered"
    OUT = "out"
    """Not listed, and a gate says why."""
    PENDING_WEIGHTS = "pending_weights"
    """Not listed: it waits until it holds the version of the weights that was published. No drift."""
    MISSING = "missing"
    """It belongs there, passes every gate, and is not listed: drift."""
    UNWANTED = "unwanted"
    """It is listed and does not belong there: drift."""
    WITHHELD = "withheld"
    """It is listed and does not belong there, and stays because it answers and too many would go [I12]: drift."""
    UNSUPPORTED = "unsupported"
    """What should be done there is nothing that this kind of proxy can do. No drift: nobody could mend it."""
    UNKNOWN = "unknown"
    """The proxy does not answer."""


MOST_RESTARTS: Final = 8
"""Notes about restarts in one status; the others are counted."""

DRIFT: Final = frozenset({Standing.MISSING, Standing.UNWANTED, Standing.WITHHELD, Standing.UNKNOWN})
"""What keeps a fleet from being converged."""


class RegistrationStatus(msgspec.Struct, frozen=True):
    """One worker at one proxy."""

    proxy: str
    state: Standing
    url: str | None
    gate: str | None
    """The first that it fails; of a registered one an admission gate, which evicts nobody."""
    reason: str | None


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker."""

    name: str
    pool: str | None
    cell: str | None
    rank: int
    incarnation: int
    phase: str
    since: str
    """RFC 3339: when it came into this phase, by the clock of who said so."""
    address: str | None
    """`host:port` by the provider's word now; None if it does not know or does not answer."""
    suspicion: str | None
    registrations: tuple[RegistrationStatus, ...]
    weights: int | None = None
    """The version that its present life said it holds."""


class Failing(msgspec.Struct, frozen=True):
    """A worker whose registration or removal did not work and is tried again on a schedule of its own."""

    worker: str
    reason: str
    """What was tried and why it did not work."""
    attempts: int
    """In a row."""
    retry_at: str | None
    """RFC 3339, by the controller's clock; None if it is tried at once."""


class ProxyStatus(msgspec.Struct, frozen=True):
    """One proxy."""

    name: str
    kind: str
    reachable: bool
    reason: str | None
    """Why it is not reachable."""
    registered: int
    """Entries of ours that it lists and that belong there."""
    wanted: int
    """Workers that belong there and pass every gate."""
    foreign: tuple[str, ...]
    """URLs that it lists and Rollbook did not put there."""
    version: str | None
    failing: tuple[Failing, ...] = ()
    """All that do not work, not only the last one."""
    withheld: tuple[str, ...] = ()
    """Workers that do not belong there and stay for now [I12]."""
    unsupported: tuple[str, ...] = ()
    """Workers for which this kind of proxy cannot do what should be done."""
    unpaired: dict[str, str] = {}
    """Pools that have entries here and wait for another, by which requests need both: nobody of that one could take
    any."""


class FleetStatus(msgspec.Struct, frozen=True):
    """The whole fleet at one moment."""

    fleet: str
    sequence: int
    time: str
    converged: bool
    """Every proxy answers and lists exactly what is wanted and admissible, as far as its kind can."""
    workers: tuple[WorkerStatus, ...]
    proxies: tuple[ProxyStatus, ...]
    notes: tuple[str, ...] = ()
    """What could not be asked, who fell silent and what is being restarted, for people."""
    decisions: tuple[DecisionStatus, ...] = ()
    """In the order in which they were made."""
    controller: str | None = None
    """Who leads; None if no controller was asked."""
    weights: dict[str, int] = {}
    """By pool: the version that was published last."""


def worker_status(
    worker: Worker, located: Located | None, registrations: tuple[RegistrationStatus, ...]
) -> WorkerStatus:
    """A worker as it is shown; `located` is what the provider says of it, None if it was not asked or does not know."""
    primary = None
    if located is not None and located.incarnation in {0, worker.incarnation}:
        primary = located.addresses.get("primary")
    return WorkerStatus(
        worker.name,
        worker.pool,
        worker.cell,
        worker.rank,
        worker.incarnation,
        str(worker.phase),
        worker.since_time,
        None if primary is None else str(primary),
        worker.suspicion,
        registrations,
        worker.weights,
    )


def restarts(roster: Roster) -> tuple[str, ...]:
    """For people: who restarts which cell and for how long, and what came of the last try at those still down."""
    told: list[str] = []
    for worker in roster.workers.values():
        noted = worker.restarts
        if noted is None or not noted.unfinished or worker.name in roster.cordons:
            continue
        if noted.claim is not None:
            told.append(
                f"{noted.claim.by} restarts the cell of {worker.name}, attempt {noted.claim.attempt}, and has until "
                f"{noted.claim.until}"
            )
        elif noted.failure:
            told.append(
                f"the last restart of the cell of {worker.name} failed: {noted.failure}. A recoverer tries again, if "
                "one runs: `rollbook recover`"
            )
    more = len(told) - MOST_RESTARTS
    return (*told[:MOST_RESTARTS], f"and {more} more like these") if more > 0 else tuple(told)


def bars(roster: Roster) -> dict[str, int]:
    """By pool: the version of the weights that was published last."""
    return {pool: bar.version for pool, bar in roster.bars.items()}
