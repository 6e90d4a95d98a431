"""What stands behind a `Publisher`: taking a fact in on the caller's thread, and ending with none forgotten."""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.publisher.entry import Entry, Fence, LifeNumber
from rollbook.adapters.publisher.errors import (
    NotSent,
    OutboxFull,
    PublisherClosed,
    PublisherError,
    PublisherForked,
    WouldBlock,
)
from rollbook.adapters.publisher.outbox import DurableOutbox
from rollbook.adapters.publisher.receipt import Book, Flushed, PublisherStats, Receipt, Unsent, in_event_loop
from rollbook.adapters.publisher.sender import Sender
from rollbook.adapters.publisher.store import Store
from rollbook.events import Codec, Fact, WorkerFact
from rollbook.events.facts.base import MAX_INTEGER

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_SOME_ID: Final = "0" * 36
_CLOSED: Final = "the publisher was closed before the log acknowledged it"
_SHOWN: Final = 5
"""Unsent facts that a log line names; the report names all."""


class Core:
    """Owns the sender and the outbox. Raises `LogError`, `OutboxInUse` or `OutboxUnusable`."""

    def __init__(self, fleet: str, connection: Connection, *, name: str, outbox: str | Path | None, limit: int) -> None:
        self._name = name
        self._codec = Codec(fleet)
        self._book = Book(UuidV7())
        self._limit = limit
        self._gone: type[PublisherClosed | PublisherForked] | None = None
        self._closing = threading.Lock()
        self._closed: Flushed | None = None
        self._overflow = 0
        self._overflow_told = 0.0
        self.store = Store(DurableOutbox(outbox) if outbox is not None else None, self._codec, self._book)
        try:
            self.sender = Sender(self._codec, name, connection, limit=limit, store=self.store)
            self.sender.start()
        except BaseException:  # no descriptor or thread is left: the next try needs the file
            self.store.close()
            raise
        self._intake = self.sender.intake
        self._known = self.sender.memory.known
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())
        atexit.register(self._at_exit)

    def accept(
        self,
        fact: Fact,
        *,
        life: LifeNumber | None = None,
        ask: bool = False,
        fence: Fence | None = None,
        checked: bool = False,
    ) -> Receipt[Any]:
        """Take a fact in, on the caller's thread: this is all that a caller waits for.

        `checked` says that the fact is certainly valid. Raises `InvalidFact` and its kin, `PublisherClosed` or
        `PublisherForked`.
        """
        if self._gone is not None:
            self.check_open()
        if not checked:
            self._check(fact, numbered_later=ask or life is not None)
        receipt: Receipt[Any] = Receipt(self._book)
        known = self._known.get(fact.worker, 0) if isinstance(fact, WorkerFact) else 0
        if not self._intake.put((receipt, fact, time.monotonic(), known, life, ask, fence)):
            self._refuse_for_want_of_room(receipt)
        elif self._intake.ended:
            self._give_up(list(self._intake.take()))
        return receipt

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` on the sender's loop. Raises `PublisherClosed` or `PublisherForked`."""
        try:
            self.check_open()
        except PublisherError:
            work.close()
            raise
        return self.sender.submit(work)

    def check_open(self) -> None:
        """Raise `PublisherForked` or `PublisherClosed` if there is nobody to take a fact."""
        if self._gone is PublisherForked:
            raise PublisherForked
        if self._gone is not None:
            raise PublisherClosed("the publisher is closed; make a new one")

    def stats(self) -> PublisherStats:
        """Counts, and what holds facts up."""
        sender = self.sender
        counts, arriving = sender.counts, len(self._intake)
        return PublisherStats(
            accepted=counts.accepted + arriving,
            acknowledged=counts.acknowledged,
            waiting=len(sender.open) + arriving,
            oldest_seconds=self._oldest(),
            refused=counts.refused + self._overflow,
            superseded=counts.superseded,
            reconnects=sender.link.reconnects,
            connected=sender.link.connected,
            last_error=sender.trouble or self.store.error,
        )

    def _oldest(self) -> float:
        """What is open stands in the order in which it was accepted; the loop may change it while we look."""
        while True:
            try:
                entry = next(iter(self.sender.open.values()), None)
            except RuntimeError:
                continue
            return 0.0 if entry is None else max(time.monotonic() - entry.called, 0.0)

    def close(self, timeout: float) -> Flushed:
        """Take no more facts, flush, end the thread, close the outbox; whatever has no end yet gets one."""
        if in_event_loop():
            raise WouldBlock("close()", "await publisher.aclose()")
        if self._gone is PublisherForked:
            raise PublisherForked
        with self._closing:
            if self._closed is None:
                self._gone = PublisherClosed
                atexit.unregister(self._at_exit)
                flushed = self.sender.stop(timeout)
                self.store.close()
                left = self._give_up([*self.sender.open.values(), *self._intake.take()])
                self._closed = Flushed(flushed.sent, (*(one for one in flushed.unsent if not one.kept), *left))
        return self._closed

    def _check(self, fact: Fact, *, numbered_later: bool) -> None:
        """Raise now, where the caller can see it, what would make the fact unsendable later."""
        if numbered_later and isinstance(fact, WorkerFact) and not fact.incarnation:
            fact = msgspec.structs.replace(fact, incarnation=MAX_INTEGER)
        self._codec.draft(fact, id=_SOME_ID, time=_SOME_ID, publisher=self._name)

    def _refuse_for_want_of_room(self, receipt: Receipt[Any]) -> None:
        error = OutboxFull(self._limit)
        receipt.settle(None, error)
        with self._book.lock:
            self._overflow += 1
            now = time.monotonic()
            if now - self._overflow_told < 1:
                return
            self._overflow_told = now
        _log.warning("publisher.outbox.full", refused=self._overflow, reason=str(error))

    def _give_up(self, entries: list[Entry]) -> list[Unsent]:
        """Nobody in this process will send them: end their receipts, and report them."""
        trouble = f"{_CLOSED}: {self.sender.trouble}" if self.sender.trouble else _CLOSED
        unsent: list[Unsent] = []
        for entry in entries:
            kept = entry.receipt.persisted
            reason = f"{trouble}; it is in the durable outbox" if kept else trouble
            entry.receipt.settle(None, NotSent(reason))
            unsent.append(entry.unsent(reason, kept=kept))
        if unsent:
            _log.warning(
                "publisher.closed.unsent",
                publisher=self._name,
                unsent=len(unsent),
                kept=sum(one.kept for one in unsent),
                first=[f"{one.what} ({one.id})" for one in unsent[:_SHOWN]],
                reason=trouble,
            )
        return unsent

    def _at_exit(self) -> None:
        self.close(timeout=0)

    def _forked(self) -> None:
        """In a forked child: there is no thread here, and nothing that was accepted is this process's to send."""
        self._gone = PublisherForked
        atexit.unregister(self._at_exit)
        self._book.lock = threading.Lock()
        for entry in (*self.sender.open.values(), *self._intake.take()):
            entry.receipt.settle(None, PublisherForked())
