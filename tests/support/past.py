"""Logs in memory whose facts are a second apart, to read history from."""

from __future__ import annotations

import random
from collections.abc import Iterable

from support.core import CODEC, TIME

from rollbook.adapters.memory.log import MemoryLog
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.events import Draft, Fact
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.past import LogPast
from rollbook.projections.ports import Snapshot
from rollbook.projections.state.fold import State, message_id

BEGAN = 1_000_000.0
"""When the first fact was stored; each is stored one second after the one before."""


class Ticks:
    """One second later at every look."""

    def __init__(self) -> None:
        self.time = BEGAN - 1

    def now(self) -> float:
        self.time += 1
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class Told(LogPast):
    """A `Past` over a log in memory, with what a test does to it."""

    def __init__(self) -> None:
        self.clock = Ticks()
        self.log = MemoryLog(self.clock, random.Random(1))
        self.kept = MemorySnapshots(keep=10)
        super().__init__(self.log, self.kept)

    async def say(self, *facts: Fact, by: str = "test") -> int:
        """Record them; the last one's sequence."""
        last = 0
        for fact in facts:
            number = len(self.log.messages) + 1
            draft = CODEC.draft(fact, id=f"id-{number}", time=TIME, publisher=by)
            last = (await self.log.append([draft]))[0]
        return last

    async def garbage(self, subject: str, payload: bytes = b"\xff\n") -> int:
        return (await self.log.append([Draft(subject, f"id-{len(self.log.messages) + 1}", payload)]))[0]

    async def snapshot(self, sequence: int, state: State | None = None) -> Snapshot:
        """A snapshot there, of the right state or of another."""
        stored = await self.log.get(sequence)
        assert stored is not None
        state = state or await state_at(self, CODEC, sequence)
        return state.snapshot((await self.log.state()).identity, message_id(stored))

    async def keep(self, *sequences: int) -> None:
        """Snapshots there."""
        for sequence in sequences:
            await self.kept.save(await self.snapshot(sequence))


async def told(facts: Iterable[Fact]) -> Told:
    """A past with these facts."""
    past = Told()
    await past.say(*facts)
    return past
