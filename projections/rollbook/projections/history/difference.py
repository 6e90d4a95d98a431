"""What changed between two moments, worker by worker and proxy by proxy, with the facts that did it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rollbook.events import (
    Codec,
    DriftFound,
    Fact,
    FleetObserved,
    OperatorProxyFact,
    OperatorWorkerFact,
    ProxyFact,
    Recorded,
    RegistrationFact,
    WorkerFact,
    type_of,
)
from rollbook.projections.history.moments import NoSuchMoment, copy_of, fold, state_at
from rollbook.projections.history.past import Past
from rollbook.projections.history.view import FleetThen, ProxyThen, RegistrationThen, WorkerThen, view
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.roster import Change, Decision

MOST_FACTS: Final = 20
"""Kept per worker or proxy, the newest; how many more there were is counted."""


class Changed(msgspec.Struct, frozen=True):
    """One thing that is another now. None: there was, or is, none."""

    what: str
    before: str | None
    after: str | None


class Deed(msgspec.Struct, frozen=True):
    """A fact that did it."""

    sequence: int
    stored_at: float
    """Seconds since the epoch by the log's clock."""
    type: str
    source: str


class Item(msgspec.Struct, frozen=True):
    """One worker, one proxy, or the fleet."""

    name: str
    changes: tuple[Changed, ...]
    facts: tuple[Deed, ...] = ()
    more_facts: int = 0
    """Earlier ones that are not listed."""


class Difference(msgspec.Struct, frozen=True):
    """Everything that differs between two states of one fleet."""

    fleet: str
    before: int
    """Sequence."""
    after: int
    workers: tuple[Item, ...]
    proxies: tuple[Item, ...]
    whole: Item | None
    """What concerns the fleet as a whole; None if nothing of it changed."""

    @property
    def differs(self) -> bool:
        """Whether there is any."""
        return bool(self.workers or self.proxies or self.whole)


async def between(past: Past, codec: Codec, first: int, second: int) -> Difference:
    """What changed from just after `first` to just after `second`. Raises `NoSuchMoment`, `HistoryHole`."""
    if first > second:
        raise NoSuchMoment(
            f"the first moment (sequence {first}) is after the second ({second}); name the earlier first"
        )
    state = await state_at(past, codec, first)
    before, deeds = copy_of(state), _Deeds()
    after = await fold(past, codec, state, second, deeds.note)
    return compare(codec.fleet, before, after, deeds)


class _Deeds:
    """Which facts between two moments changed what, by `worker:<name>`, `proxy:<name>` and `fleet`."""

    def __init__(self) -> None:
        self.found: dict[str, list[Deed]] = {}
        self.dropped: dict[str, int] = {}

    def note(self, stored: Stored, recorded: Recorded | None, change: Change) -> None:
        if recorded is None or change.ignored is not None:
            return
        deed = Deed(stored.sequence, stored.stored_at, type_of(recorded.fact), recorded.source)
        for key in _keys(recorded.fact, change):
            deeds = self.found.setdefault(key, [])
            deeds.append(deed)
            if len(deeds) > MOST_FACTS:
                del deeds[0]
                self.dropped[key] = self.dropped.get(key, 0) + 1

    def about(self, key: str) -> tuple[tuple[Deed, ...], int]:
        return tuple(self.found.get(key, ())), self.dropped.get(key, 0)


def _keys(fact: Fact, change: Change) -> Iterable[str]:
    match fact:
        case WorkerFact() | OperatorWorkerFact():
            return (f"worker:{fact.worker}",)
        case RegistrationFact():
            return (f"worker:{fact.worker}", f"proxy:{fact.proxy}")
        case DriftFound():
            return (f"proxy:{fact.proxy}", *(f"worker:{name}" for name in (*fact.missing, *fact.unexpected)))
        case ProxyFact():
            return (f"proxy:{fact.proxy}",)
        case OperatorProxyFact():
            return ("fleet", f"proxy:{fact.proxy}") if fact.proxy else ("fleet",)
        case FleetObserved():
            return (*(f"worker:{name}" for name in change.workers),)
        case _:
            return ("fleet",)


def compare(fleet: str, before: State, after: State, deeds: _Deeds | None = None) -> Difference:
    """What differs between two states. Ids that are only remembered, and counters, are no difference."""
    then, now = view(fleet, before, ""), view(fleet, after, "")
    deeds = deeds or _Deeds()
    lost_then, lost_now = _lost(then), _lost(now)
    workers = [
        *_items({w.name: _of_worker(w) for w in then.workers}, {w.name: _of_worker(w) for w in now.workers}),
        *_items(lost_then, lost_now),
    ]
    proxies = _items({p.name: _of_proxy(p) for p in then.proxies}, {p.name: _of_proxy(p) for p in now.proxies})
    whole = _items({fleet: _of_fleet(then, before)}, {fleet: _of_fleet(now, after)})
    return Difference(
        fleet,
        before.sequence,
        after.sequence,
        tuple(_with_deeds(item, f"worker:{item.name}", deeds) for item in _merged(workers)),
        tuple(_with_deeds(item, f"proxy:{item.name}", deeds) for item in proxies),
        _with_deeds(whole[0], "fleet", deeds) if whole else None,
    )


def _with_deeds(item: Item, key: str, deeds: _Deeds) -> Item:
    facts, more = deeds.about(key)
    if not facts and key != "fleet":
        facts, more = deeds.about("fleet")  # a run that began or ended retires everybody
    return Item(item.name, item.changes, facts, more)


Shown = Mapping[str, str | None]


def _items(before: Mapping[str, Shown], after: Mapping[str, Shown]) -> list[Item]:
    items: list[Item] = []
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name, {}), after.get(name, {})
        changes = tuple(
            Changed(what, was.get(what), now.get(what))
            for what in dict.fromkeys([*was, *now])
            if was.get(what) != now.get(what)
        )
        if changes:
            items.append(Item(name, changes))
    return items


def _merged(items: Iterable[Item]) -> Iterable[Item]:
    """One item per name: a worker that was forgotten keeps its registrations for a while."""
    found: dict[str, Item] = {}
    for item in items:
        known = found.get(item.name)
        found[item.name] = item if known is None else Item(item.name, _netted([*known.changes, *item.changes]))
    return [item for item in found.values() if item.changes]


def _netted(changes: Iterable[Changed]) -> tuple[Changed, ...]:
    found: dict[str, Changed] = {}
    for change in changes:
        known = found.get(change.what)
        if known is None:
            found[change.what] = change
        else:
            before = known.before if known.before is not None else change.before
            after = known.after if known.after is not None else change.after
            found[change.what] = Changed(change.what, before, after)
    return tuple(change for change in found.values() if change.before != change.after)


def _of_worker(worker: WorkerThen) -> dict[str, str | None]:
    why = ": ".join(part for part in (worker.evidence, worker.reason) if part)
    shown = {
        "life": str(worker.incarnation),
        "phase": worker.phase,
        "since": f"#{worker.since_sequence}",
        "why": why or None,
        "pool": worker.pool,
        "cell": worker.cell,
        "rank": str(worker.rank),
        "takes requests": _yes(worker.entrypoint),
        "suspected": worker.suspicion,
        "suspended": None if worker.suspended is None else worker.suspended or "yes",
        "cordoned": _decided(worker.cordon),
        "weights": _text(worker.weights),
    }
    return shown | _of_registrations(worker.registrations)


def _of_registrations(found: Iterable[RegistrationThen]) -> dict[str, str | None]:
    by_proxy: dict[str, list[str]] = {}
    for one in found:
        reason = f" ({one.reason})" if one.reason else ""
        by_proxy.setdefault(one.proxy, []).append(f"{one.told} #{one.incarnation} {one.url}{reason}")
    return {f"at {proxy}": "; ".join(lines) for proxy, lines in by_proxy.items()}


def _lost(then: FleetThen) -> dict[str, dict[str, str | None]]:
    """Registrations of workers that the roster does not have."""
    names = dict.fromkeys(one.worker for one in then.lost)
    return {name: _of_registrations(one for one in then.lost if one.worker == name) for name in names}


def _of_proxy(proxy: ProxyThen) -> dict[str, str | None]:
    answers = None if proxy.reachable is None else _yes(proxy.reachable)
    return {
        "answers": f"{answers} ({proxy.reason})" if answers and proxy.reason else answers,
        "version": proxy.version,
        "written by": None if proxy.owner is None else f"{proxy.owner}, epoch {proxy.epoch}",
        "registered": str(proxy.registered),
        "foreign": ", ".join(proxy.foreign) or None,
        "held": _decided(proxy.held),
    }


def _of_fleet(then: FleetThen, state: State) -> dict[str, str | None]:
    known = {worker.name for worker in then.workers}
    cordons = {f"cordon of {name}": _decided(one) for name, one in state.roster.cordons.items() if name not in known}
    return {
        "run": then.run_id,
        "ended": _yes(then.ended),
        "unreadable": str(then.unreadable),
        "held": _decided(state.roster.held.get("")),
        **{f"weights of {pool}": str(version) for pool, version in then.weights.items()},
        **cordons,
    }


def _yes(value: bool) -> str:  # noqa: FBT001 - it is what is shown
    return "yes" if value else "no"


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _decided(decision: Decision | None) -> str | None:
    return None if decision is None else f"by {decision.by}: {decision.why} (#{decision.sequence})"
