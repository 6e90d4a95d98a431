"""When what was said to hold for a while is over: claims and suspensions.

Their authors' clocks may be wrong by days, so their length counts, from the moment at which the log stored them; where
a fact does not tell its length, the moment that it names is read on the log's clock. Once that is known, only
monotonic time goes by: no clock that is set anew ends anything early or late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rollbook.events import Codec, Fact, RecoveryStarted, Undecodable, WorkerSuspended
from rollbook.events.times import parse_rfc3339
from rollbook.projections.log.projector import Projector
from rollbook.projections.ports import Clock, EventLog, Stored

Said = Mapping[str, tuple[int, str]]
"""By worker: the sequence of the fact that began it, and `until`."""


class Terms:
    """Those of one kind. One whose end nobody can read ends at once or never, as `unreadable` (monotonic) says."""

    def __init__(
        self, log: EventLog, codec: Codec, projector: Projector, clock: Clock, *, unreadable: float = math.inf
    ) -> None:
        self._log = log
        self._codec = codec
        self._projector = projector
        self._clock = clock
        self._unreadable = unreadable
        self._ends: dict[int, float] = {}
        """By sequence: when it is over, monotonic."""

    async def over(self, said: Said) -> list[str]:
        """The workers for whom it is over; `said` is all that there is now. Raises `LogUnavailable`."""
        known, self._ends = self._ends, {}
        for sequence, until in said.values():
            self._ends[sequence] = known[sequence] if sequence in known else await self._end(sequence, until)
        now = self._clock.monotonic()
        return [name for name, (sequence, _) in said.items() if self._ends[sequence] <= now]

    async def _end(self, sequence: int, until: str) -> float:
        stored = await self._log.get(sequence)
        seconds = None if stored is None else _length(self._fact(stored))
        end = _moment(until) if stored is None or seconds is None else stored.stored_at + seconds
        time = self._projector.time.now()
        return self._unreadable if end is None else self._clock.monotonic() + end - time

    def _fact(self, stored: Stored) -> Fact | None:
        try:
            return self._codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence).fact
        except Undecodable:
            return None


def _length(fact: Fact | None) -> float | None:
    """For how many seconds it holds, by the word of one clock; None if it does not say."""
    if isinstance(fact, WorkerSuspended):
        return fact.ttl
    if isinstance(fact, RecoveryStarted) and fact.at is not None and fact.until is not None:
        began, end = _moment(fact.at), _moment(fact.until)
        return None if began is None or end is None else end - began
    return None


def _moment(text: str) -> float | None:
    try:
        return parse_rfc3339(text)
    except ValueError:
        return None
