"""Facts as bytes: CloudEvents 1.0, structured JSON, and back, whatever the bytes are.

Decoding goes the straight way first (one msgspec call per envelope, one for the data). Whatever fails there is
explained in full by `_explain`, which only bad input pays for. Older versions are upcast in `Codec.upcasters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rollbook.events.errors import EventError, InvalidFact, InvalidSubject, Undecodable, WrongFleet
from rollbook.events.facts import FACTS, Fact, UnknownFact, type_of
from rollbook.events.names import validate_name
from rollbook.events.recorded import Recorded
from rollbook.events.subjects import parse_subject, subject_of

MAX_PAYLOAD: Final = 900_000
"""Bytes. NATS takes 1 MiB with headers; a fact larger than this is refused before it is sent and quarantined when read."""

Upcaster = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]
"""Takes the data of an older version and returns the next version's type and data."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A fact ready to be appended: where, under which id, which bytes."""

    subject: str
    id: str
    payload: bytes


class _Envelope(msgspec.Struct, gc=False):
    specversion: str
    id: str
    source: str
    type: str
    data: msgspec.Raw
    subject: str | None = None
    time: str = ""


class _EnvelopeOut(msgspec.Struct, omit_defaults=True, gc=False):
    specversion: str
    id: str
    source: str
    type: str
    time: str
    data: Fact | msgspec.Raw
    subject: str | None = None
    datacontenttype: str = ""


_encoder = msgspec.json.Encoder()
_envelope = msgspec.json.Decoder(_Envelope)
_decoders: Final[dict[str, msgspec.json.Decoder[Fact]]] = {
    name: msgspec.json.Decoder(cls) for name, cls in FACTS.items()
}
_FAMILY: Final = {name: cls.FAMILY for name, cls in FACTS.items()}


class Codec:
    """Writes and reads the facts of one fleet.

    `upcasters` maps an older type to the function that lifts its data to the next version; they are applied until a
    type that this version knows comes out.
    """

    def __init__(self, fleet: str, *, upcasters: Mapping[str, Upcaster] | None = None) -> None:
        self.fleet = validate_name("fleet", fleet)
        self._source = f"rollbook://{fleet}/"
        self._upcasters = dict(upcasters or {})
        self._entities: dict[str, tuple[str, str | None]] = {}

    def draft(self, fact: Fact, *, id: str, time: str, publisher: str) -> Draft:  # noqa: A002 - CloudEvents' word
        """Encode `fact`. `id` is a UUIDv7, `time` RFC 3339. Raises `InvalidFact`, `InvalidName` or `InvalidSubject`."""
        subject = subject_of(fact, self.fleet)
        entity = parse_subject(subject).entity
        if entity is not None:
            validate_name("worker or proxy", entity)
        data: Fact | msgspec.Raw = fact.data if isinstance(fact, UnknownFact) else fact
        payload = _encoder.encode(
            _EnvelopeOut("1.0", id, self._source + publisher, type_of(fact), time, data, entity, "application/json")
        )
        try:
            if not isinstance(fact, UnknownFact):
                _decoders[type_of(fact)].decode(_encoder.encode(fact))
        except msgspec.ValidationError as exc:
            msg = f"{type(fact).__name__} about {entity or self.fleet}: {exc}"
            raise InvalidFact(msg) from exc
        if len(payload) > MAX_PAYLOAD:
            msg = f"{type(fact).__name__} about {entity or self.fleet} is {len(payload)} bytes; {MAX_PAYLOAD} are allowed"
            raise InvalidFact(msg)
        return Draft(subject, id, payload)

    def decode(self, payload: bytes, *, subject: str, sequence: int) -> Recorded:
        """Read one message of the log. Raises `Undecodable`, and nothing else, for whatever is not a fact of ours."""
        try:
            envelope = _envelope.decode(payload)
            decoder = _decoders.get(envelope.type)
            if decoder is None or envelope.specversion != "1.0" or len(payload) > MAX_PAYLOAD:
                return self._rare(payload, envelope, subject, sequence)
            fact = decoder.decode(envelope.data)
            family, entity = self._entities.get(subject) or self._entity(subject)
            if (
                envelope.subject != entity
                or _FAMILY[envelope.type] != family
                or not envelope.source.startswith(self._source)
                or (entity is not None and _about(fact) != entity)
            ):
                raise self._mismatch(envelope, fact, subject)
        except EventError as exc:
            raise exc if isinstance(exc, Undecodable) else Undecodable("invalid_fact", str(exc)) from exc
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise _explain(payload, exc) from exc
        return Recorded(sequence, envelope.id, envelope.time, envelope.source, fact)

    def _entity(self, subject: str) -> tuple[str, str | None]:
        try:
            parsed = parse_subject(subject)
        except InvalidSubject as exc:
            raise Undecodable("invalid_subject", str(exc)) from exc
        if parsed.fleet != self.fleet:
            msg = f"subject {subject!r} is another fleet's, not {self.fleet!r}'s"
            raise WrongFleet(msg)
        if len(self._entities) > 200_000:  # noqa: PLR2004 - a bound on garbage names, far above any fleet
            self._entities.clear()
        found = self._entities[subject] = (parsed.family, parsed.entity)
        return found

    def _rare(self, payload: bytes, envelope: _Envelope, subject: str, sequence: int) -> Recorded:
        """Another CloudEvents version, an oversized message, an older version to upcast, or an unknown type."""
        if len(payload) > MAX_PAYLOAD:
            raise Undecodable("too_large", f"{len(payload)} bytes; {MAX_PAYLOAD} are allowed")
        if envelope.specversion != "1.0":
            raise Undecodable("wrong_specversion", f"specversion {envelope.specversion[:40]!r}; expected '1.0'")
        self._entity(subject)
        if not envelope.source.startswith(self._source):
            raise self._mismatch(envelope, None, subject)
        kind, data = envelope.type, bytes(envelope.data)
        upcast = self._upcasters.get(kind)
        if upcast is None:
            fact: Fact = UnknownFact(type=kind, data=msgspec.Raw(data))
            return Recorded(sequence, envelope.id, envelope.time, envelope.source, fact)
        fields = msgspec.json.decode(data, type=dict[str, Any])
        while upcast is not None:
            kind, fields = upcast(fields)
            upcast = self._upcasters.get(kind)
        lifted = _EnvelopeOut(
            "1.0", envelope.id, envelope.source, kind, envelope.time, msgspec.Raw(_encoder.encode(fields)), envelope.subject
        )
        return self.decode(_encoder.encode(lifted), subject=subject, sequence=sequence)

    def _mismatch(self, envelope: _Envelope, fact: Fact | None, subject: str) -> Undecodable:
        if not envelope.source.startswith(self._source):
            return WrongFleet(f"source {envelope.source[:200]!r} is not of fleet {self.fleet!r}")
        told = f"envelope says {envelope.type[:80]} about {envelope.subject!r}"
        inner = f", its data {_about(fact)!r}" if fact is not None else ""
        return Undecodable("subject_mismatch", f"{told}{inner}, but it was published on {subject!r}")


def _about(fact: Fact) -> str | None:
    """The worker or proxy that the data names."""
    if fact.FAMILY == "proxy":
        return fact.proxy  # type: ignore[attr-defined,no-any-return]
    return getattr(fact, "worker", None) or getattr(fact, "proxy", None)


def _explain(payload: bytes, exc: Exception) -> Undecodable:
    """Why the straight way failed: not JSON at all, or JSON of another shape."""
    detail = str(exc)[:300]
    if isinstance(exc, msgspec.ValidationError):
        return Undecodable("wrong_shape", detail)
    if not payload:
        return Undecodable("empty", "the message has no payload")
    return Undecodable("not_json", detail)
