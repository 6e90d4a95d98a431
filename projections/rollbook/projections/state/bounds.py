"""How much of a text from outside the state keeps. The log has it whole."""

from __future__ import annotations

from typing import Final

LONGEST_KEPT: Final = 500
"""Letters of a reason. One fact may bring 900 KB, and retire every worker with it: no snapshot would hold that."""

LONGEST_TIME: Final = 64
"""Letters of a time. RFC 3339 needs no more; what is cut is none, and was none before."""


def shortened(reason: str) -> str:
    """As much of it as the state keeps."""
    return reason if len(reason) <= LONGEST_KEPT else reason[:LONGEST_KEPT] + "..."
