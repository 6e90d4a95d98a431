"""Ids of facts: UUIDv7 (RFC 9562), made fast enough for a caller that must not wait.

A health thread makes one per fact inside `worker_down()`, so an id costs about a microsecond: randomness is drawn from
the system in blocks, and the 74 bits after the milliseconds are a counter that begins anew at random with every
millisecond and then rises by random steps. So ids of one process sort in the order of their making, also when the wall
clock steps back, and two processes meet only by guessing 73 bits.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Final

_TAIL_BITS: Final = 74
_WORDS: Final = struct.Struct("=512Q")
"""How much is drawn from the system at once."""


class UuidV7:
    """Makes UUIDv7 strings, each greater than the one before. Safe from any thread, and in a forked child.

    `clock` gives nanoseconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._forget()
        forget = weakref.WeakMethod(self._forget)
        # A forked child has its parent's randomness, and perhaps a lock that a thread of the parent held.
        os.register_at_fork(after_in_child=lambda: (alive := forget()) and alive())

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._words: Iterator[int] = iter(())
        self._millisecond = -1
        self._head = ""
        self._tail = 0

    def _word(self) -> int:
        """64 random bits."""
        word = next(self._words, None)
        if word is None:
            self._words = iter(_WORDS.unpack(os.urandom(_WORDS.size)))
            word = next(self._words)
        return word

    def _begin(self, millisecond: int) -> int:
        """The counter's random start in a new millisecond: 73 of its bits, so that there is room to count."""
        self._millisecond = millisecond
        digits = f"{millisecond:012x}"
        self._head = f"{digits[:8]}-{digits[8:]}-7"
        return self._word() | (self._word() >> 55) << 64

    def new(self) -> str:
        """A UUIDv7 that was never returned before, as 36 characters in lower case."""
        with self._lock:
            millisecond = self._clock() // 1_000_000
            if millisecond > self._millisecond:
                tail = self._begin(millisecond)
            else:
                tail = self._tail + (self._word() >> 32) + 1
                if tail >> _TAIL_BITS:
                    tail = self._begin(self._millisecond + 1)
            self._tail = tail
            head = self._head
        low = f"{tail & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000:x}"
        return f"{head}{tail >> 62:03x}-{low[:4]}-{low[4:]}"
