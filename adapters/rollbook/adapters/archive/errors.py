"""What can be wrong with an archive.

::

    RollbookError
    └── ArchiveError        a file or folder that cannot serve as an archive
        └── DamagedArchive  a file that is not whole, or not as it was written; names the line
"""

from __future__ import annotations

from pathlib import Path

from rollbook.events import RollbookError


class ArchiveError(RollbookError):
    """A file or folder that cannot serve as an archive, or a log that one cannot be made of."""


class DamagedArchive(ArchiveError):
    """A file that is not whole, or not as it was written."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}, line {line}: {problem}. Nothing was written; take another copy of the file")
        self.line = line
