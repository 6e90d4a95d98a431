"""Archives read in the log's place: one file, or a folder of files that follow on each other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Final

from rollbook.adapters.archive.errors import ArchiveError
from rollbook.adapters.archive.reading import ArchiveFile
from rollbook.events.subjects import covers
from rollbook.projections.ports import HistoryHole, Snapshot, Stored

BATCH: Final = 2000
SUFFIX: Final = ".jsonl.zst"


def file_name(fleet: str, first: int, last: int) -> str:
    """How `rollbook archive` names a file: files sort as their sequences do."""
    return f"{fleet}.{first:012}-{last:012}{SUFFIX}"


class ArchivePast:
    """A `Past` made of files. Each reading checks the lines that it passes."""

    def __init__(self, files: Sequence[ArchiveFile]) -> None:
        self.files = files
        """In order, each one beginning where the one before it ends."""

    @classmethod
    def open(cls, path: Path, fleet: str | None = None) -> ArchivePast:
        """One file, or all of a folder that are of `fleet`. Raises `ArchiveError`."""
        if path.is_file():
            return cls([ArchiveFile.open(path, fleet)])
        if not path.is_dir():
            raise ArchiveError(f"there is no archive at {path}: name a folder that `rollbook archive` filled or a file")
        found = (ArchiveFile.open(one) for one in sorted(path.iterdir()) if one.name.endswith(SUFFIX))
        files = sorted((one for one in found if one.head.fleet == fleet), key=lambda one: one.head.first)
        for before, after in itertools.pairwise(files):
            if after.head.first != before.head.last + 1:
                raise ArchiveError(
                    f"{after.path} begins at sequence {after.head.first}, and the file before it ends at "
                    f"{before.head.last}: a file of {path} is missing, or two overlap"
                )
        return cls(files)

    async def ends(self) -> tuple[int, int]:
        """Of all files together."""
        if not self.files:
            return 1, 0
        return self.files[0].head.first, self.files[-1].head.last

    async def read(self, first: int, last: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """In batches. Raises `HistoryHole` for what no file has, and `DamagedArchive`."""
        begin, end = await self.ends()
        if first <= last and (first < begin or last > end):
            raise HistoryHole(first if first < begin else max(first, end + 1), f"the archive holds {begin} to {end}")
        messages = self.messages(first, last, subjects)
        while batch := list(itertools.islice(messages, BATCH)):
            yield batch
            await asyncio.sleep(0)

    def messages(self, first: int, last: int, subjects: Sequence[str] = ()) -> Iterator[Stored]:
        """As `read`, one at a time, and as much of it as there is. Raises `DamagedArchive`."""
        for file in self.files:
            if file.head.last < first or file.head.first > last:
                continue
            for line in file.messages():
                stored = line.stored
                if stored.sequence > last:
                    break
                if stored.sequence >= first and (not subjects or covers(subjects, stored.subject)):
                    yield stored

    async def at(self, sequences: Sequence[int]) -> list[Stored]:
        """What stands at these sequences, which ascend. All between them is read."""
        wanted = set(sequences)
        if not wanted:
            return []
        return [stored for stored in self.messages(min(wanted), max(wanted)) if stored.sequence in wanted]

    async def first_at(self, moment: float) -> int:
        """Only the file that the moment falls into is read; where the log's clock was put back, the last such file."""
        first, _ = await self.ends()
        for file in reversed(self.files):
            if file.head.began_at < moment:
                for line in file.messages():
                    if line.stored.stored_at >= moment:
                        return line.stored.sequence
                return file.head.last + 1
        return first

    async def snapshots(self, at_most: int | None = None) -> AsyncGenerator[Snapshot]:
        """The states with which the files begin, newest first; with `at_most`, up to that sequence."""
        for file in reversed(self.files):
            if at_most is not None and file.head.first - 1 > at_most:
                continue
            if (base := file.base) is not None:
                yield base
