"""Facts that cannot simply be sent: they have to be numbered, fenced, or looked up in the log first.

Every step may end in `LogUnavailable`; then the same entry is delivered again later, from the top, and what it already
did is found in the entry (`attempt`) or in the log (its id). So each procedure here is written to be repeated.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from rollbook.adapters.publisher.entry import Attempt, Entry, Fence, LifeNumber
from rollbook.adapters.publisher.errors import IncarnationUnknown, Refused
from rollbook.adapters.publisher.link import Link
from rollbook.adapters.publisher.memory import Memory
from rollbook.adapters.publisher.reader import Census, Reader
from rollbook.adapters.publisher.receipt import Superseded
from rollbook.events import Codec, Draft, WorkerFact
from rollbook.events.subjects import operator_worker_subject
from rollbook.projections.ports import AppendConflict

SAFE_REPEAT: Final = 60.0
"""Seconds. A fact first sent longer ago is looked for before it is sent again: the duplicate window is two minutes."""
_CLOCK_QUESTIONS: Final = 5
"""How often the log is asked for the time before it is left open whether something stood there before a call."""
_MAX_HEADERS: Final = 512
"""Bytes that the headers of a publish may take of the server's max_payload."""


class Delivery:
    """Brings one fact into the log, or finds out why it does not belong there."""

    def __init__(self, codec: Codec, publisher: str, *, reader: Reader, memory: Memory, link: Link) -> None:
        self._codec = codec
        self._publisher = publisher
        self._reader = reader
        self._memory = memory
        self._link = link

    def is_plain(self, entry: Entry, now: float) -> bool:
        """Whether it can be sent as it is, without asking the log for anything."""
        return (
            entry.recovered is None
            and entry.fence is None
            and entry.asking is None
            and not entry.incarnation_missing
            and not (entry.attempts and now - entry.first_sent > SAFE_REPEAT)
            and not self._memory.is_first_up(entry)
            and not self._memory.revives_own_down(entry)
        )

    def draft(self, entry: Entry, *, incarnation: int | None = None, seen: int | None = None) -> Draft:
        """The fact as bytes, for this server. Raises `InvalidFact` and its kin, or `Refused` if it is too large."""
        draft = self.encode(entry, incarnation=incarnation, seen=seen)
        limit = self._link.client().max_payload - _MAX_HEADERS
        if len(draft.payload) > limit:
            raise Refused(f"{entry.what} has {len(draft.payload)} bytes and this NATS takes {limit}; make it smaller")
        return draft

    def encode(self, entry: Entry, *, incarnation: int | None = None, seen: int | None = None) -> Draft:
        """The fact as bytes; by default as the caller knew it. Raises `InvalidFact` and its kin."""
        fact = entry.fact
        if entry.recovered is not None and (fact is None or seen in {None, entry.seen}):
            return entry.recovered
        if fact is None:
            raise TypeError("an entry without a fact is a recovered one")
        if isinstance(fact, WorkerFact):
            number = incarnation or (entry.life.value if entry.life is not None else fact.incarnation)
            knew = max(fact.seen, entry.seen if seen is None else seen)
            fact = msgspec.structs.replace(fact, incarnation=number, seen=knew)
        return self._codec.draft(fact, id=entry.receipt.id, time=entry.time, publisher=self._publisher)

    # ------------------------------------------------------------ at the moment of the call

    async def ask(self, entry: Entry) -> None:
        """Find the life that was the current one at the call. Raises `IncarnationUnknown` if that cannot be known."""
        fact = _worker_fact(entry)
        census = await self._reader.census(fact.worker)
        if not census.incarnation:
            raise IncarnationUnknown(f"the log knows no life of {fact.worker}; publish with its incarnation")
        if not await self._began_before_the_call(census, entry):
            raise IncarnationUnknown(
                f"{fact.worker} began its life {census.incarnation} after this fact was published, or so shortly "
                "before that the log's clock does not tell; if that life is meant, publish it again"
            )
        entry.fact = msgspec.structs.replace(fact, incarnation=census.incarnation)
        entry.seen = max(entry.seen, census.sequence)
        entry.ask = False

    async def _began_before_the_call(self, census: Census, entry: Entry) -> bool:
        """Whether that is certain."""
        if census.first <= entry.seen <= census.sequence:  # beyond that, `seen` is of a log that was lost
            return True
        return census.began <= await self._called(entry, census.began)

    async def _called(self, entry: Entry, moment: float) -> float:
        """When it was called by the log's clock, at the earliest. That is less certain the longer an answer took.

        So more may be asked, as long as `moment` may have been before that.
        """
        called = -math.inf
        for _ in range(_CLOCK_QUESTIONS):
            called = max(called, entry.called + await self._reader.clock())
            if moment <= called:
                break
        return called

    async def look(self, worker: str) -> Fence:
        """What is known about `worker` now, for a check that begins now."""
        census = await self._reader.census(worker)
        operator, _ = await self._reader.last(operator_worker_subject(self._codec.fleet, worker))
        return Fence(census.sequence, operator, census.incarnation)

    # ------------------------------------------------------------ one procedure per kind

    async def deliver(self, entry: Entry) -> int | Superseded:
        """Bring it into the log. Raises `LogUnavailable` (deliver again), or the error that it ends with."""
        if entry.fence is not None:
            return await self._fenced(entry, entry.fence)
        if entry.life is not None and not entry.life.value:
            return await self._numbered(entry, entry.life)
        if entry.recovered is not None or entry.attempts > 1:
            stored = await self._find(entry.subject, entry.floor, entry.receipt.id)
            if stored:
                return stored
        seen = entry.seen
        if self._memory.is_first_up(entry):
            seen = await self._known_at_the_call(entry)
        if self._memory.revives_own_down(entry):
            seen = await self._own_chain(entry, seen)
        return await self._append(self.draft(entry, seen=seen))

    async def _numbered(self, entry: Entry, life: LifeNumber) -> int:
        """The first fact of a life: the last number on the subject plus one, if nobody else was quicker."""
        while True:
            if entry.attempt is None:
                census = await self._reader.census(_worker_fact(entry).worker)
                number = census.incarnation + 1
                draft = self.draft(entry, incarnation=number, seen=census.sequence)
                entry.attempt = Attempt(draft, census.sequence, number)
            attempt = entry.attempt
            try:
                sequence = await self._append(attempt.draft, expected=attempt.expected)
            except AppendConflict:
                entry.attempt = None
            else:
                life.value = attempt.incarnation
                return sequence

    async def _fenced(self, entry: Entry, fence: Fence) -> int | Superseded:
        """A verdict: only if nobody else spoke about the worker since the check began.

        The server compares the worker's subject; the operators' subject is compared right before.
        """
        worker = _worker_fact(entry).worker
        operators = operator_worker_subject(self._codec.fleet, worker)
        expected = fence.worker_sequence
        if entry.attempts > 1:
            stored = await self._find(entry.subject, expected, entry.receipt.id)
            if stored:
                return stored
        while True:
            decided = await self._others_said(operators, fence.operator_sequence)
            if decided:
                return Superseded(worker, decided)
            try:
                return await self._append(self.draft(entry, seen=expected), expected=expected)
            except AppendConflict:
                since = await self._reader.after(entry.subject, expected)
            if not since:  # the log lost what the check knew, or was made anew
                return Superseded(worker, (await self._reader.last(entry.subject))[0])
            for message in since:
                if message.id == entry.receipt.id:  # a copy that was still on its way when the log was asked for it
                    return message.sequence
                if not self._memory.is_own(entry.subject, message.id):
                    return Superseded(worker, message.sequence)
                expected = message.sequence

    async def _others_said(self, subject: str, after: int) -> int:
        """The sequence of the first message after that one that is not this publisher's own; 0 if there is none."""
        found = await self._reader.after(subject, after)
        return next((one.sequence for one in found if not self._memory.is_own(subject, one.id)), 0)

    async def _known_at_the_call(self, entry: Entry) -> int:
        """What the log knew about the worker when the fact was published: its last sequence at that moment."""
        last, stored_at = await self._reader.last(entry.subject)
        if not last:
            return 0
        called = await self._called(entry, stored_at)
        if stored_at <= called:
            return last
        before = (one.sequence for one in await self._reader.after(entry.subject, 0) if one.stored_at <= called)
        return max(before, default=0)

    async def _own_chain(self, entry: Entry, seen: int) -> int:
        """How far beyond `seen` the author knew its subject: up to the first message that is not its own."""
        for message in await self._reader.after(entry.subject, seen):
            if not self._memory.is_own(entry.subject, message.id):
                break
            seen = message.sequence
        return seen

    async def _find(self, subject: str, after: int, fact_id: str) -> int:
        """The sequence of the fact with this id, 0 if it is not on `subject` after that sequence."""
        return next((one.sequence for one in await self._reader.after(subject, after) if one.id == fact_id), 0)

    async def _append(self, draft: Draft, *, expected: int | None = None) -> int:
        """Its sequence, also if it was stored already. Raises `AppendConflict` if somebody else wrote meanwhile."""
        expect = {} if expected is None else {draft.subject: expected}
        (sequence,) = await self._link.log().append([draft], expect=expect)
        return sequence


def _worker_fact(entry: Entry) -> WorkerFact:
    if not isinstance(entry.fact, WorkerFact):
        raise TypeError(f"{entry.what}: only a worker's facts are numbered or fenced")
    return entry.fact
