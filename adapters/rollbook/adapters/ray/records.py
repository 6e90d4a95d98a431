"""What a manager must know again after its own death, kept where Ray keeps the actors' names.

One record per cell in the key-value store of Ray's head. It lives as long as the cluster that runs the workers; so
there is no file whose node could be gone, and nothing to clean up when the cluster is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
import structlog

from rollbook.adapters.ray.spec import Spec

_STORE: Final = b"rollbook"

_log = structlog.get_logger()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One cell."""

    specs: tuple[Spec, ...]
    """Of its workers, by rank."""
    manager: str
    """Ray's id of the manager actor that wrote this; the same after a restart of that actor."""
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
    over: Literal["", "ended", "planned"] = ""
    """Whether the newest life is over, and whether that was as planned."""
    told: bool = True
    """Whether the log was told that it is over."""

    @property
    def cell(self) -> str:
        """The cell's key."""
        return self.specs[0].cell_key


class Records:
    """The records of one fleet's manager. Every call blocks for a round trip to Ray's head per record."""

    def __init__(self, fleet: str) -> None:
        # Ray's own way to its head's store has no public name; Ray's libraries (Serve, Train) use this one.
        from ray.experimental import internal_kv

        store = vars(internal_kv)
        self._list, self._get = store["_internal_kv_list"], store["_internal_kv_get"]
        self._put, self._delete = store["_internal_kv_put"], store["_internal_kv_del"]
        self._prefix = f"fleet/{fleet}/".encode()

    def load(self) -> dict[str, Record]:
        """All of them, by cell. What another version wrote and this one cannot read is left out, with a warning."""
        found: dict[str, Record] = {}
        for key in self._list(self._prefix, namespace=_STORE):
            data = self._get(key, namespace=_STORE)
            try:
                record = msgspec.json.decode(data or b"", type=Record)
            except msgspec.MsgspecError as exc:
                _log.warning("manager.record.unreadable", key=key.decode(errors="replace"), error=str(exc))
            else:
                found[record.cell] = record
        return found

    def save(self, record: Record) -> None:
        """Write or replace the record of one cell."""
        self._put(self._key(record.cell), msgspec.json.encode(record), overwrite=True, namespace=_STORE)

    def remove(self, cells: Iterable[str]) -> None:
        """Forget these cells."""
        for cell in cells:
            self._delete(self._key(cell), namespace=_STORE)

    def _key(self, cell: str) -> bytes:
        return self._prefix + cell.encode()
