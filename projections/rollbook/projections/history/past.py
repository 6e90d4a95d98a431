"""What history is read from: the log, files that were moved out of it, or both as one.

A `Past` ends, unlike the log: it is read from one sequence to another, and whoever reads gets all of it or an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from rollbook.events.archived import PREFIX, read_notes
from rollbook.projections.ports import EventLog, HistoryHole, LogState, Snapshot, SnapshotStore, Stored
from rollbook.projections.state.fold import message_id

ASKED_AT_ONCE: Final = 32


class Past(Protocol):
    """All that happened between two sequences."""

    async def ends(self) -> tuple[int, int]:
        """The first and the last sequence that can be read now; `(n + 1, n)` if there are none."""
        ...

    def read(self, first: int, last: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """Everything from `first` to `last`, in order, in batches; with `subjects`, only what stands on them.

        Raises `HistoryHole` if something of it is missing.
        """
        ...

    async def at(self, sequences: Sequence[int]) -> list[Stored]:
        """What stands at these sequences, which ascend; one that is not there is left out."""
        ...

    async def first_at(self, moment: float) -> int:
        """The first sequence stored at or after `moment` (seconds since the epoch); one past the end if none is."""
        ...

    def snapshots(self, at_most: int | None = None) -> AsyncIterator[Snapshot]:
        """The states that were kept of it and belong to it, newest first; with `at_most`, up to that sequence."""
        ...


class FilteredLog(EventLog, Protocol):
    """A log that can leave out subjects by itself."""

    def read(self, after: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """As `EventLog.read`; with `subjects` (wildcards are allowed), only what stands on them."""
        ...


class LogPast:
    """The log itself, up to its present end."""

    def __init__(self, log: FilteredLog, store: SnapshotStore) -> None:
        self._log = log
        self._store = store

    async def state(self) -> LogState:
        """Ends and identity of the log now. Raises `LogUnavailable`."""
        return await self._log.state()

    async def ends(self) -> tuple[int, int]:
        """Its ends now. Raises `LogUnavailable`."""
        state = await self._log.state()
        return state.first_sequence, state.last_sequence

    async def read(self, first: int, last: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """All of it in order. What reading lost is read again; raises `HistoryHole` for what the log has not."""
        if first > last:
            return
        await self._check(first, last)
        after, end = first - 1, min(last, await self._newest(subjects)) if subjects else last
        while after < end:
            async with contextlib.aclosing(self._log.read(after, subjects)) as batches:
                async for batch in batches:
                    whole = batch if subjects else _whole(batch, after)
                    if whole:
                        after = whole[-1].sequence
                        wanted = whole if after <= last else [one for one in whole if one.sequence <= last]
                        if wanted:
                            yield as_noted(wanted)
                    if after >= end:
                        return
                    if len(whole) < len(batch):
                        if await self._log.get(after + 1) is None:
                            raise HistoryHole(after + 1, "it is missing in the middle")
                        break

    async def _check(self, first: int, last: int) -> None:
        """Raise `HistoryHole` where the ends of the log say that something is missing; to wait for it would be vain."""
        begin, newest = await self.ends()
        if first < begin:
            raise HistoryHole(first, f"it begins at {begin}")
        if last > newest:
            raise HistoryHole(max(first, newest + 1), f"it ends at {newest}")
        if last == newest and await self._log.get(last) is None:
            raise HistoryHole(last, "it is missing at its end")

    async def at(self, sequences: Sequence[int]) -> list[Stored]:
        """What stands at these sequences; many are asked for at once."""
        asking = asyncio.Semaphore(ASKED_AT_ONCE)

        async def get(sequence: int) -> Stored | None:
            async with asking:
                return await self._log.get(sequence)

        found = await asyncio.gather(*(get(sequence) for sequence in sequences))
        return list(as_noted([one for one in found if one is not None]))

    async def _newest(self, subjects: Sequence[str]) -> int:
        """The last sequence on any of them; it may lie beyond what is wanted, and then ends the reading as well."""
        found = [await self._log.last(subject) for subject in subjects]
        return max((one.sequence for one in found if one is not None), default=0)

    async def first_at(self, moment: float) -> int:
        """Found by halving, as if the log's clock had never been put back."""
        low, end = await self.ends()
        high = end + 1
        imported = any(map(_is_noted, await self.at(range(low, min(low + ASKED_AT_ONCE, high)))))
        while low < high:
            middle = (low + high) // 2
            found = await self.at([middle])
            if found and imported and not _is_noted(found[0]):
                # What was no fact came without its time: the next fact says when it was.
                found = await self.at(range(middle, min(middle + ASKED_AT_ONCE, high)))
                found = list(filter(_is_noted, found)) or found
            if not found or found[0].stored_at < moment:
                low = middle + 1
            else:
                high = middle
        return low

    async def snapshots(self, at_most: int | None = None) -> AsyncGenerator[Snapshot]:
        """Those that the log confirms, newest first. One at a time is read: each may be large."""
        state = await self._log.state()
        end = state.last_sequence if at_most is None else min(at_most, state.last_sequence)
        async for snapshot in self._store.newest_first(end):
            if snapshot.identity == state.identity:
                stored = await self._log.get(snapshot.sequence)
                if stored is not None and message_id(stored) == snapshot.fact_id:
                    yield snapshot


class JoinedPast:
    """What was moved out of the log, and the log, as one. Where both have a sequence, the log counts."""

    def __init__(self, older: Past, newer: Past) -> None:
        self._older = older
        self._newer = newer

    async def ends(self) -> tuple[int, int]:
        """From the archive's beginning to the log's end."""
        first, last = await self._older.ends()
        begin, end = await self._newer.ends()
        return (min(first, begin) if first <= last else begin), max(end, last)

    async def read(self, first: int, last: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """First the archive, then the log. Raises `HistoryHole` for what neither has."""
        begin, _ = await self._newer.ends()
        if first < begin:
            async for batch in self._older.read(first, min(last, begin - 1), subjects):
                yield batch
        if last >= begin:
            async for batch in self._newer.read(max(first, begin), last, subjects):
                yield batch

    async def at(self, sequences: Sequence[int]) -> list[Stored]:
        """Each from where it is."""
        begin, _ = await self._newer.ends()
        older = await self._older.at([sequence for sequence in sequences if sequence < begin])
        return older + await self._newer.at([sequence for sequence in sequences if sequence >= begin])

    async def first_at(self, moment: float) -> int:
        """Looked for in the archive first."""
        begin, _ = await self._newer.ends()
        first, last = await self._older.ends()
        if first <= last:
            found = await self._older.first_at(moment)
            if found < min(begin, last + 1):
                return found
        return await self._newer.first_at(moment)

    async def snapshots(self, at_most: int | None = None) -> AsyncGenerator[Snapshot]:
        """Of the log, then of the archive."""
        async for snapshot in self._newer.snapshots(at_most):
            yield snapshot
        async for snapshot in self._older.snapshots(at_most):
            yield snapshot


def as_noted(batch: Sequence[Stored]) -> Sequence[Stored]:
    """With the times at which a log that was made from an archive first had its facts."""
    if not any(one.payload.startswith(PREFIX) for one in batch):
        return batch
    return [_noted(one) for one in batch]


def _is_noted(stored: Stored) -> bool:
    return stored.payload.startswith(PREFIX)


def _noted(stored: Stored) -> Stored:
    notes = read_notes(stored.payload)
    if notes is None or notes.sequence != stored.sequence:
        return stored
    return msgspec.structs.replace(stored, stored_at=notes.stored_at)


def _whole(batch: Sequence[Stored], after: int) -> Sequence[Stored]:
    """As much of a batch as follows on `after` without a gap."""
    for index, stored in enumerate(batch):
        if stored.sequence != after + index + 1:
            return batch[:index]
    return batch
