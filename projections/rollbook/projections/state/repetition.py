"""Recognising a fact that comes again, once the server's own window for repetitions has passed."""

from __future__ import annotations

from typing import Final

REMEMBERED_IDS: Final = 32
"""So many ids back, for each whom the facts are about."""

Remembered = dict[str, dict[str, None]]
"""Whom facts are about → the ids of the last ones, the oldest first."""


def repeated(remembered: Remembered, about: str, fact_id: str) -> bool:
    """Whether this id was there lately; from now on it was."""
    seen = remembered.get(about)
    if seen is None:
        remembered[about] = {fact_id: None}
        return False
    if fact_id in seen:
        return True
    seen[fact_id] = None
    if len(seen) > REMEMBERED_IDS:
        del seen[next(iter(seen))]
    return False
