"""The crossing from the callers' threads to the publisher's loop.

`put` is all that a caller pays for: two deque operations, and a wake-up if the loop is asleep. It takes no lock and
never waits.

Where the system has eventfd, the wake-up is one write to it, made without letting go of the GIL. A write that lets go
of it (`os.eventfd_write`, or the socket behind `loop.call_soon_threadsafe`) often hands it to the very loop that it
wakes, and the caller then waits until that loop has encoded and sent the fact: p99 was 1-3 ms instead of 60 µs.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from rollbook.adapters.publisher.entry import Arrival, Entry


class Intake:
    """Facts that the loop has not seen yet, and how many more may be accepted.

    `wake` runs on the loop, soon after something was put in.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._arrivals: deque[Arrival] = deque()
        self._permits: deque[None] = deque([None] * limit)
        self._awake = False
        self._ended = False
        self._loop = loop
        self._wake = wake
        self._fd: int | None = None
        self._ring: Callable[[], object] = self._ring_slowly
        if hasattr(os, "eventfd"):
            self._fd = fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            # Closed with the object, when nobody can write to it any more: its number may then be another file's.
            weakref.finalize(self, os.close, fd)
            self._ring = functools.partial(ctypes.PyDLL(None).eventfd_write, ctypes.c_int(fd), ctypes.c_uint64(1))

    def attach(self) -> None:
        """On the loop's thread, before anything else: hear the bell."""
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._heard, self._fd)

    def put(self, arrival: Arrival) -> bool:
        """Accept `arrival`, or return False if the limit is reached. Any thread."""
        try:
            self._permits.pop()
        except IndexError:
            return False
        self._arrivals.append(arrival)
        # The loop puts the flag down before it looks at the arrivals, so one of the two sees the other.
        if not self._awake:
            self._awake = True
            self._ring()
        return True

    @property
    def ended(self) -> bool:
        """Whether the loop has stopped taking. What was put in at that very moment is found by `take`."""
        return self._ended

    def take(self) -> Iterator[Entry]:
        """What was accepted since the last time, in order."""
        self._awake = False
        while self._arrivals:
            try:
                yield Entry(*self._arrivals.popleft())
            except IndexError:  # after the end several threads may clear up
                return

    def release(self) -> None:
        """One accepted fact has met its end, and leaves room for another."""
        self._permits.append(None)

    def end(self) -> None:
        """The loop takes no more."""
        self._ended = True

    def __len__(self) -> int:
        return len(self._arrivals)

    def _heard(self, fd: int) -> None:
        os.eventfd_read(fd)
        self._wake()

    def _ring_slowly(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return  # the loop is closed: `ended` tells the caller
