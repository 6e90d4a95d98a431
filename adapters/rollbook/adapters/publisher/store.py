"""Between the facts on their way and the durable outbox, if there is one: what is kept, and what was left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import structlog

from rollbook.adapters.publisher.delivery import Delivery
from rollbook.adapters.publisher.entry import Entry
from rollbook.adapters.publisher.errors import OutboxUnusable
from rollbook.adapters.publisher.outbox import DurableOutbox, Row
from rollbook.adapters.publisher.receipt import Book, Receipt, Unsent
from rollbook.events import Codec, Draft, Fact, RollbookError, Undecodable, WorkerFact, parse_subject

_log = structlog.get_logger(__name__)

_LOST = "its process ended before the log gave it a number or compared its check; nobody else can send it"


class Store:
    """`outbox` is None for a publisher that keeps its facts in memory only: then nothing is kept or found.

    Raises `OutboxUnusable` for an outbox with another fleet's facts.
    """

    def __init__(self, outbox: DurableOutbox | None, codec: Codec, book: Book) -> None:
        self._outbox = outbox
        self._codec = codec
        self._book = book
        self._rows = outbox.rows if outbox is not None else []
        self.last_key = max((row.key for row in self._rows), default=0)
        foreign = next((row.subject for row in self._rows if parse_subject(row.subject).fleet != codec.fleet), None)
        if foreign is not None:
            self.close()
            raise OutboxUnusable(f"the outbox has facts on {foreign}; fleet {codec.fleet!r} needs its own file")
        self.lost = tuple(Unsent(row.id, row.what, None, _LOST) for row in self._rows if row.payload is None)
        """What an earlier process accepted, and nobody can send any more."""

    @property
    def error(self) -> str | None:
        """Why the file is behind at the moment."""
        return self._outbox.error if self._outbox is not None else None

    def left_behind(self) -> Iterator[Entry]:
        """The complete facts that an earlier process left, in order. The others are logged and dropped."""
        for row in self._rows:
            if row.payload is not None:
                yield self._entry(row, row.payload)
            elif self._outbox is not None:
                _log.warning("publisher.fact.unsent", id=row.id, fact=row.what, reason=_LOST)
                self._outbox.forget(row.key)

    def keep(self, entry: Entry, delivery: Delivery) -> None:
        """Write `entry` down, as it is now."""
        if self._outbox is None or entry.recovered is not None:
            return
        payload = None
        if not entry.incarnation_missing and entry.fence is None:
            try:
                payload = delivery.encode(entry).payload
            except RollbookError:
                return  # it ends with this error when its turn comes
        row = Row(entry.key, entry.receipt.id, entry.subject, entry.what, entry.floor, payload)
        self._outbox.save(row, entry.receipt.mark_persisted if payload is not None else None)

    def forget(self, entry: Entry) -> None:
        """`entry` has met its end."""
        if self._outbox is not None:
            self._outbox.forget(entry.key)

    def close(self) -> None:
        """Write what is left to write."""
        if self._outbox is not None:
            self._outbox.close()

    def _entry(self, row: Row, payload: bytes) -> Entry:
        fact: Fact | None = None
        when = ""
        try:
            recorded = self._codec.decode(payload, subject=row.subject, sequence=0)
            fact, when = recorded.fact, recorded.time
        except Undecodable as exc:  # written by a later version; it is sent as it is
            _log.info("publisher.outbox.unknown", id=row.id, fact=row.what, reason=str(exc))
        return Entry(
            Receipt(self._book, row.id, False, True),  # noqa: FBT003 - not done, persisted
            fact,
            time.monotonic(),
            seen=fact.seen if isinstance(fact, WorkerFact) else 0,
            key=row.key,
            subject=row.subject,
            label=row.what,
            time=when,
            floor=row.floor,
            recovered=Draft(row.subject, row.id, payload),
        )
