"""The ledger: the fold of all registration outcomes, what each proxy was told and what it answered.

An intent without an outcome (a crash between the two) leaves its entry *unknown*: ours, to be read again or redone. The
proxy's own listing beats the ledger wherever there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from rollbook.events import (
    Deregistered,
    Deregistering,
    DriftFound,
    LeadershipTaken,
    ProxyFact,
    ProxyReachable,
    ProxyUnreachable,
    Recorded,
    Registered,
    Registering,
    RegistrationFact,
    RegistrationFailed,
    RemovalWithheld,
)
from rollbook.projections.state.bounds import shortened
from rollbook.projections.state.roster import NOTHING, Change


class Told(StrEnum):
    """The last word about a registration."""

    REGISTERING = "registering"
    REGISTERED = "registered"
    DEREGISTERING = "deregistering"
    FAILED = "failed"
    ADD_UNSUPPORTED = "add unsupported"
    """The proxy cannot do it: shown, and not tried again for this life until another controller or proxy is there."""
    REMOVE_UNSUPPORTED = "remove unsupported"


_UNSUPPORTED: Final = {"register": Told.ADD_UNSUPPORTED, "deregister": Told.REMOVE_UNSUPPORTED}

MOST_NOTED: Final = 128
"""Sequences for each worker: some thirty lives at one proxy."""
MOST_GHOSTS: Final = 1000
"""URLs remembered of one proxy; the oldest are forgotten first."""

FARTHEST_EPOCH: Final = 2**40
"""By how much a takeover may outrank the last one. Epochs count writes to the lease, so that none ever comes so far: it
is forged, or an accident. Nobody could outrank the largest number of all any more."""


class Registration(msgspec.Struct, frozen=True, gc=False):
    """What the log says of one life of one worker at one proxy."""

    told: Told
    url: str
    sequence: int
    """Of the fact that said it."""
    time: str
    reason: str = ""
    failures: int = 0
    """In a row."""
    retry_seconds: float | None = None
    """From `time`: when it is tried again, as it was meant then."""
    again: bool = False
    """Of what could not be done: whether it may be possible now, with another controller or at another proxy."""
    possible: bool = False
    """Whether it may have been added at all: some intents end without a call."""
    confirmed: bool = False
    """Whether its entry was seen, or confirmed by a blind proxy, and no call since then can have taken it away."""
    haunted: bool = False
    """Whether an add was made whose effect nobody saw: it may still be carried out."""


class Ghost(msgspec.Struct, frozen=True, gc=False):
    """Of a life that is not registered any more: an add that may still be carried out."""

    worker: str
    incarnation: int
    sequence: int
    """Of the fact by which it was given up."""


class ProxyRecord(msgspec.Struct, gc=False):
    """What the log says of one proxy. Mutated by the fold alone."""

    sequence: int = 0
    """The last sequence on the proxy's subject."""
    reachable: bool | None = None
    since: str = ""
    reason: str = ""
    version: str | None = None
    owner: str | None = None
    epoch: int = 0
    registrations: dict[str, dict[int, Registration]] = {}
    """Worker → incarnation → what is known of it. A deregistered life is dropped."""
    foreign: tuple[str, ...] = ()
    """URLs in the last drift that Rollbook did not put there."""
    withheld: dict[str, tuple[str, ...]] = {}
    """By pool, `""` for no known one: workers whose removal the budget withholds."""
    ghosts: dict[str, Ghost] = {}
    """By URL: whose entry it is if one appears there, where a proxy keeps no tags. Until somebody registers there."""


class Ledger(msgspec.Struct, gc=False):
    """All proxies."""

    proxies: dict[str, ProxyRecord] = {}
    named: dict[str, list[int]] = {}
    """By worker: the sequences of the last facts on the proxies' subjects that name it; under `""` of those that are
    about a whole proxy. So that a worker's story is looked up: a server finds facts by subject, and these share one."""

    def look(self, proxy: str) -> ProxyRecord:
        """What the log says of a proxy; an empty record if nothing yet. Changes nothing."""
        return self.proxies.get(proxy) or ProxyRecord()

    def apply(self, recorded: Recorded) -> Change:
        """Fold one fact in. Facts of other families change nothing."""
        fact = recorded.fact
        if not isinstance(fact, ProxyFact):
            return NOTHING
        record = self.proxies.get(fact.proxy)
        if record is None:
            record = self.proxies[fact.proxy] = ProxyRecord()
        record.sequence = recorded.sequence
        if isinstance(fact, RegistrationFact):
            self._note(fact.worker, recorded.sequence)
            _register(record, fact, recorded)
            return Change((fact.worker,))
        for name in _names_in(fact):
            self._note(name, recorded.sequence)
        _say(record, fact, recorded)
        return NOTHING

    def _note(self, name: str, sequence: int) -> None:
        sequences = self.named.get(name)
        if sequences is None:
            self.named[name] = [sequence]
            return
        sequences.append(sequence)
        if len(sequences) > MOST_NOTED:
            del sequences[0]


def _names_in(fact: ProxyFact) -> tuple[str, ...]:
    """The workers that a fact is about which is no registration; `""` for all of a proxy's."""
    match fact:
        case ProxyReachable() | ProxyUnreachable() | LeadershipTaken():
            return ("",)
        case DriftFound():
            return tuple(dict.fromkeys((*fact.missing, *fact.unexpected)))
        case RemovalWithheld():
            return tuple(dict.fromkeys(fact.workers))
        case _:
            return ()


def _say(record: ProxyRecord, fact: ProxyFact, recorded: Recorded) -> None:
    """What is said of a whole proxy."""
    match fact:
        case ProxyUnreachable():
            record.reachable, record.since, record.reason = False, recorded.time, shortened(fact.reason)
        case ProxyReachable():
            record.reachable, record.since, record.reason = True, recorded.time, ""
            record.version = fact.version
            _try_again(record)
        case LeadershipTaken() if 0 < fact.epoch - record.epoch <= FARTHEST_EPOCH:  # no other deposes anybody [I7]
            record.owner, record.epoch = fact.owner, fact.epoch
            _try_again(record)
        case DriftFound():
            record.foreign = fact.foreign
        case RemovalWithheld():
            record.withheld.pop(fact.pool or "", None)
            if fact.workers:
                record.withheld[fact.pool or ""] = fact.workers
        case _:  # a LeadershipTaken that is outranked or absurd; what an exclusive proxy lost
            pass


def _register(record: ProxyRecord, fact: RegistrationFact, recorded: Recorded) -> None:
    lives = record.registrations.get(fact.worker)
    if lives is None:
        lives = record.registrations[fact.worker] = {}
    before = lives.get(fact.incarnation)
    kind = type(fact)
    if kind is Deregistered:
        lives.pop(fact.incarnation, None)
        if not lives:
            del record.registrations[fact.worker]
        if before is not None:
            _give_up(record, fact, before, recorded.sequence)
        return
    lives[fact.incarnation] = _SAID[kind](fact, before, recorded)
    if kind is Registering:
        if before is not None and before.url != fact.url:
            _give_up(record, fact, before, recorded.sequence)
        record.ghosts.pop(fact.url, None)


def _added(fact: Registered, before: Registration | None, recorded: Recorded) -> Registration:
    return Registration(
        Told.REGISTERED,
        fact.url,
        recorded.sequence,
        recorded.time,
        possible=True,
        confirmed=True,
        haunted=before is not None and before.haunted,
    )


def _to_be_removed(fact: Deregistering, before: Registration | None, recorded: Recorded) -> Registration:
    """An intent changes nothing by itself."""
    return Registration(
        Told.DEREGISTERING,
        fact.url,
        recorded.sequence,
        recorded.time,
        shortened(fact.reason),
        0 if before is None else before.failures,
        possible=True,
        confirmed=_was_confirmed(fact, before),
        haunted=before is not None and before.haunted,
    )


def _to_be_added(fact: Registering, before: Registration | None, recorded: Recorded) -> Registration:
    """An intent that was left without a word may have been carried out, and may still be."""
    left_open = before is not None and _open(before)
    return Registration(
        Told.REGISTERING,
        fact.url,
        recorded.sequence,
        recorded.time,
        shortened(fact.reason),
        0 if before is None else before.failures,
        possible=before is not None and (before.possible or left_open),
        confirmed=before is not None and before.told is not Told.DEREGISTERING and _was_confirmed(fact, before),
        haunted=before is not None and (before.haunted or left_open),
    )


def _failed(fact: RegistrationFailed, before: Registration | None, recorded: Recorded) -> Registration:
    """What was called for and failed may have worked all the same, or may still come."""
    may_have_worked = fact.called and fact.retryable
    return Registration(
        Told.FAILED if fact.retryable else _UNSUPPORTED[fact.action],
        fact.url,
        recorded.sequence,
        recorded.time,
        f"{fact.action}: {shortened(fact.reason)}",
        1 if before is None else before.failures + 1,
        fact.retry_seconds,
        possible=may_have_worked or (before is not None and before.possible),
        confirmed=not (fact.action == "deregister" and may_have_worked) and _was_confirmed(fact, before),
        haunted=(fact.action == "register" and fact.called) or (before is not None and before.haunted),
    )


_SAID: Final[dict[type[RegistrationFact], Callable[[Any, Registration | None, Recorded], Registration]]] = {
    Registering: _to_be_added,
    Registered: _added,
    Deregistering: _to_be_removed,
    RegistrationFailed: _failed,
}
"""What is known of a life after one more word about it, given the fact and what was known before."""


def _was_confirmed(fact: RegistrationFact, before: Registration | None) -> bool:
    """Whether its entry was known to be there, at this very URL."""
    return before is not None and before.confirmed and before.url == fact.url


def _open(registration: Registration) -> bool:
    return registration.told is Told.REGISTERING


def _give_up(record: ProxyRecord, fact: RegistrationFact, before: Registration, sequence: int) -> None:
    """A life is counted on no longer at its old URL."""
    if before.haunted or _open(before):
        record.ghosts.pop(before.url, None)
        record.ghosts[before.url] = Ghost(fact.worker, fact.incarnation, sequence)
        if len(record.ghosts) > MOST_GHOSTS:
            del record.ghosts[next(iter(record.ghosts))]


def _try_again(record: ProxyRecord) -> None:
    """What could not be done may be possible now: a new controller has its own settings, a new proxy its own ways."""
    for lives in record.registrations.values():
        for incarnation, registration in lives.items():
            if registration.told in _UNSUPPORTED.values():
                lives[incarnation] = msgspec.structs.replace(registration, again=True)
