"""Times as the envelope writes them: RFC 3339, UTC, milliseconds. For people only; nothing is ordered by them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds in each unit that people may write a length of time in."""
LONGEST_SECONDS: Final = 10_000 * UNITS["d"]
"""More than any log is old; far beyond it, a lock or a calendar overflows."""


def rfc3339(seconds: float) -> str:
    """`seconds` since the epoch as `2026-11-30T02:40:28.123Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch. Raises `ValueError` for what is not RFC 3339 with a zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        msg = f"{text!r} has no time zone; append 'Z' for UTC"
        raise ValueError(msg)
    return moment.timestamp()
