"""The right to speak: a verdict is written only if nothing happened to the worker since its probe began.

So no monitor needs a lock, or to know of other monitors, trainers or recovery threads: whoever spoke first is right,
and a slow probe never shoots a worker that was restarted, suspended or cordoned meanwhile [I3].
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rollbook.events import Codec, WorkerFact
from rollbook.events.subjects import operator_worker_subject, worker_subject
from rollbook.events.times import rfc3339
from rollbook.projections.ports import AppendConflict, Clock, EventLog, Ids


class Verdicts:
    """Writes the verdicts of one observer. `may` is called right before each, and raises if it may not be written."""

    def __init__(
        self,
        fleet: str,
        log: EventLog,
        clock: Clock,
        ids: Ids,
        observer: str,
        *,
        may: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._codec = Codec(fleet)
        self._clock = clock
        self._ids = ids
        self._observer = observer
        self._may = may

    async def write(self, fact: WorkerFact, *, as_of: int) -> int | None:
        """Append `fact`, whose check began when the log stood at sequence `as_of`; its sequence.

        None if anybody spoke about the worker since, operators included. The operators' subject is looked at right
        before; the worker's own is compared by the server. Raises `LogUnavailable`: then it is unknown whether it
        stands, and the check is to be made again.
        """
        fleet = self._codec.fleet
        decided = await self._log.last(operator_worker_subject(fleet, fact.worker))
        if decided is not None and decided.sequence > as_of:
            return None
        subject = worker_subject(fleet, fact.worker)
        last = await self._log.last(subject)
        expected = 0 if last is None else last.sequence
        if expected > as_of:
            return None
        draft = self._codec.draft(
            # Not the worker's own last sequence: it may be down by a listing, which stands on the fleet's subject.
            msgspec.structs.replace(fact, seen=as_of),
            id=self._ids.new(),
            time=rfc3339(self._clock.now()),
            publisher=self._observer,
        )
        self._may()
        try:
            return (await self._log.append([draft], expect={subject: expected}))[0]
        except AppendConflict:
            return None
