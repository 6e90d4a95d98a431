"""What an archive notes beside a message: where the log had it and when it was stored, as CloudEvents extensions.

The notes are spliced in at the front of the envelope, so the bytes behind them stay as they were, and every line of an
archive is still one CloudEvent. A log made from an archive keeps them: its server stamps new times, and the old ones
are what delays are counted from.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from rollbook.events.times import parse_rfc3339

PREFIX: Final = b'{"archivedsequence":"'
"""How a noted envelope begins; nothing that a publisher writes does."""

_NOTES: Final = re.compile(
    rb'\{"archivedsequence":"(?P<sequence>[0-9]{1,16})","archivedtime":"(?P<time>[0-9TZ:.+-]{20,40})",'
    rb'"archivedsubject":"(?P<subject>[A-Za-z0-9._~%-]{1,13000})",'
)
"""A subject that is no fact's may hold any letter; it is percent-encoded."""
_LATEST: Final = 2**63 / 1e9
"""Seconds since the epoch; a log has no time beyond it, nor one before the epoch."""


class Notes(msgspec.Struct, frozen=True, gc=False):
    """Where and when the log had a message."""

    sequence: int
    stored_at: float
    """Seconds since the epoch by the log's clock, to the microsecond."""
    subject: str


def add_notes(payload: bytes, notes: Notes) -> bytes | None:
    """The envelope with its notes. None if it cannot take them: no JSON object of one line, or it begins like one."""
    if not 0 <= notes.stored_at < _LATEST:
        return None
    if not payload.startswith(b'{"') or payload.startswith(PREFIX) or b"\n" in payload or b"\r" in payload:
        return None
    time = datetime.fromtimestamp(notes.stored_at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    subject = quote(notes.subject, safe="")
    head = f'{{"archivedsequence":"{notes.sequence}","archivedtime":"{time}","archivedsubject":"{subject}",'
    noted = head.encode() + payload[1:]
    return noted if read_notes(noted) is not None else None


def read_notes(payload: bytes) -> Notes | None:
    """The notes of an envelope, or None if it has none."""
    found = _NOTES.match(payload) if payload.startswith(PREFIX) else None
    if found is None:
        return None
    try:
        stored_at = parse_rfc3339(found["time"].decode())
    except (ValueError, OverflowError):
        return None
    if not 0 <= stored_at < _LATEST:
        return None
    return Notes(int(found["sequence"]), stored_at, unquote(found["subject"].decode()))


def without_notes(payload: bytes) -> bytes:
    """The envelope as it was published."""
    found = _NOTES.match(payload) if payload.startswith(PREFIX) else None
    return payload if found is None else b"{" + payload[found.end() :]
