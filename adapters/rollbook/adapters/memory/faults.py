"""What can go wrong between a log and those who use it, as chances that the log in memory draws from."""

from __future__ import annotations

import random

import msgspec


class LogFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How badly a `MemoryLog` behaves. The default is a log that works at once. Chances are from 0 to 1."""

    slowest_append: float = 0.0
    """Seconds. An append is stored after up to half of this, and answered after up to the other half."""
    slowest_delivery: float = 0.0
    """Seconds until a reader gets the next batch, at most."""
    refuse: float = 0.0
    """Chance that an append is not stored and answers `LogUnavailable`."""
    lose_answer: float = 0.0
    """Chance that an append is stored at once and answers `LogUnavailable`."""
    store_late: float = 0.0
    """Chance that an append answers `LogUnavailable` and is stored up to `latest` seconds afterwards."""
    latest: float = 5.0
    """Seconds; see `store_late`."""
    drop_batch: float = 0.0
    """Chance that a batch never reaches the reader, who sees a gap, or `LogUnavailable` after `heartbeat` seconds."""
    end_reading: float = 0.0
    """Chance, per batch, that reading ends with `LogUnavailable` instead."""
    heartbeat: float = 2.0
    """Seconds after which a reader who lost the newest batch notices it."""
    most_in_a_batch: int = 256
    """Messages in one batch; with faults, each batch has a random size up to this."""


class Chance:
    """Draws from a generator, and costs nothing where the chance is 0."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def hits(self, probability: float) -> bool:
        """True with `probability`."""
        return probability > 0 and self._rng.random() < probability

    def up_to(self, most: float) -> float:
        """A duration from 0 to `most`."""
        return self._rng.uniform(0, most) if most > 0 else 0.0

    def size(self, most: int) -> int:
        """A number from 1 to `most`."""
        return self._rng.randint(1, most)
