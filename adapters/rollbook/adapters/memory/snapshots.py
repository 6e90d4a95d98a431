"""Snapshots in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from rollbook.projections.ports import LogUnavailable, Snapshot


class MemorySnapshots:
    """Keeps the newest `keep` snapshots."""

    def __init__(self, keep: int = 3) -> None:
        self.available = True
        """False: saving raises `LogUnavailable`, and nothing can be read."""
        self._keep = keep
        self._kept: list[Snapshot] = []

    async def save(self, snapshot: Snapshot) -> None:
        """Keep it; the oldest beyond the limit go. Raises `LogUnavailable`."""
        if not self.available:
            msg = "the snapshot store in memory was made unavailable; the snapshot is not kept"
            raise LogUnavailable(msg)
        self._kept = [*self._kept, snapshot][-self._keep :]

    async def newest_first(self) -> AsyncGenerator[Snapshot]:
        """All that are kept, newest first."""
        for snapshot in reversed(self._kept if self.available else []):
            yield snapshot
