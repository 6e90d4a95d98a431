"""The index of cells: who lives and dies together, by the place that facts and names give to each worker."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

Cells = dict[str, list[str]]
"""`<pool>/<cell>` → names of its workers, in the order in which they were first heard of."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A declared cell."""

    size: int
    cell_incarnation: int


def key_of(pool: str | None, cell: str | None) -> str | None:
    """Where a worker of this place is filed; None if it is of no cell."""
    return None if pool is None or cell is None else f"{pool}/{cell}"


def enter(cells: Cells, key: str | None, name: str) -> None:
    """File `name`, unless it is."""
    if key is not None:
        names = cells.setdefault(key, [])
        if name not in names:
            names.append(name)


def leave(cells: Cells, key: str | None, name: str) -> Iterable[str]:
    """Take `name` out; return who is left there."""
    if key is None or name not in cells.get(key, ()):
        return ()
    names = cells[key]
    names.remove(name)
    if not names:
        del cells[key]
    return names
