"""What a caller gets back for a fact, at once: where to ask what became of it.

A receipt has one of these endings:

- a sequence: JetStream acknowledged the fact, it stands there in the log;
- `Superseded` (only for verdicts of a probe): the log moved on since the check began, so the verdict is void;
- an error (`NotSent` or `InvalidFact`): it is not known to be in the log and will not be tried again.

Until then the fact is in the outbox. A receipt may be thrown away: whatever is not sent is logged and counted anyway.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

import msgspec

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.publisher.errors import WouldBlock
from rollbook.events import Fact, RollbookError

T = TypeVar("T")


class Superseded(msgspec.Struct, frozen=True, gc=False):
    """Something happened to the worker after the check had begun. An answer, not an error: check again."""

    worker: str
    sequence: int
    """Of the first fact, by anybody else, that the check could not have known."""


class Unsent(msgspec.Struct, frozen=True):
    """A fact that is not known to be in the log."""

    id: str
    what: str
    """For people: `WorkerUp about rollout-3-0`."""
    fact: Fact | None
    """Incarnation 0 stands for one that was not known yet. None for a fact that an earlier process left behind."""
    reason: str
    kept: bool = False
    """Whether it will still be sent: from memory after `flush()`, from the durable outbox's file after `close()`."""


class Flushed(msgspec.Struct, frozen=True):
    """What became of the facts that were waiting when `flush()` or `close()` was called."""

    sent: int
    """Acknowledged meanwhile."""
    unsent: tuple[Unsent, ...]
    """Not acknowledged: still waiting, or given up meanwhile."""

    def __bool__(self) -> bool:
        return not self.unsent


class PublisherStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the publisher was made."""

    accepted: int
    """Facts taken into the outbox."""
    acknowledged: int
    waiting: int
    oldest_seconds: float
    """How long the oldest of them has been waiting in this process; 0 if none is."""
    refused: int
    """Facts that ended in an error, `OutboxFull` included."""
    superseded: int
    reconnects: int
    connected: bool
    last_error: str | None
    """The latest trouble with the log or the durable outbox, for people."""


class Book:
    """What all receipts of one publisher share."""

    def __init__(self, ids: UuidV7) -> None:
        self.ids = ids
        self.lock = threading.Lock()
        """Guards the endings; held for a few instructions, never while waiting."""


class Receipt(msgspec.Struct, Generic[T], eq=False):
    """The fate of one fact. Usable from any thread and from asyncio: `receipt.result(timeout)` or `await receipt`."""

    _book: Book
    _id: str = ""
    _done: bool = False
    _persisted: bool = False
    _value: T | None = None
    _error: RollbookError | None = None
    _watchers: list[Callable[[], None]] | None = None

    @property
    def id(self) -> str:
        """The fact's id in the log, a UUIDv7. Made on first use, to keep the caller's thread free of it."""
        if not self._id:
            with self._book.lock:
                if not self._id:  # another thread may have been quicker
                    self._id = self._book.ids.new()
        return self._id

    @property
    def done(self) -> bool:
        """Whether the fate is known."""
        return self._done

    @property
    def error(self) -> RollbookError | None:
        """Why the fact is not in the log, once that is certain."""
        return self._error

    @property
    def persisted(self) -> bool:
        """Whether the fact survives the death of this process: it is in the log, or in the durable outbox's file."""
        return self._persisted or (self._done and self._error is None)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end and return the sequence (or `Superseded`, for a probe's verdict).

        Raises the error the fact ended with, `TimeoutError` after `timeout` seconds (it is still in the outbox then),
        and `WouldBlock` if it would have to wait on the thread of a running event loop.
        """
        if not self._wait(lambda: self._done, timeout, "result()", "await receipt"):
            raise TimeoutError(f"fact {self.id} has no answer after {timeout} s; it stays in the outbox")
        return self._ending()

    def wait_persisted(self, timeout: float | None = None) -> bool:
        """Wait until the fact survives this process, or cannot; False if it does not, also after `timeout` seconds.

        Without a durable outbox that is when the log acknowledges it. Raises `WouldBlock` like `result()`.
        """
        self._wait(lambda: self._persisted or self._done, timeout, "wait_persisted()", "await asyncio.to_thread(...)")
        return self.persisted

    def __await__(self) -> Generator[asyncio.Future[None], None, T]:
        while not self._done:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            tell = functools.partial(_tell, change)
            self._watch(lambda: self._done, tell)
            try:
                yield from change
            finally:
                self._unwatch(tell)
        return self._ending()

    def _ending(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value] # pyright: ignore[reportReturnType] - set with `_done`

    def _wait(self, ready: Callable[[], bool], timeout: float | None, call: str, instead: str) -> bool:
        if ready():
            return True
        if in_event_loop():
            raise WouldBlock(call, instead)
        until = None if timeout is None else time.monotonic() + timeout
        while not ready():
            change = threading.Event()
            tell = change.set
            self._watch(ready, tell)
            left = None if until is None else until - time.monotonic()
            try:
                if not change.wait(left) and not ready():
                    return False
            finally:
                self._unwatch(tell)
        return True

    def _watch(self, ready: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Call `tell` at the next change, or now if there is nothing to wait for."""
        with self._book.lock:
            if not ready():
                self._watchers = [*(self._watchers or ()), tell]
                return
        tell()

    def _unwatch(self, tell: Callable[[], None]) -> None:
        """Nobody waits for that any more."""
        with self._book.lock:
            if self._watchers:
                self._watchers = [other for other in self._watchers if other is not tell]

    def settle(self, value: T | None, error: RollbookError | None = None) -> None:
        """For the publisher: the fate is known. Only the first call counts."""
        with self._book.lock:
            if self._done:
                return
            self._value, self._error, self._done = value, error, True
            watchers, self._watchers = self._watchers, None
        for tell in watchers or ():
            tell()

    def mark_persisted(self) -> None:
        """For the publisher: the fact is on the disk."""
        with self._book.lock:
            self._persisted = True
            watchers, self._watchers = self._watchers, None
        for tell in watchers or ():
            tell()


def in_event_loop() -> bool:
    """Whether this thread runs an event loop that a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _tell(change: asyncio.Future[None]) -> None:
    try:
        change.get_loop().call_soon_threadsafe(_wake, change)
    except RuntimeError:
        return  # the loop that waited is closed: nobody is left to tell


def _wake(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)
