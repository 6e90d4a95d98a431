"""The step that deregisters one entry: is it sure, intent, drain where somebody meant it, call, read back, outcome.

As with adding, a crash between any two lines leaves something that the next pass mends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from rollbook.projections.deciding.evidence import Ground
from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.plan import Remove
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.lanes.guard import Guard
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.lanes.outcomes import FINISHED, RETRY, About, NoAnswer, NotCalled, Outcome
from rollbook.projections.ports import Failed, Pending, Unsupported

DRAIN_PAUSE: Final = 0.5
"""Seconds between two looks at what a draining entry still works on, at most."""


class Removing:
    """Removes at one proxy.

    A slot is held for the call and what is written down right around it, and not until the entry is seen to be gone: so
    entries that stay listed whatever the router says do not hold back the others. Those that failed before are tried a
    few at a time. A drain holds none.
    """

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self._desk = desk
        self._guard = guard
        at_once = desk.policy.reconcile.removals_in_flight
        self._slots = asyncio.Semaphore(at_once)
        self._second_tries = asyncio.Semaphore(max(1, at_once // 4))

    async def remove(self, action: Remove, seen: Seen, *, again: bool) -> Outcome:
        """Deregister exactly the entry that was seen, unless something else may have its URL by now [I3]."""
        kept = await self._guard.against(action)
        if kept is not None:
            return RETRY if kept.unjudged else FINISHED
        # Before anything is waited for: what was let pass unasked must not become a guess meanwhile.
        certain = self._guard.ground(action) is not Ground.INFERRED
        if not again:
            return await self._remove(action, seen, certain=certain)
        async with self._second_tries:
            return await self._remove(action, seen, certain=certain)

    async def _remove(self, action: Remove, seen: Seen, *, certain: bool) -> Outcome:
        about = About(action.worker, action.incarnation, action.entry.url)
        drain_seconds = self._drain_seconds(action)
        with contextlib.ExitStack() as changing:
            if drain_seconds is not None:
                intent = await self._begin(action, about, seen, changing, drain_seconds)
                # Whoever has been drained leaves, whatever is thought of it by then.
                certain = not (isinstance(intent, int) and await self._drain(action, drain_seconds))
                async with self._slots:
                    ended = await self._call(action, about, intent, certain=certain, planned=True)
            else:
                async with self._slots:
                    intent = await self._begin(action, about, seen, changing, None)
                    ended = await self._call(action, about, intent, certain=certain, planned=False)
            return ended if isinstance(ended, Outcome) else await self._confirm(action, about, ended)

    async def _begin(
        self, action: Remove, about: About, seen: Seen, changing: contextlib.ExitStack, drain_seconds: float | None
    ) -> int | Outcome:
        """The intent's sequence; or how it ended before it began."""
        desk = self._desk
        if desk.on_hold() is not None:
            return FINISHED
        if not desk.urls.usable(about.url, seen):
            return RETRY
        changing.enter_context(desk.urls.changing(about.url))
        forced_by = self._guard.forced_by(action)
        reason = action.reason if forced_by is None else f"{action.reason}; forced by {forced_by}"
        return await desk.recorder.deregistering(about, reason, drain_seconds)

    async def _call(
        self, action: Remove, about: About, intent: int | Outcome, *, certain: bool, planned: bool
    ) -> int | Outcome:
        """Ask the proxy; the intent's sequence if it did not say no.

        `certain` is what the guard let pass unasked, `planned` what was to be drained before this.
        """
        if isinstance(intent, Outcome):
            return intent
        desk = self._desk
        against = desk.on_hold() or self._needed(action) or await self._stayed(action)
        if against is None and certain and self._guard.ground(action) is Ground.INFERRED:
            against = "nobody is certain any more that it must go"
        if against is None and not planned and self._drain_seconds(action) is not None:
            against = "somebody means it to go by now, so it is drained first"
        if against is not None:
            self._guard.stayed(action)
            return await desk.recorder.not_called(about, intent, "deregister", against)
        self._guard.called(action)
        answer = await desk.call(lambda: desk.proxy.remove(action.entry), "remove")
        if isinstance(answer, Pending) and desk.blind:
            reason = await desk.kept(answer, lambda: None)
            answer = answer if reason is None else Failed(reason)
        if isinstance(answer, Failed | Unsupported):
            return await desk.recorder.refused(about, intent, "deregister", answer)
        return intent

    async def _confirm(self, action: Remove, about: About, intent: int) -> Outcome:
        desk, reason = self._desk, None
        if not desk.blind:
            reason = await desk.reader.gone(action.entry, desk.policy.reconcile.confirm_deadline)
        if reason is not None:
            return await desk.recorder.failed(about, intent, "deregister", reason)
        return await desk.recorder.deregistered(about, intent)

    def _needed(self, action: Remove) -> str | None:
        """Why an entry must stay that was to be removed, by the roster as it is now [I4]."""
        if self._desk.unwanted(action.worker, action.incarnation) is not None:
            return None
        if action.outdated:
            return None if action.worker in self._desk.outdated() else "its weights let it stay"
        if action.unless_wanted:
            return "it belongs here again"
        if action.heir is not None and not self._desk.urls.owns(action.heir, action.worker):
            return f"{action.heir[0]} does not need its url any more"
        return None

    async def _stayed(self, action: Remove) -> str | None:
        """Why an entry must stay whose worker was found elsewhere: unless it is there, ready, it is not replaced."""
        if action.moved_to is None:
            return None
        site = await self._desk.locate((action.worker, action.incarnation))
        if isinstance(site, Held):
            return str(site)
        if site.url != action.moved_to:
            return f"it is not at {action.moved_to} after all"
        held = await self._desk.admission.ready(action.worker, site)
        return None if held is None else str(held)

    # -------------------------------------------------------------- drain

    def _drain_seconds(self, action: Remove) -> float | None:
        """For how long its requests may be waited for; None if it is not drained: somebody must have meant it."""
        if not self._desk.proxy.capabilities.drain or self._guard.ground(action) is not Ground.PLANNED:
            return None
        worker = self._desk.state.roster.workers.get(action.worker)
        asked = None if worker is None else worker.drain_seconds
        seconds = self._desk.served.drain_deadline if asked is None else asked
        return seconds if seconds > 0 else None

    async def _drain(self, action: Remove, seconds: float) -> bool:
        """Keep new requests away and wait until the running ones have ended, the worker is dead, or time is up.

        Returns whether the proxy was asked to at all.
        """
        desk = self._desk
        if await self._drained_enough(action) is not None:
            return False
        answer = await desk.call(lambda: desk.proxy.drain(action.entry), "drain")
        if isinstance(answer, NotCalled):
            return False
        # Without an answer it may drain; and also if it does not, the requests that run have their time.
        refused = isinstance(answer, Failed | Unsupported) and not isinstance(answer, NoAnswer)
        if refused or desk.blind:
            return True
        await desk.reader.until(
            lambda seen: seen.running(action.entry) == 0,
            lambda: self._drained_enough(action),
            seconds,
            most_pause=DRAIN_PAUSE,
        )
        return True

    async def _drained_enough(self, action: Remove) -> str | None:
        """Why its requests are not waited for any longer."""
        if (reason := self._desk.on_hold() or self._needed(action)) is not None:
            return reason
        return None if self._guard.ground(action) is Ground.PLANNED else "it is dead"
