"""The event log in memory, with a fault policy: it loses answers, stores late, drops deliveries and goes away.

What a log server does by itself (storing an append whose author has been cancelled meanwhile) happens here in tasks of
the log's own, outside the caller's context, so that killing a simulated controller does not kill the server with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from rollbook.adapters.memory.faults import Chance, LogFaults
from rollbook.events import Draft
from rollbook.events.subjects import covers
from rollbook.projections.ports import AppendConflict, Clock, LogState, LogUnavailable, Stored

NO_FAULTS: Final = LogFaults()


class MemoryLog:
    """One fleet's log. Use it from one event loop.

    `window` is how long an id is remembered, in seconds; None: for ever. An append that says what it expects is also
    recognised after that, if its message stands on the subject after the expected sequence.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        *,
        identity: str = "memory",
        window: float | None = None,
        faults: LogFaults = NO_FAULTS,
    ) -> None:
        self.faults = faults
        """May be replaced at any moment."""
        self.available = True
        """False: nothing is stored or read, every call raises `LogUnavailable`, and readers are cut off."""
        self._clock = clock
        self._chance = Chance(rng)
        self._identity = identity
        self._window = window
        self._messages: list[Stored] = []
        self._first = 1
        self._losses = 0
        self._ids: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._grown = asyncio.Event()
        self._context = contextvars.copy_context()
        self._late: set[asyncio.Task[None]] = set()

    @property
    def messages(self) -> Sequence[Stored]:
        """All that it holds, without a call."""
        return self._messages

    # -------------------------------------------------------------- appending

    async def append(self, drafts: Sequence[Draft], *, expect: Mapping[str, int] | None = None) -> list[int]:
        """Append all drafts, in order, or none; return their sequences. Raises `AppendConflict` or `LogUnavailable`."""
        faults, chance = self.faults, self._chance
        if pause := chance.up_to(faults.slowest_append / 2):
            await self._clock.sleep(pause)
        self._check("append")
        if chance.hits(faults.refuse):
            msg = "append: the log in memory refused it; append again with the same ids"
            raise LogUnavailable(msg)
        lost = chance.hits(faults.lose_answer)
        if chance.hits(faults.store_late):
            lost = True
            # As on a socket: what the caller has sent arrives whether or not the caller still waits.
            self._later(list(drafts), dict(expect or {}), chance.up_to(faults.latest))
            sequences: list[int] = []
        else:
            sequences = self._store(drafts, expect or {})
        if pause := chance.up_to(faults.slowest_append / 2):
            await self._clock.sleep(pause)
        if lost:
            msg = "append: no answer from the log in memory; append again with the same ids"
            raise LogUnavailable(msg)
        return sequences

    def _later(self, drafts: list[Draft], expect: dict[str, int], seconds: float) -> None:
        async def arrive() -> None:
            await self._clock.sleep(seconds)
            if self.available:
                with contextlib.suppress(AppendConflict):
                    self._store(drafts, expect)

        task = asyncio.get_running_loop().create_task(arrive(), context=self._context)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _store(self, drafts: Sequence[Draft], expect: Mapping[str, int]) -> list[int]:
        known = [self._known(draft, expect) for draft in drafts]
        if None in known:
            for subject, expected in expect.items():
                found = self._last.get(subject, 0)
                if found != expected:
                    raise AppendConflict(subject, expected, found)
        sequences: list[int] = []
        for draft in drafts:
            sequence = self._known(draft, expect)
            if sequence is None:
                sequence = self._first + len(self._messages)
                self._messages.append(Stored(sequence, draft.subject, draft.payload, self._clock.now()))
                self._ids[draft.id] = self._last[draft.subject] = sequence
            sequences.append(sequence)
        self._wake()
        return sequences

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _known(self, draft: Draft, expect: Mapping[str, int]) -> int | None:
        """The sequence under which the draft is stored already, as far as the log remembers."""
        sequence = self._ids.get(draft.id)
        if sequence is None or self._window is None:
            return sequence
        if draft.subject in expect and sequence > expect[draft.subject]:
            return sequence
        stored = self._at(sequence)
        remembered = stored is not None and self._clock.now() - stored.stored_at <= self._window
        return sequence if remembered else None

    # -------------------------------------------------------------- reading

    async def read(self, after: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """Yield what is above `after` in order, in batches, then what comes; raise `LogUnavailable` when cut off.

        `subjects` (wildcards are allowed) leaves out the rest; by default all are read.
        """
        position = after
        dropped = False
        losses = self._losses
        while True:
            while position >= self._end:
                self._check("read", losses)
                grown = self._grown
                if dropped:
                    await self._notice(grown)
                else:
                    await grown.wait()
            faults, chance = self.faults, self._chance
            if pause := chance.up_to(faults.slowest_delivery):
                await self._clock.sleep(pause)
            self._check("read", losses)
            most = faults.most_in_a_batch
            start = max(position + 1 - self._first, 0)
            batch = self._messages[start : start + (most if faults is NO_FAULTS else chance.size(most))]
            if not batch:
                continue
            if chance.hits(faults.end_reading):
                msg = "read: the log in memory closed the connection; read again from the last sequence applied"
                raise LogUnavailable(msg)
            position = batch[-1].sequence
            dropped = chance.hits(faults.drop_batch)
            wanted = [one for one in batch if covers(subjects, one.subject)] if subjects else batch
            if wanted and not dropped:
                yield wanted

    async def _notice(self, grown: asyncio.Event) -> None:
        """Wait for news; without any, the next heartbeat shows that the newest batch was lost."""
        try:
            async with asyncio.timeout(self.faults.heartbeat):
                await grown.wait()
        except TimeoutError as exc:
            msg = "read: the log in memory sent more than arrived; read again from the last sequence applied"
            raise LogUnavailable(msg) from exc

    async def state(self) -> LogState:
        """Ends and identity of the log now. Raises `LogUnavailable`."""
        self._check("state")
        return LogState(self._identity, self._first, self._end, self._clock.now())

    async def get(self, sequence: int) -> Stored | None:
        """The message at `sequence`, or None. Raises `LogUnavailable`."""
        self._check("get")
        return self._at(sequence)

    async def last(self, subject: str) -> Stored | None:
        """The newest message on `subject` (wildcards are allowed), or None. Raises `LogUnavailable`."""
        self._check("last")
        found = (sequence for name, sequence in self._last.items() if covers([subject], name))
        return self._at(self._last.get(subject) or (max(found, default=0) if "*" in subject else 0))

    @property
    def _end(self) -> int:
        return self._first + len(self._messages) - 1

    def _at(self, sequence: int) -> Stored | None:
        index = sequence - self._first
        return self._messages[index] if 0 <= index < len(self._messages) else None

    def _check(self, what: str, losses: int | None = None) -> None:
        if not self.available or losses not in {None, self._losses}:
            msg = f"{what}: the log in memory is unavailable, or was another one a moment ago"
            raise LogUnavailable(msg)

    # -------------------------------------------------------------- what an operator could do to it

    def cut_off(self) -> None:
        """Become unavailable, and let those who wait for news see it at once. `available = True` ends it."""
        self.available = False
        self._wake()

    def lose_tail(self, last: int) -> None:
        """Forget everything after `last`, as a log restored from an older backup has."""
        del self._messages[max(last + 1 - self._first, 0) :]
        self._reindex()

    def lose_head(self, first: int) -> None:
        """Forget everything before `first`, as a purged log has."""
        del self._messages[: max(first - self._first, 0)]
        self._first = max(first, self._first)
        self._reindex()

    def _reindex(self) -> None:
        """Nothing is known any more of what is gone; readers are cut off, as by a server that starts again."""
        self._losses += 1
        self._wake()
        held = {stored.sequence for stored in self._messages}
        self._ids = {fact_id: sequence for fact_id, sequence in self._ids.items() if sequence in held}
        self._last = {stored.subject: stored.sequence for stored in self._messages}
