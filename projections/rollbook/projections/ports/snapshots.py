"""Snapshots of the fold, which spare a start the log from its beginning."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec


class Snapshot(msgspec.Struct, frozen=True):
    """The fold at one sequence, with what the log must confirm before it is believed."""

    identity: str
    """Of the log it was folded from."""
    schema: int
    """The fold's version; another version's snapshots are passed over."""
    sequence: int
    fact_id: str
    """Digest or id of the message at `sequence`, so that a log restored from an older backup is noticed."""
    digest: str
    """SHA-256 of `body`, hexadecimal."""
    body: bytes


class SnapshotStore(Protocol):
    """Keeps a limited number of snapshots: those that `keeping` says."""

    async def save(self, snapshot: Snapshot) -> None:
        """Keep it; what is least needed beyond the store's limit goes. Raises `LogUnavailable`."""
        ...

    def newest_first(self, at_most: int | None = None) -> AsyncIterator[Snapshot]:
        """All that can be read, newest first; unreadable ones are skipped with a warning. Raises `LogUnavailable`.

        With `at_most`, only those up to that sequence.
        """
        ...
