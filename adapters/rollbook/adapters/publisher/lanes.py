"""Which fact may be sent now: in order per subject, whatever has to be retried; subjects do not wait for each other.

Pure: no socket, no clock (moments are arguments), no thread. `Sender` drives it from its loop.

A subject is a lane. Its first fact is *taken* when it may be sent, and stays at the head until it is *settled*; so the
next one of that lane cannot overtake it. A fact without an answer is *returned*, to be taken again later.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Lane(Generic[T]):
    __slots__ = ("items", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.items: deque[T] = deque()


class Lanes(Generic[T]):
    """The waiting facts. At most `window` are taken at a time, and at most one per lane."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._lanes: dict[str, _Lane[T]] = {}
        self._ready: deque[_Lane[T]] = deque()
        self._later: list[tuple[float, int, _Lane[T]]] = []
        self._ticket = 0
        self._taken = 0

    def offer(self, key: str, item: T) -> None:
        """Put `item` at the end of its lane."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
            self._ready.append(lane)
        lane.items.append(item)

    def take(self, now: float) -> T | None:
        """The next that may go, or None. It must be settled or returned afterwards."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        if not self._ready or self._taken >= self._window:
            return None
        self._taken += 1
        return self._ready.popleft().items[0]

    def settle(self, key: str) -> None:
        """The taken fact of this lane has its answer: it leaves, and the next one may go."""
        lane = self._lanes[key]
        lane.items.popleft()
        self._taken -= 1
        if lane.items:
            self._ready.append(lane)
        else:
            del self._lanes[key]

    def give_back(self, key: str, at: float) -> None:
        """The taken fact of this lane got no answer: it may be taken again from the moment `at`."""
        self._taken -= 1
        self._ticket += 1
        heapq.heappush(self._later, (at, self._ticket, self._lanes[key]))

    def hurry(self) -> None:
        """Whatever waits for a later moment may be taken now, in the order of its moments."""
        while self._later:
            self._ready.append(heapq.heappop(self._later)[2])

    def lane(self, key: str) -> Iterator[T]:
        """What waits in one lane, in order."""
        lane = self._lanes.get(key)
        return iter(lane.items if lane is not None else ())

    def __iter__(self) -> Iterator[T]:
        """All waiting facts, taken ones included; in order within a lane."""
        for lane in self._lanes.values():
            yield from lane.items

    def __len__(self) -> int:
        return sum(len(lane.items) for lane in self._lanes.values())
