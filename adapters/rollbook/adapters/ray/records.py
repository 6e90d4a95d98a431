"""What a manager must know again after its own death, kept where Ray keeps the actors' names: one record per cell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import structlog

from rollbook.adapters.ray.spec import Spec
from rollbook.adapters.ray.store import Store

_log = structlog.get_logger()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One cell."""

    specs: tuple[Spec, ...]
    """Of its workers, by rank."""
    detached: bool
    """Whether the workers' processes outlive their manager."""
    incarnations: dict[str, int] = {}
    """By worker: of its newest life. Who never had one is not in it."""
    cell_incarnation: int = 0
    """Of the cell's newest life; 0 before the first one, and in a cell of one worker."""
    ports: dict[str, dict[str, int]] = {}
    """By worker and kind: of its newest life."""
    numbering: bool = False
    """Whether the log was being asked for the numbers of a life: then it may have given more than are noted here."""
    served: bool = False
    """Whether the newest life came to serve."""
    over: Literal["", "ended", "planned"] = ""
    """Whether the newest life is over, and whether that was as planned."""
    told: bool = True
    """Whether the log has that it is over."""

    @property
    def cell(self) -> str:
        """The cell's key."""
        return self.specs[0].cell_key


class Records:
    """The records of one fleet's manager. Every call blocks for a round trip to Ray's head per record."""

    def __init__(self, fleet: str, store: Store) -> None:
        self._store = store
        self._prefix = f"fleet/{fleet}/".encode()

    def load(self) -> dict[str, Record]:
        """All of them, by cell. What another version wrote and this one cannot read is left out, with a warning."""
        found = map(self._read, self._store.keys(self._prefix))
        return {record.cell: record for record in found if record is not None}

    def get(self, cell: str) -> Record | None:
        """That of one cell, as `load` reads it."""
        return self._read(self._key(cell))

    def save(self, record: Record) -> None:
        """Write or replace the record of one cell."""
        self._store.put(self._key(record.cell), msgspec.json.encode(record), overwrite=True)

    def remove(self, cells: Iterable[str]) -> None:
        """Forget these cells."""
        for cell in cells:
            self._store.delete(self._key(cell))

    def _read(self, key: bytes) -> Record | None:
        data = self._store.get(key)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Record)
        except msgspec.MsgspecError as exc:
            _log.warning("manager.record.unreadable", key=key.decode(errors="replace"), error=str(exc))
            return None

    def _key(self, cell: str) -> bytes:
        return self._prefix + cell.encode()
