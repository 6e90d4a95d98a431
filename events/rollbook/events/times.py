"""Times as the envelope writes them: RFC 3339, UTC, milliseconds. For people only; nothing is ordered by them."""

from __future__ import annotations

from datetime import UTC, datetime


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
