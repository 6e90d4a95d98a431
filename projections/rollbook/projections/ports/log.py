"""The event log: what is stored in it, where it begins and ends, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

import msgspec

from rollbook.events import Draft, RollbookError


class LogError(RollbookError):
    """Something is wrong with the event log."""


class LogUnavailable(LogError):
    """No answer from the log: whether an append was stored is unknown. Appending again with the same ids is safe."""


class AppendConflict(LogError):
    """The expected last sequence of a subject was wrong. Nothing of the append is stored."""

    def __init__(self, subject: str, expected: int, found: int | None = None) -> None:
        told = "" if found is None else f", found {found}"
        super().__init__(f"{subject}: expected last sequence {expected}{told}; somebody else wrote to it")
        self.subject = subject
        self.expected = expected
        self.found = found


class LogMisconfigured(LogError):
    """The stream exists with settings that would lose facts. The message names the setting and what it should be."""


class HistoryHole(LogError):
    """Facts that the fold needs are not in the log any more."""

    def __init__(self, first_missing: int, found: str) -> None:
        super().__init__(
            f"the log has no sequence {first_missing} ({found}). The state cannot be folded past it. Two ways out: "
            "`rollbook up --relist` begins anew from what provider and proxies list now and forgets what was lost, or "
            "`rollbook import` restores an archive of the log"
        )
        self.first_missing = first_missing


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One message as the log holds it, whatever its bytes are."""

    sequence: int
    subject: str
    payload: bytes
    stored_at: float = 0.0
    """Seconds since the epoch by the log's clock, which is the clock of all that lasts for a while; never folded."""


class LogState(msgspec.Struct, frozen=True, gc=False):
    """Where the log begins and ends, and which log it is."""

    identity: str
    """Changes when the stream is deleted and made anew."""
    first_sequence: int
    """Of the oldest message still held; `last_sequence + 1` if none is."""
    last_sequence: int
    """0 for a log that never held anything."""
    at: float = 0.0
    """The log's clock as it said so, in seconds since the epoch; 0 if it does not tell."""


class EventLog(Protocol):
    """The fleet's stream: totally ordered, append-only."""

    async def append(self, drafts: Sequence[Draft], *, expect: Mapping[str, int] | None = None) -> list[int]:
        """Append all drafts, in order, or none; return their sequences.

        `expect` names, per subject, the last sequence that must stand on it before the first of these drafts.
        A draft whose id is already stored is not stored again: its first sequence is returned.
        Raises `AppendConflict` (nothing stored) or `LogUnavailable` (unknown; repeat with the same drafts).
        """
        ...

    def read(self, after: int) -> AsyncGenerator[Sequence[Stored]]:
        """Yield everything with a sequence above `after`, in order, in batches, then go on as facts arrive.

        Reconnects by itself. It may lose messages when something underneath does; so the reader checks that sequences
        are contiguous and calls `read` anew from the last one it applied. Raises `LogUnavailable` when it gives up.
        """
        ...

    async def state(self) -> LogState:
        """Ends and identity of the log now. Raises `LogUnavailable`."""
        ...

    async def get(self, sequence: int) -> Stored | None:
        """The message at `sequence`, or None if the log does not hold it (any more). Raises `LogUnavailable`."""
        ...

    async def last(self, subject: str) -> Stored | None:
        """The newest message on `subject`, or None. Raises `LogUnavailable`."""
        ...
