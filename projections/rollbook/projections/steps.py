"""The steps of one key at one proxy: intent, call, read back, outcome.

Each is written so that a crash between any two of its lines leaves something that the next pass mends: an intent
without outcome is read back and settled, adopted or redone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypedDict

import msgspec

from rollbook.events import (
    Deregistered,
    Deregistering,
    Registered,
    Registering,
    RegistrationFailed,
)
from rollbook.projections import gates
from rollbook.projections.admission import PROBES_IN_FLIGHT, Admission
from rollbook.projections.authority import Authority
from rollbook.projections.gates import Held
from rollbook.projections.listing import Reader, Seen, bounded
from rollbook.projections.plan import Add, Adopt, Observed, Remove, Settle
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import (
    Answer,
    Entry,
    Failed,
    Pending,
    Proxy,
    ProxyUnavailable,
    Target,
    Unsupported,
)
from rollbook.projections.projector import Projector
from rollbook.projections.tell import Tell
from rollbook.projections.urls import Urls
from rollbook.projections.worker import Worker
from rollbook.projections.writer import FencedWriter


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a step ended, for the lane's schedule."""

    retry: bool = False
    """There is more to do for this key, after a pause that grows with failures in a row."""
    follow: bool = False
    """The next step may be planned at once."""
    held: Held | None = None
    """The admission gate that keeps it out."""
    evict: Remove | None = None
    """Another worker's entry that must go first, since a newer life owns its URL."""


LONGEST_REASON: Final = 500
"""Letters of a reason that a fact takes over. Those of operators, workers and routers can be of any length."""

FINISHED: Final = Outcome()
FOLLOW: Final = Outcome(follow=True)
RETRY: Final = Outcome(retry=True)


class _About(msgspec.Struct, frozen=True, gc=False):
    worker: str
    incarnation: int
    url: str


class _Fields(TypedDict):
    proxy: str
    worker: str
    incarnation: int
    url: str


class Steps:
    """Carries out the plan's actions at one proxy."""

    def __init__(
        self,
        proxy: Proxy,
        served: ProxyPolicy,
        policy: Policy,
        *,
        projector: Projector,
        reader: Reader,
        writer: FencedWriter,
        admission: Admission,
        authority: Authority,
        tell: Tell,
    ) -> None:
        self._proxy = proxy
        self._served = served
        self._policy = policy
        self._projector = projector
        self._reader = reader
        self._writer = writer
        self._admission = admission
        self._authority = authority
        self._tell = tell
        self._probes = asyncio.Semaphore(PROBES_IN_FLIGHT)
        self._adds = asyncio.Semaphore(proxy.capabilities.adds_in_flight)
        self._removals = asyncio.Semaphore(policy.reconcile.removals_in_flight)
        self._urls = Urls(projector, policy, served, tick=reader.tick)

    def forget_before(self, began: int) -> None:
        """Drop what only mattered to listings begun before `began`."""
        self._urls.forget_before(began)

    # -------------------------------------------------------------- add

    async def add(self, action: Add, seen: Seen, observed: Observed) -> Outcome:
        """Admit, then register one life."""
        name = action.worker
        async with self._probes:
            url = await self._locate(action)
            if isinstance(url, Held):
                return _held(url)
            if (taken := self._urls.taken(action, url, observed)) is not None:
                return Outcome(retry=True, held=taken[0], evict=taken[1])
            if (held := await self._admission.ready(name, url)) is not None:
                return _held(held)
        if not self._urls.usable(url, seen):
            return RETRY
        with self._urls.changing(url):
            async with self._adds:
                return await self._add_now(action, url)

    async def _locate(self, action: Add) -> str | Held:
        return await self._admission.locate(action.worker, action.incarnation, self._proxy.canonical_url)

    async def _add_now(self, action: Add, url: str) -> Outcome:
        """With a slot: the address is asked for once more, because waiting for the slot took its time [I6]."""
        if self._on_hold() is not None:
            return FINISHED
        again = await self._locate(action)
        if again != url:
            return FOLLOW if isinstance(again, str) else _held(again)
        about = _About(action.worker, action.incarnation, url)
        worker = self._projector.state.roster.workers.get(action.worker)
        intent = await self._writer.write(
            Registering(**self._fields(about), cause=_last(worker), reason="belongs here, is not listed")
        )
        await self._projector.passed(intent)
        target = Target(
            worker=about.worker, incarnation=about.incarnation, url=url, pool=None if worker is None else worker.pool
        )
        against = self._unwanted(about.worker, about.incarnation) or self._on_hold()
        if against is not None:
            return await self._failed(about, intent, "register", f"not called: {against}", FOLLOW)
        answer = await self._call(lambda: self._proxy.add(target), "add")
        if isinstance(answer, Failed | Unsupported):
            return await self._refused(about, intent, "register", answer)
        reason = await self._reader.until(
            lambda listing: any(self._is(entry, target) for entry in listing.entries),
            lambda: self._give_up(target, answer if isinstance(answer, Pending) else None),
            self._policy.reconcile.confirm_deadline,
        )
        if reason is not None:
            return await self._failed(about, intent, "register", reason, RETRY)
        self._urls.settled(url)
        return await self._registered(about, intent)

    def _is(self, entry: Entry, target: Target) -> bool:
        mine = (self._policy.fleet, target.worker, target.incarnation)
        tagged = not self._proxy.capabilities.tag or (entry.fleet, entry.worker, entry.incarnation) == mine
        return entry.url == target.url and entry.in_rotation and tagged

    async def _give_up(self, target: Target, pending: Pending | None) -> str | None:
        """Why an add that is not seen yet is not waited for any longer."""
        unwanted = self._unwanted(target.worker, target.incarnation)
        if unwanted is not None:
            return f"abandoned: {unwanted}"
        if pending is None:
            return None
        try:
            now = await bounded(self._proxy.outcome(pending), self._policy.reconcile.call_deadline, "outcome")
        except ProxyUnavailable:
            return None
        return now.reason if isinstance(now, Failed | Unsupported) else None

    def _unwanted(self, name: str, incarnation: int) -> str | None:
        """By the roster as it is now."""
        return gates.unwanted(self._projector.state.roster, self._policy, self._served, name, incarnation)

    def _on_hold(self) -> str | None:
        """Why no admin call may be made now, by an operator's word."""
        decision = self._projector.state.roster.holding(self._served.name)
        return None if decision is None else f"held by {decision.by}: {decision.why}"

    # -------------------------------------------------------------- remove

    async def remove(self, action: Remove, seen: Seen) -> Outcome:
        """Deregister exactly the entry that was seen, unless something else may have its URL by now [I3]."""
        entry = action.entry
        about = _About(action.worker, action.incarnation, entry.url)
        async with self._removals:
            if self._on_hold() is not None:
                return FINISHED
            if not self._urls.usable(entry.url, seen):
                return RETRY
            with self._urls.changing(entry.url):
                return await self._remove_now(action, about)

    async def _remove_now(self, action: Remove, about: _About) -> Outcome:
        entry = action.entry
        worker = self._projector.state.roster.workers.get(about.worker)
        intent = await self._writer.write(
            Deregistering(**self._fields(about), cause=_last(worker), reason=action.reason[:LONGEST_REASON])
        )
        await self._projector.passed(intent)
        against = self._on_hold() or self._needed(action) or await self._stayed(action)
        if against is not None:
            return await self._failed(about, intent, "deregister", f"not called: {against}", FOLLOW)
        answer = await self._call(lambda: self._proxy.remove(entry), "remove")
        if isinstance(answer, Failed | Unsupported):
            return await self._refused(about, intent, "deregister", answer)
        reason = await self._reader.until(
            lambda listing: all((other.handle, other.url) != (entry.handle, entry.url) for other in listing.entries),
            _never,
            self._policy.reconcile.confirm_deadline,
        )
        if reason is not None:
            return await self._failed(about, intent, "deregister", reason, RETRY)
        return await self._deregistered(about, intent, FOLLOW)

    def _needed(self, action: Remove) -> str | None:
        """Why an entry must stay that was to be removed, by the roster as it is now [I4]."""
        if self._unwanted(action.worker, action.incarnation) is not None:
            return None
        if action.unless_wanted:
            return "it belongs here again"
        if action.heir is not None and not self._urls.owns(action.heir, action.worker):
            return f"{action.heir[0]} does not need its url any more"
        return None

    async def _stayed(self, action: Remove) -> str | None:
        """Why an entry must stay whose worker was found elsewhere: unless it is there, ready, it is not replaced."""
        if action.moved_to is None:
            return None
        url = await self._locate(Add(action.worker, action.incarnation))
        if isinstance(url, Held):
            return str(url)
        if url != action.moved_to:
            return f"it is not at {action.moved_to} after all"
        held = await self._admission.ready(action.worker, url)
        return None if held is None else str(held)

    # -------------------------------------------------------------- write down what was read

    async def settle(self, action: Settle) -> Outcome:
        """The log counts on an entry that is not there: say so. No admin call."""
        return await self._deregistered(_About(action.worker, action.incarnation, action.url), action.sequence, FOLLOW)

    async def adopt(self, action: Adopt) -> Outcome:
        """The entry is there and the log lacks its outcome: say so. No admin call."""
        return await self._registered(_About(action.worker, action.incarnation, action.url), action.sequence)

    async def _registered(self, about: _About, cause: int) -> Outcome:
        await self._outcome(Registered(**self._fields(about), cause=cause), "proxy.registered")
        return FINISHED

    async def _deregistered(self, about: _About, cause: int, then: Outcome) -> Outcome:
        await self._outcome(Deregistered(**self._fields(about), cause=cause), "proxy.deregistered")
        return then

    async def _refused(
        self, about: _About, intent: int, action: Literal["register", "deregister"], answer: Failed | Unsupported
    ) -> Outcome:
        retryable = isinstance(answer, Failed) and answer.retryable
        return await self._failed(about, intent, action, answer.reason, RETRY, retryable=retryable)

    async def _failed(
        self,
        about: _About,
        intent: int,
        action: Literal["register", "deregister"],
        reason: str,
        then: Outcome,
        *,
        retryable: bool = True,
    ) -> Outcome:
        fact = RegistrationFailed(
            **self._fields(about), cause=intent, action=action, reason=reason[:LONGEST_REASON], retryable=retryable
        )
        await self._outcome(fact, "proxy.registration_failed")
        return then if retryable else FINISHED

    async def _outcome(self, fact: Registered | Deregistered | RegistrationFailed, event: str) -> None:
        sequence = await self._writer.write(fact)
        self._tell(
            event,
            proxy=fact.proxy,
            worker=fact.worker,
            incarnation=fact.incarnation,
            url=fact.url,
            sequence=sequence,
            cause=fact.cause,
            **({"action": fact.action, "reason": fact.reason} if isinstance(fact, RegistrationFailed) else {}),
        )
        await self._projector.passed(sequence)

    def _fields(self, about: _About) -> _Fields:
        return {
            "proxy": self._served.name,
            "worker": about.worker,
            "incarnation": about.incarnation,
            "url": about.url,
        }

    async def _call(self, call: Callable[[], Awaitable[Answer]], verb: str) -> Answer:
        """An admin call with its deadline; no usable answer is a failure whose effect is unknown and read back."""
        deadline = self._policy.reconcile.call_deadline
        if (missing := self._authority.missing(deadline)) is not None:
            return Failed(f"not called: {missing}")
        try:
            return await bounded(call(), deadline, verb)
        except ProxyUnavailable as exc:
            return Failed(f"no answer, effect unknown: {exc}")


def _last(worker: Worker | None) -> int:
    """The fact that led to an intent."""
    return 0 if worker is None else worker.last


async def _never() -> str | None:
    return None


def _held(held: Held) -> Outcome:
    return Outcome(retry=True, held=held)
