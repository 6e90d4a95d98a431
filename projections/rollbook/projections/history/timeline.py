"""A run as rows over time: every worker's phases, every proxy's count of registered workers, and what befell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from rollbook.events import (
    Codec,
    DriftFound,
    Fact,
    LeadershipTaken,
    ProxyFact,
    ProxyReachable,
    ProxyUnreachable,
    Recorded,
    RegistrationFact,
)
from rollbook.projections.history.moments import fold, state_at
from rollbook.projections.history.past import Past
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told
from rollbook.projections.state.roster import Change, Roster
from rollbook.projections.state.worker import LIVE, Worker

Kind = Literal["restart", "takeover", "drift"]

SUSPENDED: Final = "suspended"
CORDONED: Final = "cordoned"
LABELS: Final = ("starting", "serving", SUSPENDED, CORDONED, "draining", "down")
"""What a bar can say, in the order of a legend. Absent and retired workers have none."""


class Span(msgspec.Struct, frozen=True):
    """One bar. Times are seconds since the epoch by the log's clock."""

    label: str
    begin: float
    end: float


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at one moment."""

    kind: Kind
    at: float


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker."""

    name: str
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]


class ProxyRow(msgspec.Struct, frozen=True):
    """One proxy."""

    name: str
    counts: tuple[tuple[float, int], ...]
    """From when on how many workers were registered there."""
    unreachable: tuple[tuple[float, float], ...]
    marks: tuple[Mark, ...]


class Timeline(msgspec.Struct, frozen=True):
    """The whole picture, as data."""

    fleet: str
    first: int
    last: int
    begin: float
    end: float
    workers: tuple[WorkerRow, ...]
    proxies: tuple[ProxyRow, ...]


class _WorkerTrack:
    def __init__(self, name: str) -> None:
        self.name = name
        self.place: tuple[str, tuple[int, str], int] = ("", (0, ""), 0)
        self.incarnation = 0
        self.label: str | None = None
        self.since = 0.0
        self.spans: list[Span] = []
        self.marks: list[Mark] = []

    def turn(self, label: str | None, at: float) -> None:
        if label == self.label:
            return
        if self.label is not None and at > self.since:
            self.spans.append(Span(self.label, self.since, at))
        self.label, self.since = label, at


class _ProxyTrack:
    def __init__(self) -> None:
        self.registered: set[str] = set()
        self.counts: list[tuple[float, int]] = []
        self.away: float | None = None
        self.unreachable: list[tuple[float, float]] = []
        self.marks: list[Mark] = []

    def count(self, at: float) -> None:
        if not self.counts or self.counts[-1][1] != len(self.registered):
            self.counts.append((at, len(self.registered)))


class _Tracks:
    def __init__(self, state: State) -> None:
        self.state = state
        self.workers: dict[str, _WorkerTrack] = {}
        self.proxies: dict[str, _ProxyTrack] = {}
        self.begin: float | None = None
        self.end = 0.0

    def note(self, stored: Stored, recorded: Recorded | None, change: Change) -> None:
        if recorded is None:
            return  # one that was imported has no time of its own
        at = self.end = max(self.end, stored.stored_at)  # also where the log's clock was put back
        if self.begin is None:
            self.begin = at
            self._start(at)
        if isinstance(recorded.fact, ProxyFact):
            self._proxy_fact(recorded.fact, at)
        elif change.ignored is None:
            names = self.state.roster.workers if change.everything else change.workers
            self._look(names, at)

    def _start(self, at: float) -> None:
        """How things stood when the picture begins. Called after the first fact, which changed at most a little."""
        self._look(self.state.roster.workers, at)
        for name, record in self.state.ledger.proxies.items():
            track = self.proxies.setdefault(name, _ProxyTrack())
            track.registered = {worker for worker in record.registrations if self._registered(name, worker)}
            track.count(at)
            track.away = at if record.reachable is False else None

    def _look(self, names: Iterable[str], at: float) -> None:
        roster = self.state.roster
        for name in names:
            worker = roster.workers.get(name)
            track = self.workers.get(name)
            if track is None:
                track = self.workers[name] = _WorkerTrack(name)
            if worker is None:
                track.turn(None, at)
                continue
            if track.incarnation and worker.incarnation > track.incarnation:
                track.marks.append(Mark("restart", at))
            track.incarnation = worker.incarnation
            track.place = (worker.pool or "", _natural(worker.cell), worker.rank)
            track.turn(_label(worker, roster), at)

    def _proxy_fact(self, fact: Fact, at: float) -> None:
        if not isinstance(fact, ProxyFact):
            return
        track = self.proxies.setdefault(fact.proxy, _ProxyTrack())
        match fact:
            case RegistrationFact():
                if self._registered(fact.proxy, fact.worker):
                    track.registered.add(fact.worker)
                else:
                    track.registered.discard(fact.worker)
                track.count(at)
            case DriftFound() if fact.missing or fact.unexpected:
                track.marks.append(Mark("drift", at))
                for name in (*fact.missing, *fact.unexpected):
                    if name in self.workers:
                        self.workers[name].marks.append(Mark("drift", at))
            case LeadershipTaken():
                track.marks.append(Mark("takeover", at))
            case ProxyUnreachable() if track.away is None:
                track.away = at
            case ProxyReachable() if track.away is not None:
                track.unreachable.append((track.away, at))
                track.away = None
            case _:
                return

    def _registered(self, proxy: str, worker: str) -> bool:
        lives = self.state.ledger.look(proxy).registrations.get(worker, {})
        return any(life.told is Told.REGISTERED for life in lives.values())

    def drawn(self, fleet: str, first: int, last: int) -> Timeline:
        begin, end = self.begin or 0.0, self.end
        for track in self.workers.values():
            track.turn(None, end)
        for proxy in self.proxies.values():
            if proxy.away is not None:
                proxy.unreachable.append((proxy.away, end))
        ordered = sorted(self.workers.values(), key=lambda track: (track.place, track.name))
        return Timeline(
            fleet,
            first,
            last,
            begin,
            end,
            tuple(WorkerRow(track.name, tuple(track.spans), tuple(track.marks)) for track in ordered),
            tuple(
                ProxyRow(name, tuple(track.counts), tuple(track.unreachable), tuple(track.marks))
                for name, track in self.proxies.items()
            ),
        )


def _label(worker: Worker, roster: Roster) -> str | None:
    if worker.phase in LIVE and worker.suspension is not None:
        return SUSPENDED
    if worker.phase in LIVE and worker.name in roster.cordons:
        return CORDONED
    return str(worker.phase) if str(worker.phase) in LABELS else None


def _natural(cell: str | None) -> tuple[int, str]:
    return (int(cell), "") if cell is not None and cell.isdecimal() else (-1, cell or "")


async def timeline(past: Past, codec: Codec, first: int, to: int) -> Timeline:
    """The picture from `first` to `to`. Raises `HistoryHole`."""
    state = await state_at(past, codec, first - 1)
    tracks = _Tracks(state)
    await fold(past, codec, state, to, tracks.note)
    return tracks.drawn(codec.fleet, first, to)
