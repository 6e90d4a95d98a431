"""Who is asked next, and when: a cadence for each worker, moved at random, and a bound for each pool.

Pure: time is an argument, chance is seeded by whoever makes it. A worker is never asked twice at the same time, and
one whose turn came while its pool had no room is asked as soon as there is.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque

import msgspec


class Pace(msgspec.Struct, frozen=True, gc=False):
    """How often the workers of one pool are asked, and how many at a time."""

    pool: str
    interval: float
    jitter: float
    parallel: int


class Due(msgspec.Struct, frozen=True, gc=False):
    """A probe whose time has come."""

    name: str
    at: float
    """When it was to begin."""


class _Slot(msgspec.Struct, gc=False):
    pace: Pace
    at: float
    ticket: int = 0
    """Of its entry in the heap; an entry with another one is of the past."""


class Schedule:
    """The next probe of every worker."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._slots: dict[str, _Slot] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._tickets = itertools.count(1)
        self._asked: dict[str, str] = {}
        """Who is being asked → the pool whose room that takes."""
        self._taken: dict[str, int] = {}
        """By pool: how many of them."""
        self._full: dict[str, deque[str]] = {}
        """By pool: whose turn came when it had no room."""

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, name: str, pace: Pace, now: float) -> None:
        """Ask `name` at this pace from now on, first at a random moment of the first interval."""
        slot = self._slots.get(name)
        if slot is not None and slot.pace == pace:
            return
        self.remove(name)
        slot = self._slots[name] = _Slot(pace, now + self._rng.random() * pace.interval)
        if name not in self._asked:
            self._push(name, slot)

    def remove(self, name: str) -> None:
        """Ask it no more."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            # It may be the one whose turn had come, and then another waits for room that nobody takes.
            self._wake(slot.pace.pool)

    def due(self, now: float) -> list[Due]:
        """Those whose time has come and whose pool has room. Each counts as being asked until `done`."""
        found: list[Due] = []
        while (at := self.next_at()) is not None and at <= now:
            name = heapq.heappop(self._heap)[2]
            pace = self._slots[name].pace
            taken = self._taken.get(pace.pool, 0)
            if taken >= pace.parallel:
                self._full.setdefault(pace.pool, deque()).append(name)
                continue
            self._taken[pace.pool] = taken + 1
            self._asked[name] = pace.pool
            found.append(Due(name, at))
        return found

    def done(self, name: str, now: float) -> None:
        """Its probe is over."""
        pool = self._asked.pop(name)
        self._taken[pool] -= 1
        slot = self._slots.get(name)
        if slot is not None:
            if slot.at <= now:
                step = slot.pace.interval * (1 + slot.pace.jitter * (2 * self._rng.random() - 1))
                slot.at = slot.at + step if slot.at + step > now else now + step
            self._push(name, slot)
        self._wake(pool)

    def _wake(self, pool: str) -> None:
        """Give the next one that waits for room in `pool` its turn."""
        waiting = self._full.get(pool)
        while waiting:
            first = waiting.popleft()
            held = self._slots.get(first)
            if held is not None and held.pace.pool == pool and first not in self._asked:
                self._push(first, held)
                return

    def next_at(self) -> float | None:
        """When the next one is due; None if nobody is, or only those who wait for room."""
        while self._heap:
            at, ticket, name = self._heap[0]
            slot = self._slots.get(name)
            if slot is not None and slot.ticket == ticket:
                return at
            heapq.heappop(self._heap)
        return None

    def _push(self, name: str, slot: _Slot) -> None:
        slot.ticket = next(self._tickets)
        heapq.heappush(self._heap, (slot.at, slot.ticket, name))
