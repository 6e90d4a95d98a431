"""Reading one archive: every line is checked as it is read, and the file as a whole where it is asked for."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import msgspec

from rollbook.adapters.archive.errors import ArchiveError, DamagedArchive
from rollbook.adapters.archive.lines import FORMAT, End, Head, Malformed, first_check, unpack
from rollbook.projections.ports import Snapshot, Stored

LONGEST_LINE: Final = 1 << 30
"""Bytes. A server takes payloads of up to 64 MiB, which are a third longer here; and the head holds a whole state, 20
MB for 10,000 workers. A file that is no archive does not fill the memory."""

_heads = msgspec.json.Decoder(Head)
_ends = msgspec.json.Decoder(End)


class Line(msgspec.Struct, frozen=True, gc=False):
    """One message, and what a log that is made from the archive holds of it."""

    stored: Stored
    restored: bytes


class ArchiveFile:
    """One file. `open` reads its head; nothing is kept open between two readings.

    Nor is the state before its first message kept, which is as large as the fleet: a folder of months has many files.
    """

    def __init__(self, path: Path, head: Head) -> None:
        self.path = path
        self.head = msgspec.structs.replace(head, base=None)
        """Without its `base`, which is read when it is asked for."""
        self._has_base = head.base is not None

    @classmethod
    def open(cls, path: Path, fleet: str | None = None) -> ArchiveFile:
        """Read its first line. Raises `ArchiveError` for what is none, or another fleet's."""
        head = _read_head(path)
        if fleet is not None and head.fleet != fleet:
            raise ArchiveError(f"{path} is an archive of fleet {head.fleet!r}, and this is {fleet!r}")
        return cls(path, head)

    @property
    def base(self) -> Snapshot | None:
        """The state before its first message, in the form of a snapshot; None for one that begins with the log."""
        base = _read_head(self.path).base if self._has_base else None
        if base is None:
            return None
        return Snapshot(self.head.identity, base.schema, base.sequence, "", base.digest, base.body)

    def messages(self) -> Generator[Line, None, End]:
        """All of them, in order, and in the end the last line.

        Raises `DamagedArchive` at the first line that is not as it was written.
        """
        with _lines(self.path) as lines:
            number, sequence, check = 1, self.head.first - 1, first_check(next(lines, b""))
            for line in lines:
                number += 1
                if line.startswith(b'{"rollbook":"end"'):
                    end = self._ended(line, number, sequence, check)
                    if next(lines, None) is not None:
                        raise DamagedArchive(self.path, number + 1, "something stands after the end of the archive")
                    return end
                try:
                    stored, restored, check = unpack(line, check, sequence + 1)
                except Malformed as exc:
                    raise DamagedArchive(self.path, number, str(exc)) from exc
                sequence += 1
                yield Line(stored, restored)
            raise DamagedArchive(
                self.path, number + 1, "the archive ends here without its last line: it was cut, or is not written yet"
            )

    def verify(self) -> End:
        """Read all of it, and return its last line. Raises `DamagedArchive`."""
        messages = self.messages()
        while True:
            try:
                next(messages)
            except StopIteration as over:
                end: End = over.value
                return end

    def _ended(self, line: bytes, number: int, sequence: int, check: str) -> End:
        try:
            end = _ends.decode(line)
        except msgspec.MsgspecError as exc:
            raise DamagedArchive(self.path, number, f"its last line cannot be read ({exc})") from exc
        if (end.last, self.head.last) != (sequence, sequence):
            told = f"it ends at sequence {sequence}, and {max(end.last, self.head.last)} was written last"
            raise DamagedArchive(self.path, number, f"{told}: lines are missing")
        if end.check != check:
            raise DamagedArchive(self.path, number, "its last line is not that of these messages")
        return end


def _read_head(path: Path) -> Head:
    with _lines(path) as lines:
        return _head(path, next(lines, b""))


def _head(path: Path, line: bytes) -> Head:
    try:
        head = _heads.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ArchiveError(
            f"{path} is no archive: its first line is not the head that `rollbook export` writes"
        ) from exc
    if head.format != FORMAT:
        raise ArchiveError(f"{path} is an archive of format {head.format}; this version reads {FORMAT}")
    return head


@contextlib.contextmanager
def _lines(path: Path) -> Generator[Iterator[bytes]]:
    """The file's lines without their newlines. Damage to its compression is told with the line that it hits."""
    import zstandard

    try:
        raw = path.open("rb")
    except OSError as exc:
        raise ArchiveError(f"{path} cannot be read: {exc.strerror}") from exc
    with raw, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
        yield _split(path, io.BufferedReader(stream, 1 << 20))


def _is_compressed(path: Path) -> bool:
    import zstandard

    with path.open("rb") as raw:
        return raw.read(len(zstandard.FRAME_HEADER)) == zstandard.FRAME_HEADER


def _split(path: Path, reader: io.BufferedReader) -> Iterator[bytes]:
    import zstandard

    number = 0
    while True:
        number += 1
        try:
            line = reader.readline(LONGEST_LINE)
        except zstandard.ZstdError as exc:
            if number == 1 and not _is_compressed(path):
                raise ArchiveError(f"{path} is no archive: it is not compressed with zstandard") from exc
            raise DamagedArchive(path, number, f"the file is damaged here or soon after ({exc})") from exc
        if not line:
            return
        if not line.endswith(b"\n"):
            raise DamagedArchive(path, number, "the line is cut")
        yield line[:-1]
