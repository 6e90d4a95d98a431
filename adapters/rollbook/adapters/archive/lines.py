"""An archive line by line: a head, one CloudEvent for each message, and an end.

Each line of a message carries a check over its content and the check before it. So the first line that was changed,
moved, doubled or left out is the one whose check does not fit, whatever became of the rest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, Final

import msgspec

from rollbook.events import Codec, Undecodable
from rollbook.events.archived import Notes, add_notes, read_notes, without_notes
from rollbook.projections.ports import Stored

FORMAT: Final = 1
_CHECKED: Final = re.compile(rb'\{"archivedcheck":"(?P<check>[0-9a-f]{16})",')
_OPAQUE: Final = "rollbook.archive.opaque"
_IS_OPAQUE: Final = re.compile(
    rb'\{"specversion":"1\.0","id":"[0-9]+","source":"[^"\\]+","type":"rollbook\.archive\.opaque",'
)
"""How `_body` begins such a line. No fact of a log does: its type would be of no family."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The state before the first message of an archive that does not begin with the log."""

    schema: int
    sequence: int
    digest: str
    body: bytes


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="rollbook", tag="archive"):
    """The first line."""

    format: int
    fleet: str
    identity: str
    """Of the log that it was written from."""
    first: int
    last: int
    """Sequences, both included; `last` is `first - 1` if there is no message."""
    began_at: float
    """When the first message was stored, seconds since the epoch; 0 if there is none."""
    written: str
    """RFC 3339."""
    base: Base | None = None
    """None for an archive that begins at sequence 1."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="rollbook", tag="end"):
    """The last line: without it, the archive is not whole."""

    last: int
    check: str
    """Of the last message."""
    digest: str
    """Of the state after the last message, SHA-256, hexadecimal."""
    schema: int
    """The fold's version that gave this digest."""


class _Opaque(msgspec.Struct, frozen=True):
    data_base64: str


class Malformed(Exception):
    """What is wrong with a line. Always caught where its number is known."""


_encoder = msgspec.json.Encoder()
_opaques = msgspec.json.Decoder(_Opaque)


def encode(line: Head | End) -> bytes:
    """A head or an end as a line, without its newline."""
    return _encoder.encode(line)


def first_check(head: bytes) -> str:
    """The check that the first message follows: that of the head."""
    return next_check("", head)


def pack(stored: Stored, check: str, codec: Codec) -> tuple[bytes, str]:
    """A message as a line (without its newline) after the line with `check`, and the new line's check."""
    body = _body(stored, codec)
    fresh = next_check(check, body)
    return b'{"archivedcheck":"' + fresh.encode() + b'",' + body[1:], fresh


def next_check(check: str, body: bytes) -> str:
    """The check of a line that follows one with `check`."""
    return hashlib.sha256(check.encode() + body).hexdigest()[:16]


def _body(stored: Stored, codec: Codec) -> bytes:
    """The line without its check: what a log made from it holds."""
    notes = Notes(stored.sequence, stored.stored_at, stored.subject)
    if _is_fact(stored, codec):
        noted_before = read_notes(stored.payload)
        if noted_before is not None and (noted_before.sequence, noted_before.subject) == (
            notes.sequence,
            notes.subject,
        ):
            return stored.payload  # of a log that was itself made from an archive
        if (noted := add_notes(stored.payload, notes)) is not None:
            return noted
    opaque: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{stored.sequence}",
        "source": f"rollbook://{codec.fleet}/archive",
        "type": _OPAQUE,
        "data_base64": base64.b64encode(stored.payload).decode(),
    }
    noted = add_notes(_encoder.encode(opaque), notes)
    if noted is None:
        raise Malformed(f"sequence {stored.sequence} cannot be written down: its time is {stored.stored_at}")
    return noted


def _is_fact(stored: Stored, codec: Codec) -> bool:
    """Whether it can stand as it is, on one line. All else, whatever its bytes are, is packed [I9]."""
    if b"\n" in stored.payload:
        return False
    try:
        codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
        stored.payload.decode()
    except (Undecodable, UnicodeDecodeError):
        return False
    return True


def unpack(line: bytes, check: str, sequence: int) -> tuple[Stored, bytes, str]:
    """A line as the message at `sequence`, what a log made from it holds, and its check. Raises `Malformed`."""
    found = _CHECKED.match(line)
    if found is None:
        raise Malformed("it is no message of an archive")
    body = b"{" + line[found.end() :]
    notes = read_notes(body)
    if notes is None:
        raise Malformed("it does not say which message it is")
    if notes.sequence != sequence:
        raise Malformed(_order(notes.sequence, sequence))
    said = found["check"].decode()
    if said != next_check(check, body):
        raise Malformed(f"it (sequence {sequence}) was changed after it was written: its check does not fit")
    payload, restored = without_notes(body), body
    if _IS_OPAQUE.match(payload):
        try:
            payload = restored = base64.b64decode(_opaques.decode(payload).data_base64, validate=True)
        except (msgspec.MsgspecError, ValueError) as exc:
            raise Malformed(f"its content cannot be read ({exc})") from exc
    return Stored(sequence, notes.subject, payload, notes.stored_at), restored, said


def _order(found: int, expected: int) -> str:
    if found < expected:
        return f"sequence {found} stands there again, where {expected} belongs: it was doubled or moved"
    return f"sequence {found} stands where {expected} belongs: lines are missing or were moved"
