"""Which snapshots are kept: the newest few, and of the older ones as many as fit, spread evenly over the log.

The newest are for starting. The older ones are for looking back: the state at any moment is folded from the snapshot
before it, so what matters is that no gap between two of them is large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

NEWEST: Final = 3
"""So many are kept whatever the gaps are: the newest may be torn by a crash, and the one before it may be of a log that
lost its end."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """What tells a snapshot from others without reading it."""

    identity: str
    """Of the log."""
    sequence: int
    saved: int
    """The order of saving: higher is later."""


def superfluous(kept: Mapping[str, Mark], new: Mark, keep: int) -> list[str]:
    """Names in `kept` that go when `new` is saved and `keep` are to be left, the least needed first.

    First what belongs to another log, or lies beyond `new` and so to an end that the log has lost; then those whose
    neighbours are nearest to each other.
    """
    left = dict(kept)
    gone: list[str] = []
    while len(left) >= max(keep, 1):
        name = _stranger(left, new) or _crowded(left, new)
        del left[name]
        gone.append(name)
    return gone


def _stranger(kept: Mapping[str, Mark], new: Mark) -> str | None:
    others = [name for name, mark in kept.items() if mark.identity != new.identity or mark.sequence >= new.sequence]
    return min(others, key=lambda name: kept[name].saved, default=None)


def _crowded(kept: Mapping[str, Mark], new: Mark) -> str:
    names = sorted(kept, key=lambda name: kept[name].sequence)
    at = [0, *(kept[name].sequence for name in names), new.sequence]
    free = range(len(names) - (NEWEST - 1)) or range(1)
    return names[min(free, key=lambda index: at[index + 2] - at[index])]
