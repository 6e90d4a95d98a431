"""The removal budget of one proxy [I12]: how many entries may go on inferred evidence before the workers are asked.

A monitor that is cut off, or a provider that lists nothing, says of every worker that it is gone. So removals that
nobody saw a reason for with his own eyes are counted, per pool, over a minute, against the largest listing of that
minute. Pure: the moment is an argument.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

WINDOW: Final = 60.0
"""Seconds over which removals are counted and listings remembered."""

_ROUNDING: Final = 1e-9
"""0.1 of 30 is 3, whatever floating point says."""


class Budget:
    """Counts. `part`, from 0 to 1, of the largest listing may go; 0 lets none go without being asked."""

    def __init__(self, part: float) -> None:
        self._part = part
        self._sizes: dict[str, deque[tuple[float, int]]] = {}
        """By pool: moments and sizes of listings, falling; so the first is the largest."""
        self._gone: dict[str, dict[tuple[str, int], float]] = {}
        """By pool: the lives that were let go, and when first."""
        self._called: dict[str, set[tuple[str, int]]] = {}
        """By pool: those of them for which a call was made."""

    def listed(self, sizes: Mapping[str, int], now: float) -> None:
        """A complete listing has so many entries of ours of each pool."""
        for pool in self._sizes.keys() | sizes.keys():
            kept = self._sizes.setdefault(pool, deque())
            size = sizes.get(pool, 0)
            while kept and kept[-1][1] <= size:
                kept.pop()
            kept.append((now, size))

    def allowed(self, pool: str, now: float) -> int:
        """How many of `pool` may go within the window: the part rounded up, and one at least unless the part is 0.

        So a pool of one can lose its one, and a pool of two one of them.
        """
        kept = self._sizes.get(pool, deque())
        while len(kept) > 1 and kept[0][0] < now - WINDOW:
            kept.popleft()
        largest = kept[0][1] if kept else 0
        return 0 if self._part == 0 else max(1, math.ceil(self._part * largest - _ROUNDING))

    def take(self, pool: str, life: tuple[str, int], now: float) -> bool:
        """Whether this life may go on inferred evidence; then it counts, once, until the window has passed."""
        gone = self._gone[pool] = {
            one: moment for one, moment in self._gone.get(pool, {}).items() if moment >= now - WINDOW
        }
        self._called[pool] = self._called.get(pool, set()) & gone.keys()
        if life not in gone:
            if len(gone) >= self.allowed(pool, now):
                return False
            gone[life] = now
        return True

    def called(self, pool: str, life: tuple[str, int]) -> None:
        """A call that removes it begins: from now on it counts, whatever is heard of it."""
        self._called.setdefault(pool, set()).add(life)

    def give_back(self, pool: str, life: tuple[str, int]) -> None:
        """It was not removed after all; unless a call was made for it before, which may have worked."""
        if life not in self._called.get(pool, ()):
            self._gone.get(pool, {}).pop(life, None)
