"""The plan: what one proxy lists against what it should list, as actions with reasons.

Pure, and the same for create, update and delete: for a key (proxy, worker) it looks at the roster, the ledger and the
listing as they are and names the one next step. A worker that moves gets its old entry removed first; the step after
that is planned when that one is done, from what is then true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from rollbook.events import InvalidName, validate_name
from rollbook.events.facts.base import LONGEST_URL, MAX_INTEGER
from rollbook.projections import gates
from rollbook.projections.fold import State
from rollbook.projections.gates import Held
from rollbook.projections.ledger import ProxyRecord, Registration, Told
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Entry, Listing
from rollbook.projections.roster import Roster
from rollbook.projections.worker import Worker


class Add(msgspec.Struct, frozen=True, gc=False):
    """It belongs here and is not listed. Admission gates are still to be asked."""

    worker: str
    incarnation: int


class Remove(msgspec.Struct, frozen=True, gc=False):
    """It is listed and does not belong here, or not in this form."""

    worker: str
    incarnation: int
    entry: Entry
    reason: str
    unless_wanted: bool = True
    """Whether it must not be carried out if this life belongs here by the time of the call."""
    heir: tuple[str, int] | None = None
    """The life that gets the URL, where that is why: without it, there is no reason to remove what belongs here."""
    moved_to: str | None = None
    """Where this very life is now, where that is why."""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The log still counts on an entry that is neither listed nor wanted: write down that it is gone. No call."""

    worker: str
    incarnation: int
    url: str
    sequence: int
    """Of the fact that left it open."""


class Adopt(msgspec.Struct, frozen=True, gc=False):
    """It is listed, wanted and ours, and the log lacks the outcome (a crash, a lost answer): write it down. No call."""

    worker: str
    incarnation: int
    url: str
    sequence: int


Action = Add | Remove | Settle | Adopt


class Owned(msgspec.Struct, frozen=True, gc=False):
    """A listed entry that is ours, and whose."""

    worker: str
    incarnation: int
    entry: Entry


class Observed(msgspec.Struct, frozen=True, gc=False):
    """A listing with its entries told apart: ours by worker, and the others."""

    owned: dict[str, list[Owned]]
    foreign: tuple[str, ...]
    urls: dict[str, Owned | None]
    """Canonical URL → who has it; None for a foreign entry."""


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The next step of every worker looked at, and what the log and the listing disagree about."""

    actions: tuple[Action, ...]
    missing: tuple[str, ...]
    """Wanted and registered by the log's word, but not listed: the proxy lost them."""
    unexpected: tuple[str, ...]
    """Listed, ours, and of a life whose registration the log does not know."""


def observe(fleet: str, record: ProxyRecord, listing: Listing) -> Observed:
    """Tell a listing's entries apart: by tag where there is one, by the ledger's URLs otherwise [I11]."""
    by_url: dict[str, tuple[str, int]] | None = None
    owned: dict[str, list[Owned]] = {}
    foreign: list[str] = []
    urls: dict[str, Owned | None] = {}
    for entry in listing.entries:
        found = _by_tag(fleet, entry)
        if entry.fleet is None:
            if by_url is None:
                by_url = _urls_of(record)
            if entry.url in by_url:
                found = Owned(*by_url[entry.url], entry)
        urls[entry.url] = found
        if found is None:
            foreign.append(entry.url)
        else:
            owned.setdefault(found.worker, []).append(found)
    return Observed(owned, tuple(sorted(foreign)), urls)


def _by_tag(fleet: str, entry: Entry) -> Owned | None:
    """Whose it is by its tags. Anyone may write tags; what cannot be a life of a worker of ours is none [I10]."""
    if entry.fleet != fleet or entry.worker is None or entry.incarnation is None:
        return None
    if not 1 <= entry.incarnation <= MAX_INTEGER or len(entry.url) > LONGEST_URL:
        return None
    try:
        return Owned(validate_name("worker", entry.worker), entry.incarnation, entry)
    except InvalidName:
        return None


def _urls_of(record: ProxyRecord) -> dict[str, tuple[str, int]]:
    """Canonical URL → whose it is by the ledger; the newest word on a URL counts."""
    newest: dict[str, tuple[int, str, int]] = {}
    for worker, lives in record.registrations.items():
        for incarnation, registration in lives.items():
            known = newest.get(registration.url)
            if known is None or registration.sequence > known[0]:
                newest[registration.url] = (registration.sequence, worker, incarnation)
    return {url: (worker, incarnation) for url, (_, worker, incarnation) in newest.items()}


def make_plan(
    state: State,
    policy: Policy,
    proxy: ProxyPolicy,
    observed: Observed,
    workers: Iterable[str] | None = None,
    moved: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """The next step for each of `workers`, or for every worker that roster, ledger or listing knows if None.

    `moved` says of listed workers, by name, at which URL they were found to be now.
    """
    record = state.ledger.look(proxy.name)
    if workers is None:
        names = dict.fromkeys(state.roster.workers)
        names.update(dict.fromkeys(record.registrations))
        names.update(dict.fromkeys(observed.owned))
        workers = names
    actions: list[Action] = []
    missing: list[str] = []
    unexpected: list[str] = []
    for name in workers:
        listed = observed.owned.get(name, [])
        lives = record.registrations.get(name, {})
        held = gates.standing(state.roster, policy, proxy, name)
        current = state.roster.workers.get(name)
        if held is not None or current is None:
            actions.extend(_unwanted(name, listed, lives, held, current))
        else:
            moved_to = moved.get(name)
            if moved_to is not None and not _may_have(state.roster, name, moved_to, observed):
                moved_to = None
            actions.extend(_wanted(name, listed, lives, current.incarnation, moved_to))
            known = lives.get(current.incarnation)
            if not listed and known is not None and known.told is Told.REGISTERED:
                missing.append(name)
        if any(own.incarnation not in lives for own in listed):
            unexpected.append(name)
    return Plan(tuple(actions), tuple(sorted(missing)), tuple(sorted(unexpected)))


def _unwanted(
    name: str, listed: list[Owned], lives: dict[int, Registration], held: Held | None, current: Worker | None
) -> list[Action]:
    """Nothing of it may be listed."""
    for own in listed:
        if removable(lives, own):
            return [Remove(name, own.incarnation, own.entry, _why(held, own, current))]
    return _settle(name, lives, listed)


def removable(lives: dict[int, Registration], own: Owned) -> bool:
    """Whether the proxy has not said yet that it cannot remove this life of a worker; `lives` are that worker's."""
    known = lives.get(own.incarnation)
    return known is None or known.told is not Told.REMOVE_UNSUPPORTED


def _wanted(
    name: str, listed: list[Owned], lives: dict[int, Registration], incarnation: int, moved_to: str | None
) -> list[Action]:
    """Exactly one entry of its current life may be listed."""
    for own in listed:
        if own.incarnation != incarnation and removable(lives, own):
            return [Remove(name, own.incarnation, own.entry, f"superseded by incarnation {incarnation}")]
    mine = [own for own in listed if own.incarnation == incarnation]
    known = lives.get(incarnation)
    actions = _settle(name, {life: told for life, told in lives.items() if life != incarnation}, listed)
    if len(mine) > 1:
        own = _spare(mine, known)
        if removable(lives, own):
            return [Remove(name, own.incarnation, own.entry, "listed more than once", unless_wanted=False)]
    elif mine and moved_to is not None and mine[0].entry.url != moved_to and removable(lives, mine[0]):
        entry = mine[0].entry
        return [Remove(name, incarnation, entry, f"it is at {moved_to} now", unless_wanted=False, moved_to=moved_to)]
    elif mine and not mine[0].entry.in_rotation and removable(lives, mine[0]):
        return [Remove(name, incarnation, mine[0].entry, "the proxy keeps it out of rotation", unless_wanted=False)]
    elif mine:
        actions += _adopt(name, incarnation, mine[0].entry, known)
    elif known is None or known.told is not Told.ADD_UNSUPPORTED:
        actions.append(Add(name, incarnation))
    return actions


def _may_have(roster: Roster, name: str, url: str, observed: Observed) -> bool:
    """Whether nobody has `url` who would keep it; otherwise `name` would lose the entry it has and get no other."""
    if url not in observed.urls:
        return True
    holder = observed.urls[url]
    return holder is not None and not roster.began_after(holder.worker, holder.incarnation, name)


def _why(held: Held | None, own: Owned, current: Worker | None) -> str:
    if current is not None and current.incarnation > own.incarnation and held is not None:
        return f"superseded by incarnation {current.incarnation}"
    return str(held)


def _spare(entries: list[Owned], known: Registration | None) -> Owned:
    """Of several entries of one life, one that the ledger does not name."""
    for own in entries:
        if known is None or own.entry.url != known.url:
            return own
    return entries[-1]


def _settle(name: str, lives: dict[int, Registration], listed: list[Owned]) -> list[Action]:
    there = {own.incarnation for own in listed}
    return [
        Settle(name, incarnation, life.url, life.sequence)
        for incarnation, life in sorted(lives.items())
        if incarnation not in there
    ]


def _adopt(name: str, incarnation: int, entry: Entry, known: Registration | None) -> list[Action]:
    """Also after a removal that the proxy cannot do: then the log says what is there again."""
    if known is not None and known.told is Told.REGISTERED and known.url == entry.url:
        return []
    return [Adopt(name, incarnation, entry.url, known.sequence if known else 0)]
