"""The ledger: the fold of all registration outcomes, what each proxy was told and what it answered.

An intent without an outcome (a crash between the two) leaves its entry *unknown*: ours, to be read again or redone. The
proxy's own listing beats the ledger wherever there is one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

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
)
from rollbook.projections.roster import NOTHING, Change, shortened


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


class Ledger(msgspec.Struct, gc=False):
    """All proxies."""

    proxies: dict[str, ProxyRecord] = {}

    def look(self, proxy: str) -> ProxyRecord:
        """What the log says of a proxy; an empty record if nothing yet. Changes nothing."""
        return self.proxies.get(proxy) or ProxyRecord()

    def apply(self, recorded: Recorded) -> Change:
        """Fold one fact in. Facts of other families change nothing."""
        fact = recorded.fact
        if not isinstance(fact, ProxyFact):
            return NOTHING
        record = self.proxies.setdefault(fact.proxy, ProxyRecord())
        record.sequence = recorded.sequence
        if isinstance(fact, RegistrationFact):
            _register(record, fact, recorded)
            return Change((fact.worker,))
        match fact:
            case ProxyUnreachable():
                record.reachable, record.since, record.reason = False, recorded.time, shortened(fact.reason)
            case ProxyReachable():
                record.reachable, record.since, record.reason = True, recorded.time, ""
                record.version = fact.version
                _try_again(record)
            case LeadershipTaken() if fact.epoch > record.epoch:  # an older one deposes nobody [I7]
                record.owner, record.epoch = fact.owner, fact.epoch
                _try_again(record)
            case DriftFound():
                record.foreign = fact.foreign
            case _:  # RemovalWithheld is for people
                pass
        return NOTHING


def _register(record: ProxyRecord, fact: RegistrationFact, recorded: Recorded) -> None:
    lives = record.registrations.setdefault(fact.worker, {})
    if isinstance(fact, Deregistered):
        lives.pop(fact.incarnation, None)
        if not lives:
            del record.registrations[fact.worker]
        return
    before = lives.get(fact.incarnation)
    failures = before.failures if before is not None else 0
    match fact:
        case Registering():
            told, reason = Told.REGISTERING, shortened(fact.reason)
        case Deregistering():
            told, reason = Told.DEREGISTERING, shortened(fact.reason)
        case Registered():
            told, reason, failures = Told.REGISTERED, "", 0
        case RegistrationFailed():
            told = Told.FAILED if fact.retryable else _UNSUPPORTED[fact.action]
            reason, failures = f"{fact.action}: {shortened(fact.reason)}", failures + 1
        case _:
            return
    lives[fact.incarnation] = Registration(told, fact.url, recorded.sequence, recorded.time, reason, failures)


def _try_again(record: ProxyRecord) -> None:
    """What could not be done may be possible now: a new controller has its own settings, a new proxy its own ways."""
    for lives in record.registrations.values():
        for incarnation, registration in lives.items():
            if registration.told in _UNSUPPORTED.values():
                lives[incarnation] = msgspec.structs.replace(registration, told=Told.FAILED)
