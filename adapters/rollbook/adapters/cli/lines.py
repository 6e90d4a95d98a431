"""A fact as one readable line, and the types that a person names."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rollbook.adapters.cli.exits import UsageError
from rollbook.adapters.cli.output import Piece, one_line
from rollbook.events import (
    FACTS,
    Fact,
    InvalidSubject,
    ObservedWorker,
    OperatorFact,
    Recorded,
    Undecodable,
    UnknownFact,
    type_of,
)
from rollbook.events.subjects import entity_of, parse_subject
from rollbook.events.times import rfc3339
from rollbook.projections.ports import Stored

_NOT_SHOWN: Final = frozenset({"seen", "cause", "by"})
"""Sequences that only programs compare, and who decided, which stands at the end of the line."""

_STYLES: Final = {
    "down": "red",
    "failed": "red",
    "unreachable": "red",
    "quarantined": "red",
    "withheld": "yellow",
    "suspected": "yellow",
    "drift_found": "yellow",
    "up": "green",
    "registered": "green",
    "reachable": "green",
}


def resolve_types(wanted: Sequence[str]) -> frozenset[str]:
    """The CloudEvents types that are meant: `worker.down`, `WorkerDown` or the whole type. Raises `UsageError`."""
    return frozenset(_resolve(text) for text in wanted)


def _resolve(text: str) -> str:
    if text.startswith("rollbook."):
        return text  # also a type that this version does not know
    spellings = {short(name): name for name in FACTS} | {cls.__name__.lower(): name for name, cls in FACTS.items()}
    found = spellings.get(text.lower())
    if found is None:
        near = difflib.get_close_matches(text.lower(), [short(name) for name in FACTS], n=1)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(short(name) for name in FACTS)}"
        raise UsageError(f"there is no fact {text!r}; {hint}")
    return found


def short(kind: str) -> str:
    """`rollbook.worker.down.v1` as people say it: `worker.down`."""
    return re.sub(r"\.v[0-9]+$", "", kind.removeprefix("rollbook."))


def describe(stored: Stored, recorded: Recorded) -> list[Piece]:
    """Sequence, time, worker or proxy, fact, what it says, who said it."""
    fact = recorded.fact
    kind = one_line(short(type_of(fact)))
    about = entity_of(fact) or _entity(stored.subject) or "fleet"
    said = describe_fact(fact)
    unknown = " (a type that this version does not know)" if isinstance(fact, UnknownFact) else ""
    return [
        *_place(stored),
        (f"{about:<16}", "bold"),
        "  ",
        (f"{kind:<22}", _style(kind)),
        *(["  ", said] if said else []),
        unknown,
        (f"  by {_author(recorded)}", "dim"),
    ]


def describe_fact(fact: Fact, without: str | None = None) -> str:
    """What a fact says beyond whom it is about: `incarnation=7 evidence=exited`. `without` leaves out a field."""
    return " ".join(f"{key}={_value(value)}" for key, value in _fields(fact) if key != without)


def describe_unreadable(stored: Stored, why: Undecodable) -> list[Piece]:
    """The same for a message that is no fact; its payload is not repeated."""
    about = _entity(stored.subject) or one_line(stored.subject)
    return [*_place(stored), (f"{about:<16}", "bold"), "  ", ("no fact", "red"), f"  {one_line(str(why))}"]


def _author(recorded: Recorded) -> str:
    publisher = one_line(recorded.source.rpartition("/")[2] or recorded.source)
    return f"{_value(recorded.fact.by)} through {publisher}" if isinstance(recorded.fact, OperatorFact) else publisher


def _place(stored: Stored) -> list[Piece]:
    return [(f"{stored.sequence:>7}", "cyan"), "  ", (rfc3339(stored.stored_at), "dim"), "  "]


def _entity(subject: str) -> str | None:
    try:
        return parse_subject(subject).entity
    except InvalidSubject:
        return None


def _style(kind: str) -> str:
    words = kind.rpartition(".")[2]
    return next((style for word, style in _STYLES.items() if words == word or words.endswith("_" + word)), "")


def _fields(fact: Fact) -> list[tuple[str, Any]]:
    """What a fact says beyond whom it is about, without what goes without saying."""
    if isinstance(fact, UnknownFact):
        return [("data", bytes(fact.data).decode(errors="replace"))]
    about = entity_of(fact)
    found: list[tuple[str, Any]] = []
    for name, default in _shown(type(fact)):
        value = getattr(fact, name)
        told_already = name in {"worker", "proxy"} and value == about
        if not told_already and value != default and value not in (None, (), ""):
            found.append((name, value))
    return found


@functools.cache
def _shown(fact: type[Fact]) -> tuple[tuple[str, Any], ...]:
    """The fields that are shown, with their defaults. Kept, because asking msgspec takes longer than all the rest."""
    return tuple((field.name, field.default) for field in msgspec.structs.fields(fact) if field.name not in _NOT_SHOWN)


def _value(value: Any) -> str:
    match value:
        case str():
            return value if re.fullmatch(r"[^\s\"=]{1,200}", value) and value.isprintable() else _quoted(value)
        case tuple():
            return ",".join(_value(item) for item in value)
        case ObservedWorker():
            return f"{value.worker}#{value.incarnation}" + ("" if value.serving else "(starting)")
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _quoted(text: str) -> str:
    return f'"{one_line(text[:200])}"' if not text.isprintable() else json.dumps(text[:200], ensure_ascii=False)
