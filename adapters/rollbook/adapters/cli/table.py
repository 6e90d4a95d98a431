"""Columns for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollbook.adapters.cli.output import Piece


def table(rows: Sequence[Sequence[Piece]], *, head: bool = True) -> Iterator[list[Piece]]:
    """Columns as wide as their widest cell; the last one takes the rest of the line. With `head` the first is dim."""

    def text(cell: Piece) -> str:
        return cell if isinstance(cell, str) else cell[0]

    widths = [max(len(text(row[column])) for row in rows) for column in range(len(rows[0]))] if rows else []
    for number, row in enumerate(rows):
        line: list[Piece] = []
        for column, cell in enumerate(row):
            last = column == len(row) - 1
            padded = text(cell) if last else text(cell).ljust(widths[column] + 2)
            style = "dim" if head and number == 0 else ("" if isinstance(cell, str) else cell[1])
            line.append((padded, style) if style else padded)
        yield line
