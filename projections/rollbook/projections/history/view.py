"""The roster and every proxy's registrations as they were: what `status --at` shows. By the log's word alone."""

from __future__ import annotations

import msgspec

from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told
from rollbook.projections.state.roster import Decision, Roster
from rollbook.projections.state.worker import Worker


class RegistrationThen(msgspec.Struct, frozen=True):
    """The last word about one life of one worker at one proxy."""

    proxy: str
    worker: str
    incarnation: int
    told: str
    """`registering`, `registered`, `deregistering`, `failed`, ..."""
    url: str
    sequence: int
    since: str
    reason: str


class WorkerThen(msgspec.Struct, frozen=True):
    """One worker."""

    name: str
    pool: str | None
    cell: str | None
    rank: int
    entrypoint: bool
    incarnation: int
    phase: str
    since_sequence: int
    since: str
    evidence: str | None
    reason: str
    suspicion: str | None
    suspended: str | None
    """Why; the empty string where no reason was given. None if it was not."""
    cordon: Decision | None
    weights: int | None
    registrations: tuple[RegistrationThen, ...]


class ProxyThen(msgspec.Struct, frozen=True):
    """One proxy."""

    name: str
    reachable: bool | None
    """None if the log never said."""
    since: str
    reason: str
    version: str | None
    owner: str | None
    epoch: int
    held: Decision | None
    registered: int
    """Workers that the log says are registered there."""
    foreign: tuple[str, ...]


class FleetThen(msgspec.Struct, frozen=True):
    """The whole fleet at one sequence."""

    fleet: str
    sequence: int
    time: str
    """When that sequence was stored, RFC 3339; empty where it is not known."""
    run_id: str | None
    ended: bool
    weights: dict[str, int]
    """By pool: the version published last."""
    workers: tuple[WorkerThen, ...]
    proxies: tuple[ProxyThen, ...]
    lost: tuple[RegistrationThen, ...]
    """Registrations of workers that the roster does not have (any more)."""
    unreadable: int
    """Messages that are no facts, quarantined or not."""


def view(fleet: str, state: State, time: str) -> FleetThen:
    """Everything that a state says, for people and for `--json`."""
    by_worker: dict[str, list[RegistrationThen]] = {}
    for registration in registrations(state):
        by_worker.setdefault(registration.worker, []).append(registration)
    roster = state.roster
    return FleetThen(
        fleet,
        state.sequence,
        time,
        roster.run_id,
        roster.ended,
        {pool: bar.version for pool, bar in roster.bars.items()},
        tuple(_worker(worker, roster, by_worker.pop(worker.name, [])) for worker in roster.workers.values()),
        tuple(_proxy(name, state) for name in state.ledger.proxies),
        tuple(one for lost in by_worker.values() for one in lost),
        state.quarantined + len(state.unreadable),
    )


def registrations(state: State) -> list[RegistrationThen]:
    """All of the ledger, flat: by proxy, worker and life."""
    return [
        RegistrationThen(
            proxy, worker, incarnation, str(known.told), known.url, known.sequence, known.time, known.reason
        )
        for proxy, record in state.ledger.proxies.items()
        for worker, lives in record.registrations.items()
        for incarnation, known in lives.items()
    ]


def _worker(worker: Worker, roster: Roster, found: list[RegistrationThen]) -> WorkerThen:
    return WorkerThen(
        worker.name,
        worker.pool,
        worker.cell,
        worker.rank,
        worker.entrypoint,
        worker.incarnation,
        str(worker.phase),
        worker.since_sequence,
        worker.since_time,
        worker.evidence,
        worker.reason,
        worker.suspicion,
        None if worker.suspension is None else worker.suspension.reason,
        roster.cordons.get(worker.name),
        worker.weights,
        tuple(found),
    )


def _proxy(name: str, state: State) -> ProxyThen:
    record = state.ledger.look(name)
    registered = sum(
        any(life.told is Told.REGISTERED for life in lives.values()) for lives in record.registrations.values()
    )
    return ProxyThen(
        name,
        record.reachable,
        record.since,
        record.reason,
        record.version,
        record.owner,
        record.epoch,
        state.roster.holding(name),
        registered,
        record.foreign,
    )
