"""Facts as bytes: CloudEvents 1.0, structured JSON, and back, whatever the bytes are.

Decoding goes the straight way first (one msgspec call per envelope, one for the data). Whatever fails there is
explained in full by `_explain`, which only bad input pays for. Older versions are lifted by `upcasters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec

from rollbook.events.errors import InvalidFact, InvalidSubject, Undecodable, WrongFleet
from rollbook.events.facts import FACTS, Fact, OperatorWorkerFact, ProxyFact, UnknownFact, WorkerFact, type_of
from rollbook.events.names import validate_name
from rollbook.events.recorded import Recorded
from rollbook.events.subjects import entity_of, parse_subject, subject_of
from rollbook.events.upcasters import UPCASTERS, Upcaster

MAX_PAYLOAD: Final = 900_000
"""Bytes. NATS takes 1 MiB with headers; a larger fact is refused before it is sent and quarantined when read."""

DEEPEST: Final = 400
"""Levels of brackets inside each other. Without a bound of our own it is the reader's stack that says how many can be
read, and two readers of one log would not agree about a fact [I5]."""

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A fact ready to be appended: where, under which id, which bytes."""

    subject: str
    id: str
    payload: bytes


# Bounded, because the fold keeps ids, counters have types, and people are shown all of it.
_Short = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Envelope(msgspec.Struct, gc=False):
    specversion: str
    id: _Short
    source: _Short
    type: _Short
    data: msgspec.Raw
    subject: str | None = None
    time: Annotated[str, msgspec.Meta(max_length=64)] = ""


class _EnvelopeOut(msgspec.Struct, omit_defaults=True, gc=False):
    specversion: str
    id: str
    source: str
    type: str
    time: str
    data: Fact
    subject: str | None
    datacontenttype: str


_encoder = msgspec.json.Encoder()
_envelope = msgspec.json.Decoder(_Envelope)
_decoders: Final[dict[str, msgspec.json.Decoder[Fact]]] = {
    name: msgspec.json.Decoder(cls) for name, cls in FACTS.items()
}
# For the straight way only: what stands before the entity in a type's subjects, and the field that holds the entity.
_straight: Final[dict[str, tuple[str, Callable[[Fact], str]]]] = {
    name: (prefix, attrgetter(field))
    for name, cls in FACTS.items()
    for base, prefix, field in (
        (WorkerFact, "worker.", "worker"),
        (ProxyFact, "proxy.", "proxy"),
        (OperatorWorkerFact, "operator.worker.", "worker"),
    )
    if issubclass(cls, base)
}


class Codec:
    """Writes and reads the facts of one fleet.

    `upcasters` maps an older type to the function that lifts its data to the next version; they are applied until a
    type that this version knows comes out.
    """

    def __init__(self, fleet: str, *, upcasters: Mapping[str, Upcaster] = UPCASTERS) -> None:
        self.fleet = validate_name("fleet", fleet)
        self._root = f"rollbook.{fleet}."
        self._source = f"rollbook://{fleet}/"
        self._upcasters = upcasters

    def draft(self, fact: Fact, *, id: str, time: str, publisher: str) -> Draft:  # noqa: A002 - CloudEvents' word
        """Encode `fact`. `id` is a UUIDv7, `time` RFC 3339. Raises `InvalidFact`, `InvalidName` or `InvalidSubject`."""
        entity = entity_of(fact)
        if entity is not None:
            validate_name("worker or proxy", entity)
        subject, kind, source = subject_of(fact, self.fleet), type_of(fact), self._source + publisher
        try:
            payload = _encoder.encode(_EnvelopeOut("1.0", id, source, kind, time, fact, entity, "application/json"))
            _decoders[kind].decode(_envelope.decode(payload).data)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as exc:
            msg = f"{type(fact).__name__} about {entity or self.fleet}: {exc}"
            raise InvalidFact(msg) from exc
        if len(payload) > MAX_PAYLOAD:
            name = type(fact).__name__
            msg = f"{name} about {entity or self.fleet} is {len(payload)} bytes; {MAX_PAYLOAD} are allowed"
            raise InvalidFact(msg)
        return Draft(subject, id, payload)

    def decode(self, payload: bytes, *, subject: str, sequence: int) -> Recorded:
        """Read one message of the log. Raises `Undecodable`, and nothing else, for whatever is not a fact of ours."""
        if len(payload) > MAX_PAYLOAD:
            raise Undecodable("too_large", f"{len(payload)} bytes; {MAX_PAYLOAD} are allowed")
        try:
            envelope = _envelope.decode(payload)
            if len(payload) > 2 * DEEPEST and _too_deep(payload):
                raise Undecodable("not_json", f"it nests deeper than {DEEPEST} levels")
            if envelope.specversion != "1.0":
                raise Undecodable("wrong_specversion", f"specversion {envelope.specversion[:40]!r}; expected '1.0'")
            decoder = _decoders.get(envelope.type)
            fact = self._lift(envelope) if decoder is None else decoder.decode(envelope.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise _explain(payload, exc) from exc
        straight, about = _straight.get(envelope.type), envelope.subject
        if (
            straight is None
            or f"{self._root}{straight[0]}{about}" != subject
            or straight[1](fact) != about
            or not envelope.source.startswith(self._source)
        ):
            self._check(envelope, fact, subject)
        return Recorded(sequence, envelope.id, envelope.time, envelope.source, fact)

    def _lift(self, envelope: _Envelope) -> Fact:
        """An older version lifted to one that is known, or the unknown fact as it is."""
        kind, data = envelope.type, bytes(envelope.data)
        if kind not in self._upcasters:
            msgspec.json.decode(data)  # what is kept can be read later
            return UnknownFact(type=kind, data=msgspec.Raw(data))
        fields = msgspec.json.decode(data, type=dict[str, Any])
        passed: set[str] = set()
        while kind in self._upcasters and kind not in passed:
            passed.add(kind)
            try:
                kind, fields = self._upcasters[kind](fields)
            except Exception as exc:  # whatever it is, it concerns this message only
                detail = f"lifting {kind!r} failed: {type(exc).__name__}: {str(exc)[:200]}"
                raise Undecodable("upcast_failed", detail) from exc
        if kind in FACTS:
            return msgspec.convert(fields, type=FACTS[kind])
        return UnknownFact(type=envelope.type, data=msgspec.Raw(data))

    def _check(self, envelope: _Envelope, fact: Fact, subject: str) -> None:
        """Raise `Undecodable` unless subject, envelope and data agree about fleet, family and entity."""
        try:
            place = parse_subject(subject)
        except InvalidSubject as exc:
            raise Undecodable("invalid_subject", str(exc)) from exc
        if place.fleet != self.fleet:
            msg = f"subject {_shown(subject)} is not of fleet {self.fleet!r}"
            raise WrongFleet(msg)
        if not envelope.source.startswith(self._source):
            msg = f"source {_shown(envelope.source)} is not of fleet {self.fleet!r}"
            raise WrongFleet(msg)
        if isinstance(fact, UnknownFact):  # its fields cannot be asked, and types that are not ours have no family
            strange = fact.type.startswith("rollbook.") and not fact.type.startswith(f"rollbook.{place.family}.")
            about = place.entity
        else:
            strange = subject_of(fact, self.fleet) != subject
            about = entity_of(fact)
        if strange or not envelope.subject == place.entity == about:
            told = f"envelope says {envelope.type!r} about {_shown(envelope.subject)}, its data {_shown(about)}"
            raise Undecodable("subject_mismatch", f"{told}, but it was published on {_shown(subject)}")


def _too_deep(payload: bytes) -> bool:
    """Whether it nests deeper than `DEEPEST`; few have so many brackets that they need to be looked at one by one."""
    if payload.count(b"[") + payload.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", payload)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            return True
    return False


def _shown(text: str | None) -> str:
    """`text` for a message: quoted, and no longer than a line."""
    return repr(text if text is None or len(text) <= 200 else text[:200] + "...")  # noqa: PLR2004 - as said above


def _explain(payload: bytes, exc: Exception) -> Undecodable:
    """Why the bytes could not be read: not JSON at all, or JSON of another shape."""
    detail = str(exc)[:300]
    if isinstance(exc, msgspec.ValidationError):
        return Undecodable("wrong_shape", detail)
    if not payload:
        return Undecodable("empty", "the message has no payload")
    return Undecodable("not_json", detail)
