"""What the leader writes down for the whole fleet: messages that nobody can read, and suspensions whose time is over.

Both go into the log with the last sequence of their subject that was looked at, and only while the lease lasts: whoever
was stopped in the middle of it and wakes up too late writes nothing [I7].
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable
from typing import Final

from rollbook.events import Codec, MessageQuarantined, WorkerResumed
from rollbook.events.subjects import quarantine_subject, worker_subject
from rollbook.events.times import rfc3339
from rollbook.projections.leading.terms import Terms
from rollbook.projections.log.authority import Authority
from rollbook.projections.log.projector import Projector
from rollbook.projections.ports import AppendConflict, LogUnavailable
from rollbook.projections.resources import Resources
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Suspension

PAUSE_SECONDS: Final = 1.0
MOST_QUARANTINED_AT_ONCE: Final = 100


class Housekeeping:
    """One leader's; `run` is its life."""

    def __init__(self, fleet: str, projector: Projector, resources: Resources) -> None:
        self._fleet = fleet
        self._projector = projector
        self._log = resources.log
        self._clock = resources.clock
        self._ids = resources.ids
        self._owner = resources.owner
        self._tell = resources.tell
        self._codec = Codec(fleet)
        self._authority = Authority(resources.leadership, fleet)
        self._terms = Terms(resources.log, self._codec, projector, resources.clock)

    async def run(self) -> None:
        """Look after both for ever. Raises `LeadershipLost` when it is time to stop."""
        while True:
            await self._tried(self._quarantine())
            await self._tried(self._expire())
            await self._clock.sleep(PAUSE_SECONDS)

    async def _tried(self, work: Awaitable[None]) -> None:
        """What does not succeed is tried again with the next look, and holds up nothing else."""
        try:
            await work
        except AppendConflict:
            pass  # looked at again with what has come in between
        except LogUnavailable as exc:
            self._tell("log.unavailable", reason=str(exc))

    async def _quarantine(self) -> None:
        """Write down what could not be read [I9]: where it is and why, once per sequence."""
        if not self._projector.state.unreadable:
            return
        subject = quarantine_subject(self._fleet)
        last = await self._folded(subject)
        waiting = list(self._projector.state.unreadable.items())[:MOST_QUARANTINED_AT_ONCE]
        if not waiting:
            return
        drafts = [
            self._codec.draft(
                MessageQuarantined(
                    sequence=sequence, subject=found.subject[:300], reason=found.reason, detail=found.detail[:300]
                ),
                id=quarantine_id(self._fleet, sequence),
                time=rfc3339(self._clock.now()),
                publisher=self._owner,
            )
            for sequence, found in waiting
        ]
        self._authority.require()
        sequences = await self._log.append(drafts, expect={subject: last})
        for sequence, found in waiting:
            self._tell("message.quarantined", sequence=sequence, subject=found.subject, reason=found.reason)
        await self._projector.passed(max(sequences))

    async def _expire(self) -> None:
        """End suspensions whose time is over. The fold has no clock, so it is told by a fact."""
        asleep = _asleep(self._projector.state.roster)
        for name in await self._terms.over({name: (one.sequence, until) for name, (one, until) in asleep.items()}):
            with contextlib.suppress(AppendConflict):  # as above; nobody else sleeps on for that
                await self._wake(name, asleep[name][0])

    async def _wake(self, name: str, suspension: Suspension) -> None:
        subject = worker_subject(self._fleet, name)
        last = await self._folded(subject)
        worker = self._projector.state.roster.workers.get(name)
        if worker is None or worker.suspension != suspension:
            return
        incarnation = worker.incarnation
        fact = WorkerResumed(worker=name, incarnation=incarnation, seen=last, reason="its time was over")
        draft = self._codec.draft(fact, id=self._ids.new(), time=rfc3339(self._clock.now()), publisher=self._owner)
        self._authority.require()
        sequence = (await self._log.append([draft], expect={subject: last}))[0]
        self._tell("suspension.expired", worker=name, incarnation=incarnation)
        await self._projector.passed(sequence)

    async def _folded(self, subject: str) -> int:
        """The last sequence on `subject`, 0 for none; by then the fold has passed it."""
        last = await self._log.last(subject)
        sequence = 0 if last is None else last.sequence
        await self._projector.passed(sequence)
        return sequence


def quarantine_id(fleet: str, sequence: int) -> str:
    """The id of the one MessageQuarantined about `sequence`, whoever writes it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"rollbook://{fleet}/quarantine/{sequence}"))


def _asleep(roster: Roster) -> dict[str, tuple[Suspension, str]]:
    """Who sleeps, and until when: empty where only the fact itself may say it."""
    return {
        name: (worker.suspension, worker.suspension.until or "")
        for name, worker in roster.workers.items()
        if worker.suspension is not None
    }
