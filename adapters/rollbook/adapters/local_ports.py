"""Ports for what listens on this host and is to keep its port, as a worker or an embedded server is.

They lie below those that Linux gives to outgoing connections and to whoever asks for any port: one of those can be
anybody's by the time that its owner, killed and started again, wants it back.
"""

from __future__ import annotations

from typing import Final

DYNAMIC: Final = range(20_000, 32_768)
"""Also above those that Ray gives to its own processes."""


def rotated(start: int) -> list[int]:
    """All of them, from the one at `start` (any number) on, so that not everybody tries the same ones first."""
    begin = start % len(DYNAMIC)
    return [*DYNAMIC[begin:], *DYNAMIC[:begin]]
