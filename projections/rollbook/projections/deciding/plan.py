"""The plan: what one proxy lists against what it should list, as actions with reasons.

Pure, and the same for create, update and delete: for a key (proxy, worker) it looks at the roster, the ledger and the
listing as they are and names the one next step. A worker that moves gets its old entry removed first; the step after
that is planned when that one is done, from what is then true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.observed import Observed, Owned
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Capabilities, Entry
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Registration, Told
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Worker


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
    outdated: bool = False
    """Whether it passes every standing gate and goes for its weights (see `outdated`)."""


class Strand(msgspec.Struct, frozen=True, gc=False):
    """It is listed and does not belong here, and this kind of proxy removes nothing: write that down. No call."""

    worker: str
    incarnation: int
    url: str
    sequence: int


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


Action = Add | Remove | Strand | Settle | Adopt

NOBODY: Final[Mapping[str, str]] = MappingProxyType({})

ALL: Final = Capabilities()
"""Of a proxy that lists, removes and tags."""


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The next step of every worker looked at, and what the log and the listing disagree about."""

    actions: tuple[Action, ...]
    missing: tuple[str, ...]
    """Wanted and registered by the log's word, but not listed: the proxy lost them."""
    unexpected: tuple[str, ...]
    """Listed, ours, and of a life whose registration the log does not know."""


def make_plan(
    state: State,
    policy: Policy,
    proxy: ProxyPolicy,
    observed: Observed,
    workers: Iterable[str] | None = None,
    moved: Mapping[str, str] = NOBODY,
    capabilities: Capabilities = ALL,
    outdated: Mapping[str, str] = NOBODY,
) -> Plan:
    """The next step for each of `workers`, or for every worker that roster, ledger or listing knows if None.

    `moved` says of listed workers, by name, at which URL they were found to be now. `capabilities` are the proxy's:
    what it cannot do is not planned, or is only written down. `outdated` says who leaves for its weights, and why.
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
            actions.extend(_unwanted(name, listed, lives, held, current, capabilities))
        else:
            moved_to = moved.get(name)
            if moved_to is not None and not _may_have(state.roster, name, moved_to, observed):
                moved_to = None
            leaves = outdated.get(name)
            actions.extend(_wanted(name, listed, lives, current.incarnation, moved_to, capabilities, leaves))
            known = lives.get(current.incarnation)
            if not listed and known is not None and known.told is Told.REGISTERED:
                missing.append(name)
        if any(own.incarnation not in lives for own in listed):
            unexpected.append(name)
    return Plan(tuple(actions), tuple(sorted(missing)), tuple(sorted(unexpected)))


def several(actions: Iterable[Action]) -> set[str]:
    """Workers with more than one step to take: after the first, they are planned anew."""
    once: set[str] = set()
    more: set[str] = set()
    for action in actions:
        (more if action.worker in once else once).add(action.worker)
    return more


def _unwanted(
    name: str,
    listed: list[Owned],
    lives: dict[int, Registration],
    held: Held | None,
    current: Worker | None,
    capabilities: Capabilities,
) -> list[Action]:
    """Nothing of it may be listed."""
    for own in listed:
        if removable(lives, own, capabilities):
            return [Remove(name, own.incarnation, own.entry, _why(held, own, current))]
    return [*_strand(name, listed, lives, capabilities), *_settle(name, lives, listed)]


def removable(lives: dict[int, Registration], own: Owned, capabilities: Capabilities) -> bool:
    """Whether the proxy can remove this life of a worker, as far as it has said; `lives` are that worker's."""
    known = lives.get(own.incarnation)
    refused = known is not None and known.told is Told.REMOVE_UNSUPPORTED and not known.again
    return capabilities.remove and not refused


def _wanted(
    name: str,
    listed: list[Owned],
    lives: dict[int, Registration],
    incarnation: int,
    moved_to: str | None,
    capabilities: Capabilities,
    leaves: str | None,
) -> list[Action]:
    """Exactly one entry of its current life may be listed, and none if it `leaves` for that reason."""
    others = [own for own in listed if own.incarnation != incarnation]
    for own in others:
        if removable(lives, own, capabilities):
            return [Remove(name, own.incarnation, own.entry, f"superseded by incarnation {incarnation}")]
    mine = [own for own in listed if own.incarnation == incarnation]
    known = lives.get(incarnation)
    actions = _strand(name, others, lives, capabilities)
    actions += _settle(name, {life: told for life, told in lives.items() if life != incarnation}, listed)
    if mine and leaves is not None and removable(lives, mine[0], capabilities):
        return [Remove(name, incarnation, mine[0].entry, leaves, unless_wanted=False, outdated=True)]
    if mine:
        wrong = _misplaced(mine, known, moved_to)
        if wrong is None and mine[0].certain:
            return actions + _adopt(name, incarnation, mine[0].entry, known)
        if wrong is not None and removable(lives, wrong[0], capabilities):
            own, reason, there = wrong
            return [Remove(name, incarnation, own.entry, reason, unless_wanted=False, moved_to=there)]
        if wrong is not None and (wrong[2] is None or capabilities.remove):
            return actions
    if known is None or known.told is not Told.ADD_UNSUPPORTED or known.again:
        actions.append(Add(name, incarnation))
    return actions


def _misplaced(
    mine: list[Owned], known: Registration | None, moved_to: str | None
) -> tuple[Owned, str, str | None] | None:
    """Which entry of the current life must go although it is wanted, why, and where the worker is if that is why."""
    if len(mine) > 1:
        return _spare(mine, known), "listed more than once", None
    own = mine[0]
    if moved_to is not None and own.entry.url != moved_to:
        return own, f"it is at {moved_to} now", moved_to
    if not own.entry.in_rotation:
        return own, "the proxy keeps it out of rotation", None
    return None


def _strand(name: str, listed: list[Owned], lives: dict[int, Registration], capabilities: Capabilities) -> list[Action]:
    """Once for each entry that outlives its life."""
    if capabilities.remove:
        return []
    found: list[Action] = []
    for own in listed:
        known = lives.get(own.incarnation)
        if known is None or known.told is not Told.REMOVE_UNSUPPORTED:
            found.append(Strand(name, own.incarnation, own.entry.url, known.sequence if known else 0))
    return found


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
