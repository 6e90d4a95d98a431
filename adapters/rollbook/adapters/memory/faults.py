"""What can go wrong with a log and with a router, as chances that those in memory draw from."""

from __future__ import annotations

import random
from typing import Final

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


class ProxyFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How badly a `MemoryProxy` behaves. The default is a router that works at once. Chances are from 0 to 1."""

    slowest_call: float = 0.0
    """Seconds. A call has its effect after up to half of this, and its answer comes after up to the other half."""
    slowest_job: float = 0.0
    """Seconds from an accepted add or removal to the change in the listing, at most, for a worker that answers."""
    refuse: float = 0.0
    """Chance that a call has no effect and raises `ProxyUnavailable`."""
    lose_answer: float = 0.0
    """Chance that a call has its effect and raises `ProxyUnavailable`."""
    act_late: float = 0.0
    """Chance that an add or removal raises `ProxyUnavailable` and is accepted up to `latest` seconds afterwards."""
    latest: float = 5.0
    """Seconds; see `act_late`."""
    lie: float = 0.0
    """Chance that an add or removal is answered as accepted and nothing happens."""
    fail_job: float = 0.0
    """Chance that an accepted add fails."""
    longest_request: float = 0.0
    """Seconds from a drain to the end of the last request that runs, at most."""


NO_FAULTS: Final = ProxyFaults()


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
