"""The whole state: roster and ledger folded together, in stream order, with what could not be read kept aside.

`State.apply` is the only way in. It never raises for a message, whatever its bytes are [I9]; it raises `OutOfOrder` if
it is not handed the very next sequence, because a fold with a gap is a wrong state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from rollbook.events import (
    Codec,
    MessageQuarantined,
    Recorded,
    RollbookError,
    Undecodable,
    UnknownFact,
)
from rollbook.events.archived import without_notes
from rollbook.events.subjects import quarantine_subject
from rollbook.projections.ports import Snapshot, Stored
from rollbook.projections.state.ledger import Ledger, ProxyRecord
from rollbook.projections.state.roster import NOTHING, Change, Roster

SCHEMA: Final = 8
"""The fold's version: raised when the same log would fold to another state. Older snapshots are then passed over."""

_UNREADABLE: Final = Change(ignored="unreadable; see quarantine")
_KEPT: Final = Change(ignored="of a type or version that this Rollbook does not know")


class OutOfOrder(RollbookError):
    """A message was handed to the fold that is not the next one."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"the fold expected sequence {expected} and was handed {got}; read again from {expected}")
        self.expected = expected
        self.got = got


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """A message that is no fact of ours, and why."""

    subject: str
    reason: str
    detail: str


class State(msgspec.Struct, gc=False):
    """All that the log says, up to and including `sequence`."""

    sequence: int = 0
    roster: Roster = msgspec.field(default_factory=Roster)
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    unreadable: dict[int, Unreadable] = {}
    """By sequence: not yet quarantined in the log."""
    quarantined: int = 0
    """How many messages have been, and how many on the quarantine subject itself could not be read."""
    unknown: dict[str, int] = {}
    """By type: facts of types and versions that this Rollbook does not know."""

    def apply(self, stored: Stored, codec: Codec) -> tuple[Recorded | None, Change]:
        """Fold the next message in; return the fact (None if unreadable) and what it changed. Raises `OutOfOrder`."""
        if stored.sequence != self.sequence + 1:
            raise OutOfOrder(self.sequence + 1, stored.sequence)
        self.sequence = stored.sequence
        try:
            recorded = codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
        except Undecodable as exc:
            if stored.subject == quarantine_subject(codec.fleet):
                self.quarantined += 1
            else:
                self.unreadable[stored.sequence] = Unreadable(stored.subject, exc.reason, exc.detail)
            return None, _UNREADABLE
        return recorded, self._fold(recorded)

    def _fold(self, recorded: Recorded) -> Change:
        fact = recorded.fact
        if fact.FAMILY == "worker":
            return self.roster.apply(recorded)
        if fact.FAMILY == "proxy":
            return self.ledger.apply(recorded)
        if isinstance(fact, UnknownFact):
            self.unknown[fact.type] = self.unknown.get(fact.type, 0) + 1
            return _KEPT
        if isinstance(fact, MessageQuarantined):
            if self.unreadable.pop(fact.sequence, None) is not None:
                self.quarantined += 1
            return NOTHING
        return self.roster.apply(recorded)

    def encode(self) -> bytes:
        """Canonical bytes: the same log gives the same ones in every process [I5].

        Dicts keep the order in which the fold filled them, which the log alone decides; so nothing needs sorting.
        """
        return _ENCODER.encode(self)

    def pieces(self) -> Iterator[bytes]:
        """The same bytes one after the other, each made in about a millisecond: for who must not stop for all of them.

        Nothing may be folded in between.
        """
        yield from _pieces(self)

    def digest(self) -> str:
        """SHA-256 of the canonical bytes, hexadecimal."""
        return hashlib.sha256(self.encode()).hexdigest()

    def snapshot(self, identity: str, fact_id: str) -> Snapshot:
        """This state as a snapshot of the log `identity`, whose message at `sequence` is known by `fact_id`."""
        body = self.encode()
        return Snapshot(identity, SCHEMA, self.sequence, fact_id, hashlib.sha256(body).hexdigest(), body)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(State)


_PIECE: Final = 200
"""Entries of a dict that are encoded in one go."""


def _pieces(value: object) -> Iterator[bytes]:
    """MessagePack of a struct, its large dicts a part at a time."""
    if isinstance(value, State | Roster | Ledger | ProxyRecord):
        fields = value.__struct_fields__
        yield _head_of_map(len(fields))
        for field in fields:
            yield _ENCODER.encode(field)
            yield from _pieces(getattr(value, field))
    elif isinstance(value, dict) and (len(value) > _PIECE or isinstance(next(iter(value.values()), None), ProxyRecord)):
        yield _head_of_map(len(value))
        yield from _pieces_of_items(value.items())
    else:
        yield _ENCODER.encode(value)


def _pieces_of_items(items: Iterable[tuple[Any, Any]]) -> Iterator[bytes]:
    part = bytearray()
    for number, (key, value) in enumerate(items, 1):
        _ENCODER.encode_into(key, part, -1)
        if isinstance(value, ProxyRecord):
            yield bytes(part)
            part.clear()
            yield from _pieces(value)
            continue
        _ENCODER.encode_into(value, part, -1)
        if number % _PIECE == 0:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def _head_of_map(size: int) -> bytes:
    """How MessagePack begins a map of `size` entries."""
    if size < 0x10:  # noqa: PLR2004 - MessagePack's own limits
        return bytes((0x80 | size,))
    if size < 0x1_0000:  # noqa: PLR2004
        return b"\xde" + size.to_bytes(2, "big")
    return b"\xdf" + size.to_bytes(4, "big")


def restore(snapshot: Snapshot) -> State | None:
    """The state that a snapshot holds, or None if it is another version's or damaged."""
    if snapshot.schema != SCHEMA or hashlib.sha256(snapshot.body).hexdigest() != snapshot.digest:
        return None
    try:
        state = _DECODER.decode(snapshot.body)
    except msgspec.MsgspecError:
        return None
    return state if state.sequence == snapshot.sequence else None


def message_id(stored: Stored) -> str:
    """What a snapshot notes of the message at its sequence, whatever its bytes are; the same after an archive."""
    return hashlib.sha256(stored.subject.encode() + b"\0" + without_notes(stored.payload)).hexdigest()
