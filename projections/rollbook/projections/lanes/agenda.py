"""What a lane looks at next, and when: who was marked, who is to be tried again, and everybody now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rollbook.projections.lanes.patience import Patience
from rollbook.projections.lanes.retries import Retries
from rollbook.projections.ports import Clock


class Agenda:
    """Of one lane. `resync` is in seconds, between two looks at everybody when nothing happens."""

    def __init__(self, retries: Retries, patience: Patience, clock: Clock, resync: float) -> None:
        self._retries = retries
        self._patience = patience
        self._clock = clock
        self._resync = resync
        self._wake = asyncio.Event()
        self._names: dict[str, None] = {}
        self._everybody = True
        self._resync_at = 0.0
        self._heal_at = 0.0
        self._looked_at = 0.0
        """When the last look at everybody began."""

    def __len__(self) -> int:
        """How many were marked by name."""
        return len(self._names)

    @property
    def waits(self) -> bool:
        """Whether anybody is to be looked at now; who is to be tried again later is not."""
        return bool(self._names or self._everybody)

    def add(self, names: Iterable[str]) -> None:
        """Look at these."""
        self._names.update(dict.fromkeys(names))
        self._wake.set()

    def add_everybody(self, *, hurry: bool = False) -> None:
        """Look at everybody; with `hurry` nobody waits any longer to be tried again."""
        self._everybody = True
        if hurry:
            self._retries.hurry()
        self._wake.set()

    def heal_after(self, seconds: float) -> None:
        """Look at everybody once more then."""
        self._heal_at = self._clock.monotonic() + seconds

    def reconsider(self) -> None:
        """What is due, and when, may have changed."""
        self._wake.set()

    async def due(self) -> None:
        """Wait until somebody is to be looked at."""
        while not self.waits:
            due = self._retries.next_due(min(self._resync_at, self._patience.next_at))
            seconds = due - self._clock.monotonic()
            if seconds <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def take(self) -> tuple[dict[str, None], bool, bool]:
        """Who is to be looked at now; whether everybody is; and whether that is news, and not only time for it again.

        They are not on it any more.
        """
        now = self._clock.monotonic()
        full = self._everybody or now >= min(self._resync_at, self._patience.next_at)
        news = self._everybody or self._looked_at < self._heal_at <= now
        self._names.update(dict.fromkeys(self._retries.take_due()))
        names, self._names, self._everybody = self._names, {}, False
        return names, full, news

    def looked_at_everybody(self, began: float) -> None:
        """The next time is `resync` from now, or sooner if this look `began` before there was anything to heal."""
        self._looked_at = began
        self._resync_at = self._clock.monotonic() + self._resync
        if began < self._heal_at:
            self._resync_at = min(self._resync_at, self._heal_at)
