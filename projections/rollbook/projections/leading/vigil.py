"""The leader's watch over those who watch: an observer that has fallen silent is written down, once.

It takes silence for what it is: nobody knows. No worker is touched.
"""

from __future__ import annotations

from typing import Final

from rollbook.events import Codec, ObserverSilent
from rollbook.events.times import rfc3339
from rollbook.projections.leading.controller import Leading
from rollbook.projections.log.authority import Authority
from rollbook.projections.ports import AppendConflict, LogUnavailable

PAUSE_SECONDS: Final = 1.0
HELD_UP_SECONDS: Final = 2.0
"""A pause that took so much longer says that this process was stopped: what came in meanwhile is not read yet."""


async def vigil(leading: Leading) -> None:
    """Look after the observers for as long as this process leads. Raises `LeadershipLost` when it is time to stop."""
    resources = leading.resources
    clock, observers = resources.clock, resources.observers
    while True:
        began = clock.monotonic()
        await clock.sleep(PAUSE_SECONDS)
        now = clock.monotonic()
        if now - began > PAUSE_SECONDS + HELD_UP_SECONDS:
            observers.listening(now)
            continue
        for name, seconds in observers.untold(now).items():
            try:
                await _write(leading, ObserverSilent(observer=name, silent_seconds=round(seconds, 1)))
            except AppendConflict:
                break  # looked at again with what has come in between
            except LogUnavailable as exc:
                resources.tell("log.unavailable", reason=str(exc))
                break
            resources.tell("observer.silent", observer=name, seconds=round(seconds, 1))


async def _write(leading: Leading, fact: ObserverSilent) -> None:
    """With the fleet's last fact that was looked at, and only while the lease lasts [I7]."""
    resources, fleet = leading.resources, leading.policy.fleet
    draft = Codec(fleet).draft(
        fact, id=resources.ids.new(), time=rfc3339(resources.clock.now()), publisher=resources.owner
    )
    last = await resources.log.last(draft.subject)
    sequence = 0 if last is None else last.sequence
    await leading.projector.passed(sequence)
    if fact.observer not in resources.observers.untold(resources.clock.monotonic()):
        return
    Authority(resources.leadership, fleet).require()
    (stored,) = await resources.log.append([draft], expect={draft.subject: sequence})
    await leading.projector.passed(stored)
