"""Snapshots while the fold goes on: by count, by time and at a clean stop, so that no start reads the whole log.

Only the leader takes them. The log is the truth and a snapshot saves time alone, so one that cannot be kept ends
nothing: it is told, and tried again.

Nothing stops for it. The state of 10,000 workers is some 15 MB and takes 30 ms and more to encode: so it is encoded in
pieces of a millisecond or less, between which the lanes go on; facts wait until it is done.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

from rollbook.events import RollbookError
from rollbook.projections.ending import end
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import SnapshotPolicy
from rollbook.projections.ports import Snapshot
from rollbook.projections.resources import Resources
from rollbook.projections.state.fold import SCHEMA, message_id

SHARE: Final = 20
"""A snapshot is followed by a pause of so many times the time that it took, however many facts there are meanwhile."""
RETRY_SECONDS: Final = 5.0
"""After one that could not be kept."""


class NotKept(RollbookError):
    """A snapshot that was not taken, and why."""


class Keeper:
    """One leader's; `run` is its life. `last` is the sequence of the newest snapshot that is kept."""

    def __init__(self, projector: Projector, resources: Resources, policy: SnapshotPolicy, last: int) -> None:
        self.last = last
        self._projector = projector
        self._resources = resources
        self._policy = policy

    async def run(self) -> None:
        """Take one whenever it is time, for ever."""
        clock = self._resources.clock
        while True:
            await self._due()
            began = clock.monotonic()
            kept = await self.take()
            await clock.sleep(SHARE * (clock.monotonic() - began) if kept else RETRY_SECONDS)

    async def _due(self) -> None:
        """Return when enough has been folded, or enough time has passed and anything has been."""
        counting = asyncio.create_task(self._projector.passed(self.last + self._policy.every_facts))
        timing = asyncio.create_task(self._waited())
        try:
            await asyncio.wait([counting, timing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(counting, timing)

    async def _waited(self) -> None:
        await self._resources.clock.sleep(self._policy.every_seconds)
        await self._projector.passed(self.last + 1)

    async def take(self) -> bool:
        """Keep what has been folded; whether it is kept. Raises nothing: what goes wrong is told."""
        tell = self._resources.tell
        if self._projector.state.sequence <= self.last:
            return True
        try:
            snapshot = await self.snapshot()
            await self._confirm(snapshot)
            await self._resources.snapshots.save(snapshot)
        except (TimeoutError, RollbookError) as exc:
            tell("snapshot.not_saved", reason=str(exc))
            return False
        self.last = snapshot.sequence
        tell("snapshot.saved", sequence=snapshot.sequence, size=len(snapshot.body))
        return True

    async def snapshot(self) -> Snapshot:
        """The state now, after at least one message that this process has folded itself."""
        digest = hashlib.sha256()
        pieces: list[bytes] = []
        async with self._projector.held() as state:
            sequence, last, identity = state.sequence, self._projector.last, self._projector.identity
            for piece in state.pieces():
                digest.update(piece)
                pieces.append(piece)
                await _breath()
        if last is None or identity is None:
            raise NotKept("nothing was folded yet")
        return Snapshot(identity, SCHEMA, sequence, message_id(last), digest.hexdigest(), b"".join(pieces))

    async def _confirm(self, snapshot: Snapshot) -> None:
        """Raise `NotKept` unless the log still is what was folded."""
        log = self._resources.log
        ends = await log.state()
        stored = await log.get(snapshot.sequence)
        if ends.identity != snapshot.identity or stored is None or message_id(stored) != snapshot.fact_id:
            raise NotKept(f"sequence {snapshot.sequence} of the log is not what was folded; the log was changed")


async def _breath() -> None:
    """Let the others have the loop."""
    await asyncio.sleep(0)
