"""The durable outbox: waiting facts in a SQLite file, written by a thread of its own, for the process that comes next.

What is kept is complete: a fact with its number, or one that needs none. A fact still waiting for its number, and a
probe's verdict, belong to the process that made them; they are noted only so that the next one can report them.

The connection lives on the writer thread's stack and nowhere else. So a forked child, which has no such thread, never
closes it, which would fold the journal under its parent's feet.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import msgspec
import structlog

from rollbook.adapters.publisher.errors import OutboxError, OutboxInUse, OutboxUnusable

_log = structlog.get_logger(__name__)

_APPLICATION: Final = 0x526F6C6C
"""SQLite's application_id of our files: "Roll"."""
_RETRY: Final = 1.0
"""Seconds until a failed write is tried again."""
_BUSY: Final = 0.5
"""Seconds to wait for a process that is just letting go of the file."""


class Row(msgspec.Struct, frozen=True):
    """One waiting fact."""

    key: int
    """Rises in the order of acceptance."""
    id: str
    subject: str
    what: str
    floor: int
    payload: bytes | None
    """None for a fact that only its own process can send."""


def peek(path: Path) -> int:
    """How many facts wait in the file, which must be there. Changes none.

    Raises `OutboxInUse` while a publisher has it, and `OutboxUnusable` for what is no outbox.
    """
    try:
        with contextlib.closing(_open(path)) as database:
            (waiting,) = database.execute("SELECT count(*) FROM facts").fetchone()
            return int(waiting)
    except (sqlite3.Error, OSError) as exc:
        raise _translate(path, exc) from exc


class DurableOutbox:
    """Opens, or makes, the file. Raises `OutboxInUse` or `OutboxUnusable`.

    `rows` is what an earlier process left. `save` and `forget` return at once, from any one thread.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.error: str | None = None
        """Why the file is behind at the moment; None if it is not."""
        self._changes: queue.SimpleQueue[tuple[int, Row | None, Callable[[], None] | None] | None] = queue.SimpleQueue()
        opened: Future[list[Row]] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="rollbook-outbox", daemon=True)
        self._thread.start()
        self.rows = opened.result()

    def save(self, row: Row, saved: Callable[[], None] | None) -> None:
        """Write `row`, in the place of an earlier one of that key. `saved` is called, on the writer's thread, then."""
        self._changes.put((row.key, row, saved))

    def forget(self, key: int) -> None:
        """The fact met its end."""
        self._changes.put((key, None, None))

    def close(self) -> None:
        """Write what is left, if the disk takes it, and close the file."""
        self._changes.put(None)
        self._thread.join()

    # ------------------------------------------------------------ the writer's thread

    def _run(self, opened: Future[list[Row]]) -> None:
        try:
            with contextlib.closing(_open(self.path)) as database:
                rows = [Row(*values) for values in database.execute("SELECT * FROM facts ORDER BY key")]
                opened.set_result(rows)
                self._write_all(database, {row.key for row in rows})
        except Exception as exc:  # noqa: BLE001 - whoever opens it waits for that; a path may be none at all
            if opened.done():
                self._failed(exc)
            else:
                opened.set_exception(_translate(self.path, exc))

    def _write_all(self, database: sqlite3.Connection, on_disk: set[int]) -> None:
        changes: dict[int, tuple[Row | None, Callable[[], None] | None]] = {}
        ended = False
        while not ended:
            ended = self._collect(changes)
            rows = [row for row, _ in changes.values() if row is not None]
            gone = [key for key, (row, _) in changes.items() if row is None and key in on_disk]
            try:
                if rows or gone:
                    _write(database, rows, gone)
            except sqlite3.Error as exc:
                self._failed(exc)
                continue
            if self.error is not None:
                self.error = None
                _log.info("publisher.outbox.recovered", path=str(self.path))
            on_disk.update(row.key for row in rows)
            on_disk.difference_update(gone)
            for _, saved in changes.values():
                if saved is not None:
                    saved()
            changes.clear()

    def _collect(self, changes: dict[int, tuple[Row | None, Callable[[], None] | None]]) -> bool:
        """Wait for a change, take all there are, the newest per key; True when it is time to end."""
        with contextlib.suppress(queue.Empty):
            change = self._changes.get(timeout=_RETRY if changes else None)
            while change is not None:
                key, row, saved = change
                changes[key] = (row, saved)
                change = self._changes.get_nowait()
            return True
        return False

    def _failed(self, exc: Exception) -> None:
        if self.error is None:
            _log.error("publisher.outbox.not_written", path=str(self.path), error=str(exc))
        self.error = f"the outbox {self.path} cannot be written, waiting facts are only in memory: {exc}"


def _write(database: sqlite3.Connection, rows: list[Row], gone: list[int]) -> None:
    with database:
        database.executemany("DELETE FROM facts WHERE key = ?", [(key,) for key in gone])
        database.executemany(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?)", [msgspec.structs.astuple(row) for row in rows]
        )


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY)
    try:
        # Exclusive, so that a second process is refused, and the journal needs no shared memory (network file systems).
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != _APPLICATION and (application or tables):
            raise sqlite3.DatabaseError("it is another program's file")  # noqa: TRY301 - translated like SQLite's own
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        with database:
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(
                "CREATE TABLE IF NOT EXISTS facts (key INTEGER PRIMARY KEY, id TEXT NOT NULL, subject TEXT NOT NULL, "
                "what TEXT NOT NULL, floor INTEGER NOT NULL, payload BLOB)"
            )
    except BaseException:
        database.close()
        raise
    return database


def _translate(path: Path, exc: Exception) -> OutboxError:
    if isinstance(exc, sqlite3.OperationalError) and "locked" in str(exc):
        return OutboxInUse(
            f"the outbox {path} is in use by another process or publisher; every publisher needs a file of its own"
        )
    return OutboxUnusable(f"the outbox {path} cannot be used: {exc}; name a file in a directory that can be written")
