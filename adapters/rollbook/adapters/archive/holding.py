"""One writer at a time: locks on files, which the kernel lets go of when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import IO

from rollbook.adapters.archive.errors import ArchiveError


@contextlib.contextmanager
def held(path: Path, doing: str) -> Generator[IO[bytes]]:
    """The file at `path`, made if it is not there, open for writing and locked; its content is as it was.

    Raises `ArchiveError` if somebody else holds it, who is `doing` something.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
    except OSError as exc:
        raise ArchiveError(f"{path} cannot be written: {exc.strerror}") from exc
    with contextlib.ExitStack() as stack:
        # What closing would still write belongs to something that failed: what is whole was written out before.
        stack.callback(_close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ArchiveError(f"{path} is held by another process, which is {doing}: wait until it is done") from exc
        except OSError as exc:
            raise ArchiveError(f"{path} cannot be locked: {exc.strerror}") from exc
        if not _is_at(path, file):  # whoever held it until now has moved it away
            raise ArchiveError(f"another process was {doing} at this moment: see what it left, and try again")
        yield file


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        file.close()


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
