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

import msgspec

from rollbook.projections.deciding.observed import Life

WINDOW: Final = 60.0
"""Seconds over which removals are counted and listings remembered."""

_ROUNDING: Final = 1e-9
"""0.1 of 30 is 3, whatever floating point says."""


class Budget:
    """Counts. `part`, from 0 to 1, of the largest listing may go; 0 lets none go without being asked."""

    def __init__(self, part: float) -> None:
        self._part = part
        self._pools: dict[str, _Counts] = {}

    def listed(self, sizes: Mapping[str, int], now: float) -> None:
        """A complete listing has so many entries of ours of each pool."""
        for pool in self._pools.keys() | sizes.keys():
            kept = self._counts(pool).sizes
            size = sizes.get(pool, 0)
            while kept and kept[-1][1] <= size:
                kept.pop()
            kept.append((now, size))

    def allowed(self, pool: str, now: float) -> int:
        """How many of `pool` may go within the window: the part rounded up, and one at least unless the part is 0.

        So a pool of one can lose its one, and a pool of two one of them.
        """
        kept = self._counts(pool).sizes
        while len(kept) > 1 and kept[0][0] < now - WINDOW:
            kept.popleft()
        largest = kept[0][1] if kept else 0
        return 0 if self._part == 0 else max(1, math.ceil(self._part * largest - _ROUNDING))

    def take(self, pool: str, life: Life, now: float) -> bool:
        """Whether this life may go on inferred evidence; then it counts, once, until the window has passed."""
        counts = self._counts(pool)
        counts.forget_before(now - WINDOW)
        if life not in counts.gone:
            if len(counts.gone) >= self.allowed(pool, now):
                return False
            counts.gone[life] = now
            counts.order.append((now, life))
        return True

    def called(self, pool: str, life: Life) -> None:
        """A call that removes it begins: if it counts, it does so from now on whatever is heard of it."""
        counts = self._counts(pool)
        if life in counts.gone:
            counts.called.add(life)

    def give_back(self, pool: str, life: Life) -> None:
        """It was not removed after all; unless a call was made for it before, which may have worked."""
        counts = self._counts(pool)
        if life not in counts.called:
            counts.gone.pop(life, None)

    def _counts(self, pool: str) -> _Counts:
        return self._pools.setdefault(pool, _Counts())


class _Counts(msgspec.Struct, gc=False):
    """Of one pool."""

    sizes: deque[tuple[float, int]] = msgspec.field(default_factory=deque)
    """Moments and sizes of listings, falling; so the first is the largest."""
    gone: dict[Life, float] = {}
    """The lives that were let go, and when first."""
    order: deque[tuple[float, Life]] = msgspec.field(default_factory=deque)
    """The same, the oldest first; also those that were given back meanwhile."""
    called: set[Life] = set()
    """Those that are gone and for which a call was made."""

    def forget_before(self, moment: float) -> None:
        """Whoever was let go before counts no more."""
        while self.order and self.order[0][0] < moment:
            when, life = self.order.popleft()
            if self.gone.get(life) == when:
                del self.gone[life]
                self.called.discard(life)
