"""The projector: the single consumer of the fleet's log.

It folds every message in stream order, checks that none is missing, and tells its listeners which workers changed. It
waits for nobody: proxies are the lanes' business, and a slow one never slows the fold [I10].
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import msgspec

from rollbook.events import Codec, ProxyFact, Recorded
from rollbook.projections.log.logtime import LogTime
from rollbook.projections.ports import Clock, EventLog, HistoryHole, LogError, LogState, LogUnavailable, Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.roster import Change

RETRY_SECONDS: Final = 0.5
"""Between two tries to read from a log that does not answer."""


class LogRewound(LogError):
    """The log does not hold what was already folded: it lost its tail, or is an older copy or another log."""

    def __init__(self, folded: int, found: str) -> None:
        super().__init__(
            f"sequence {folded} was folded already, but the log {found}: it lost its tail, was restored from an older "
            "copy or was made anew. Two ways out: start the controller again, which folds the log that is there and "
            "makes the rest right by reading the proxies back; or restore an archive that holds what was lost"
        )


class Marks(msgspec.Struct, gc=False):
    """What changed in one batch, merged: the keys to look at again."""

    workers: dict[str, None] = {}
    """Whose standing may be another now."""
    everything: bool = False
    told: dict[str, dict[str, None]] = {}
    """By proxy: about whose registrations there the log has said something."""

    def add(self, recorded: Recorded, change: Change) -> None:
        """Note what one fact changed."""
        if not isinstance(recorded.fact, ProxyFact):
            self.everything = self.everything or change.everything
            self.workers.update(dict.fromkeys(change.workers))
        elif change.workers:
            self.told.setdefault(recorded.fact.proxy, {}).update(dict.fromkeys(change.workers))


Listener = Callable[[Marks], None]
Witness = Callable[[Stored, "Recorded | None", Change], None]
Forget = Callable[[], None]
"""Stops calling one of them. To be called once."""


class Projector:
    """Owns the `State`; everybody else reads it."""

    def __init__(self, log: EventLog, codec: Codec, clock: Clock, state: State | None = None) -> None:
        self.state = State() if state is None else state
        self.time = LogTime(clock)
        """The log's clock, by all that was read here."""
        self.connected = False
        """Whether the last attempt to read from the log is going well."""
        self._log = log
        self._codec = codec
        self._clock = clock
        self._listeners: list[Listener] = []
        self._witnesses: list[Witness] = []
        self.last: Stored | None = None
        """The last message that was folded; of a restored snapshot it is looked up with the first look at the log."""
        self.identity: str | None = None
        """Of the log, from the first look at it on."""
        self._told_until = 0
        """A message up to this sequence tells no time: the log has told its own when it was there already."""
        self._folding = asyncio.Lock()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()

    def listen(self, listener: Listener) -> Forget:
        """Call `listener` after every batch that changed a worker's standing or registrations, until forgotten.

        It must not block.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def witness(self, witness: Witness) -> Forget:
        """Call `witness` for every message folded, with the fact and what it changed, until forgotten.

        It must not block.
        """
        self._witnesses.append(witness)
        return lambda: self._witnesses.remove(witness)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncGenerator[State]:
        """The state, which does not change meanwhile: for who reads it in several steps. Facts wait, so be quick."""
        async with self._folding:
            yield self.state

    async def run(self) -> None:
        """Read and fold for ever. Raises `HistoryHole` or `LogRewound` when the log cannot be folded any further."""
        while True:
            try:
                await self._follow()
            except LogUnavailable:
                self.connected = False
                await self._clock.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        ends = await self._log.state()
        self.time.heard(ends.at)
        self._told_until = ends.last_sequence if ends.at else 0
        if self.identity not in {None, ends.identity}:
            raise HistoryHole(self.state.sequence + 1, "the stream was deleted and made anew")
        self.identity = ends.identity
        if ends.last_sequence < self.state.sequence:
            raise LogRewound(self.state.sequence, f"ends at {ends.last_sequence}")
        if ends.first_sequence > self.state.sequence + 1:
            raise HistoryHole(self.state.sequence + 1, f"it begins at {ends.first_sequence}")
        await self._recognise(ends)
        batches = self._log.read(self.state.sequence)
        try:
            async for batch in batches:
                self.connected = True
                async with self._folding:
                    whole = self._fold(batch)
                if not whole:
                    break
        finally:
            await batches.aclose()
        expected = self.state.sequence + 1
        if (await self._log.state()).last_sequence >= expected and await self._log.get(expected) is None:
            raise HistoryHole(expected, "it is missing in the middle")

    async def _recognise(self, ends: LogState) -> None:
        """Make sure that the log still holds the last message folded: others may stand in the place of a lost tail."""
        sequence, last = self.state.sequence, self.last
        if sequence < max(ends.first_sequence, 1):
            return
        found = await self._log.get(sequence)
        if last is None:
            self.last = found
        elif found is None or (found.subject, found.payload) != (last.subject, last.payload):
            raise LogRewound(sequence, "holds another message there")

    def _fold(self, batch: Sequence[Stored]) -> bool:
        """Apply a batch; False if a message is missing before its end, and reading must begin anew."""
        marks = Marks()
        if batch[-1].sequence > self._told_until:
            self.time.heard(batch[-1].stored_at)
        state, codec, witnesses, listening = self.state, self._codec, tuple(self._witnesses), bool(self._listeners)
        contiguous = True
        for stored in batch:
            if stored.sequence != state.sequence + 1:
                if stored.sequence <= state.sequence:
                    continue
                contiguous = False
                break
            recorded, change = state.apply(stored, codec)
            self.last = stored
            for witness in witnesses:
                witness(stored, recorded, change)
            if listening and recorded is not None:
                marks.add(recorded, change)
        self._release()
        if marks.everything or marks.workers or marks.told:
            for listener in tuple(self._listeners):
                listener(marks)
        return contiguous

    def _release(self) -> None:
        """Wake who waited for a sequence that is folded now."""
        while self._waiting and self._waiting[0][0] <= self.state.sequence:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    async def passed(self, sequence: int) -> None:
        """Wait until the fold has passed `sequence`."""
        if self.state.sequence >= sequence:
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (sequence, next(self._tickets), future))
        await future

    async def caught_up(self) -> None:
        """Wait until everything that is in the log now has been folded."""
        while True:
            try:
                ends = await self._log.state()
            except LogUnavailable:
                await self._clock.sleep(RETRY_SECONDS)
                continue
            self.time.heard(ends.at)
            await self.passed(ends.last_sequence)
            return
