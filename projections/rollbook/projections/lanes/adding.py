"""The step that registers one life: admit, intent, call, read back, outcome.

Written so that a crash between any two of its lines leaves something that the next pass mends: an intent without
outcome is read back and settled, adopted or redone.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Add, Remove
from rollbook.projections.lanes.admission import PROBES_IN_FLIGHT, Site
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.lanes.outcomes import FINISHED, RETRY, About, NotCalled, Outcome, held_back
from rollbook.projections.ports import Answer, Entry, Failed, Pending, Target, Unsupported

INTENTS_AHEAD: Final = 2
"""Intents that may stand in the log for each add in flight, so that no slot is idle while the log is written to."""


class Adding:
    """Adds at one proxy: never more at once than it takes, and at most half of them second tries.

    A slot is held from the last look before the call until the entry is seen, and for no write to the log. A worker
    that cannot be added holds its slot for as long as the router tries; so those that failed before never hold back
    those that have not been tried.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        slots = desk.proxy.capabilities.adds_in_flight
        self._probes = asyncio.Semaphore(PROBES_IN_FLIGHT)
        self._slots = asyncio.Semaphore(slots)
        self._intents = asyncio.Semaphore(INTENTS_AHEAD * slots)
        self._second_tries = asyncio.Semaphore(max(1, slots // 2))

    async def add(self, action: Add, seen: Seen, observed: Observed, *, again: bool) -> Outcome:
        """Admit, then register one life. `again` says that its last try failed."""
        desk = self._desk
        async with self._probes:
            site = await desk.locate((action.worker, action.incarnation))
            if isinstance(site, Held):
                return held_back(site)
            if (left := self._left_behind(action, site, observed)) is not None:
                return Outcome(evict=left)
            if (taken := desk.urls.taken(action, site.url, observed)) is not None:
                return held_back(*taken)
            if (held := await desk.admission.ready(action.worker, site)) is not None:
                return held_back(held)
        if not desk.urls.usable(site.url, seen):
            return RETRY
        with desk.urls.changing(site.url):
            async with self._second_tries if again else contextlib.nullcontext(), self._intents:
                return await self._add_now(action, site)

    def _left_behind(self, action: Add, site: Site, observed: Observed) -> Remove | None:
        """Where nothing is listed: the place of an earlier try of this life, which may have worked."""
        if not self._desk.blind:
            return None
        for own in observed.owned.get(action.worker, ()):
            if own.incarnation == action.incarnation and own.entry.url != site.url:
                reason = f"it is at {site.url} now"
                return Remove(*_life(action), own.entry, reason, unless_wanted=False, moved_to=site.url)
        return None

    async def _add_now(self, action: Add, site: Site) -> Outcome:
        desk = self._desk
        if desk.on_hold() is not None:
            return FINISHED
        about = About(action.worker, action.incarnation, site.url)
        intent = await desk.recorder.registering(about, "belongs here, is not listed")
        async with self._slots:
            against = await self._against(action, site)
            wrong = await self._call(self._target(about, site)) if against is None else against
        if isinstance(against, str):
            return await desk.recorder.not_called(about, intent, "register", against)
        if isinstance(wrong, Failed | Unsupported):
            return await desk.recorder.refused(about, intent, "register", wrong)
        if wrong is not None:
            return await desk.recorder.failed(about, intent, "register", wrong)
        desk.urls.settled(site.url)
        return await desk.recorder.registered(about, intent)

    async def _against(self, action: Add, site: Site) -> NotCalled | str | None:
        """Why the call is not made, now that there is a slot: waiting for it took its time.

        So the address is asked for once more [I6], and the roster last [I2]. What the provider says otherwise than a
        moment ago it may go on saying in turns; so that is tried again after a pause, and not at once.
        """
        again = await self._desk.locate(_life(action))
        if isinstance(again, Held):
            return NotCalled(f"not called: {again}") if again.gate is Gate.ADDRESS_KNOWN else str(again)
        if again != site:
            return NotCalled(f"not called: it is at {again.url} now")
        return self._desk.unwanted(*_life(action)) or self._desk.on_hold()

    async def _call(self, target: Target) -> Failed | Unsupported | str | None:
        """What the proxy said against it, or why it was not seen to be there; None once it was."""
        answer = await self._desk.call(lambda: self._desk.proxy.add(target), "add")
        return answer if isinstance(answer, Failed | Unsupported) else await self._not_seen(target, answer)

    def _target(self, about: About, site: Site) -> Target:
        worker = self._desk.state.roster.workers.get(about.worker)
        pool = None if worker is None else worker.pool
        policy = self._desk.policy.pool(pool)
        return Target(
            worker=about.worker,
            incarnation=about.incarnation,
            url=site.url,
            pool=pool,
            role=policy.role,
            bootstrap_port=site.bootstrap_port,
            model=policy.model,
        )

    async def _not_seen(self, target: Target, answer: Answer) -> str | None:
        """None once it is seen to be there, or a blind proxy says so; otherwise why it is not waited for."""
        desk, pending = self._desk, answer if isinstance(answer, Pending) else None
        if desk.blind:
            return None if pending is None else await desk.kept(pending, lambda: self._abandoned(target))
        return await desk.reader.until(
            lambda seen: any(self._is(entry, target) for entry in seen.listing.entries),
            lambda: self._give_up(target, pending),
            desk.policy.reconcile.confirm_deadline,
        )

    def _is(self, entry: Entry, target: Target) -> bool:
        if entry.url != target.url or not entry.in_rotation:
            return False
        # Asked anew, because a router may be another version by now. Where nothing can be removed, the entry may be the
        # one that an older life left behind.
        can = self._desk.proxy.capabilities
        if not (can.tag and can.remove):
            return True
        mine = (self._desk.policy.fleet, target.worker, target.incarnation)
        return (entry.fleet, entry.worker, entry.incarnation) == mine

    def _abandoned(self, target: Target) -> str | None:
        unwanted = self._desk.unwanted(target.worker, target.incarnation)
        return None if unwanted is None else f"abandoned: {unwanted}"

    async def _give_up(self, target: Target, pending: Pending | None) -> str | None:
        """Why an add that is not seen yet is not waited for any longer."""
        if (reason := self._abandoned(target)) is not None:
            return reason
        now = None if pending is None else await self._desk.outcome(pending)
        return now.reason if isinstance(now, Failed) else None


def _life(action: Add) -> tuple[str, int]:
    return action.worker, action.incarnation
