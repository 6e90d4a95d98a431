"""Writing an archive: under another name until it is whole, so that a file with its name is one that was finished."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import IO, Final

import msgspec

from rollbook.adapters.archive.errors import ArchiveError
from rollbook.adapters.archive.holding import held
from rollbook.adapters.archive.lines import FORMAT, Base, End, Head, Malformed, encode, first_check, pack
from rollbook.events import Codec
from rollbook.projections.history.moments import copy_of, state_at
from rollbook.projections.history.past import Past
from rollbook.projections.state.fold import SCHEMA, State

PART: Final = ".part"
"""Behind the name of a file that is not whole."""
LEVEL: Final = 9
"""zstandard's: facts shrink to about a tenth, at more than the speed at which the log is read."""


class Written(msgspec.Struct, frozen=True):
    """A finished file."""

    path: str
    first: int
    last: int
    digest: str
    """Of the state after the last message."""
    size: int
    """Bytes of the file."""


async def write(past: Past, codec: Codec, span: tuple[int, int], path: Path, *, identity: str, written: str) -> Written:
    """Write everything from `span[0]` to `span[1]`. `identity` is that of the log, `written` the time, RFC 3339.

    A file that begins later than the log holds the state before it, so that it can be read alone. Raises `ArchiveError`
    (also if there is such a file already), `HistoryHole`, `LogUnavailable`; then no file is left.
    """
    first, last = span
    if first > last:
        raise ArchiveError(f"there is nothing to write: the range from {first} to {last} holds no message")
    before = State() if first == 1 else await state_at(past, codec, first - 1)
    state = copy_of(before)
    with _finished(path) as file:
        check = ""
        async for batch in past.read(first, last):
            if not check:
                began_at = batch[0].stored_at
                head = encode(_head(codec.fleet, identity, span, began_at, written, before))
                file.write(head + b"\n")
                check = first_check(head)
            lines: list[bytes] = []
            for stored in batch:
                state.apply(stored, codec)
                try:
                    line, check = pack(stored, check, codec)
                except Malformed as exc:
                    raise ArchiveError(f"{path} cannot be written: {exc}") from exc
                lines.append(line)
            file.write(b"\n".join([*lines, b""]))
        digest = state.digest()
        file.write(encode(End(last=last, check=check, digest=digest, schema=SCHEMA)) + b"\n")
    return Written(str(path), first, last, digest, _size(path))


def _head(fleet: str, identity: str, span: tuple[int, int], began_at: float, written: str, before: State) -> Head:
    base = None
    if before.sequence:
        body = before.encode()
        base = Base(schema=SCHEMA, sequence=before.sequence, digest=before.digest(), body=body)
    return Head(
        format=FORMAT,
        fleet=fleet,
        identity=identity,
        first=span[0],
        last=span[1],
        began_at=began_at,
        written=written,
        base=base,
    )


@contextlib.contextmanager
def _finished(path: Path) -> Generator[IO[bytes]]:
    """A compressed file that gets its name once it is whole and on the disk; nothing is left of one that failed."""
    import zstandard

    part = path.with_name(f"{path.name}{PART}")
    _refuse_existing(path)
    with held(part, f"writing {path.name}") as raw:
        try:
            _refuse_existing(path)
            raw.truncate()  # what somebody who died left
            parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, write_checksum=True)
            with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(raw, closefd=False) as file:
                yield file
            raw.flush()
            os.fsync(raw.fileno())
            part.replace(path)
            _sync_folder(path.parent)
        except OSError as exc:
            raise ArchiveError(f"{path} cannot be written: {exc.strerror or exc}") from exc
        finally:
            part.unlink(missing_ok=True)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ArchiveError(f"{path} is there already: name another file, or move it away")


def _sync_folder(folder: Path) -> None:
    """Let the name survive a power cut, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    return path.stat().st_size
