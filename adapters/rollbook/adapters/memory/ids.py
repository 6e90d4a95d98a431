"""Ids that are the same in every run with the same seed."""

from __future__ import annotations

import random
import uuid


class SeededIds:
    """Makes UUIDv7-shaped ids from a random generator. Where real ones hold milliseconds, these hold a counter."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def new(self) -> str:
        """An id that was never returned before, sorting after all earlier ones."""
        self._count += 1
        random_a, random_b = self._rng.getrandbits(12), self._rng.getrandbits(62)
        return str(uuid.UUID(int=self._count << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b))
