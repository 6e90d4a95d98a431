"""Snapshots in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from rollbook.projections.log.keeping import Mark, superfluous
from rollbook.projections.policy import SnapshotPolicy
from rollbook.projections.ports import LogUnavailable, Snapshot

KEEP: Final = SnapshotPolicy().keep


class MemorySnapshots:
    """Keeps `keep` snapshots."""

    def __init__(self, keep: int = KEEP) -> None:
        self.available = True
        """False: saving raises `LogUnavailable`, and nothing can be read."""
        self._keep = keep
        self._kept: dict[str, tuple[Mark, Snapshot]] = {}
        self._saved = 0

    async def save(self, snapshot: Snapshot) -> None:
        """Keep it; the least needed beyond the limit go. Raises `LogUnavailable`."""
        if not self.available:
            msg = "the snapshot store in memory was made unavailable; the snapshot is not kept"
            raise LogUnavailable(msg)
        self._saved += 1
        mark = Mark(snapshot.identity, snapshot.sequence, self._saved)
        for name in superfluous({name: mark for name, (mark, _) in self._kept.items()}, mark, self._keep):
            del self._kept[name]
        self._kept[str(self._saved)] = (mark, snapshot)

    async def newest_first(self, at_most: int | None = None) -> AsyncGenerator[Snapshot]:
        """All that are kept, newest first; with `at_most`, those up to that sequence."""
        for _, snapshot in reversed(list(self._kept.values()) if self.available else []):
            if at_most is None or snapshot.sequence <= at_most:
                yield snapshot
