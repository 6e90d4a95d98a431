"""The page docs/events.md: every fact with its fields, made from the code; the examples are the golden files.

`python -m rollbook.adapters.catalogue` prints it, at the root of a checkout: only there are the golden files.
"""

from __future__ import annotations

import inspect as python
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from rollbook.adapters.docstrings import field_docstrings, one_line
from rollbook.events import FACTS, Fact, upcasters
from rollbook.events.facts.base import MAX_INTEGER

EXAMPLES: Final = Path("tests/golden/facts")

_SUBJECTS: Final = {
    "worker": ("Workers", "`rollbook.<fleet>.worker.<worker>`"),
    "fleet": ("The fleet", "`rollbook.<fleet>.fleet`"),
    "operator": (
        "Operators",
        "`rollbook.<fleet>.operator.worker.<worker>`, `….operator.proxy.<proxy>` and `….operator.fleet`",
    ),
    "proxy": ("Proxies", "`rollbook.<fleet>.proxy.<proxy>`"),
    "quarantine": ("Quarantine", "`rollbook.<fleet>.quarantine`"),
}

_INTRODUCTION: Final = """\
# Events

Made from `rollbook.events` by `make docs`; the tests check that it is current.

Everything that happens in a fleet is a fact in its log: past tense, never changed. This is the catalogue of them.

## How a fact travels

As a CloudEvent 1.0 in structured JSON, on the NATS subject of whom it is about.

| attribute | is |
|---|---|
| `specversion` | `1.0` |
| `id` | a UUIDv7; also the `Nats-Msg-Id`, by which a repetition is recognised |
| `source` | `rollbook://<fleet>/<publisher>`: who said it |
| `type` | `rollbook.<family>.<fact>.v<N>`, the fact in snake case without its family's word |
| `subject` | the worker or proxy that it is about; none for the fleet as a whole |
| `time` | RFC 3339, by the author's clock: for people, never compared |
| `datacontenttype` | `application/json` |
| `data` | the fields below; what has a default may be left out |

The log adds the sequence, the only order there is, and the time by its own clock. A message that is no fact of ours, or
that disagrees with the subject it was published on, is quarantined: noted with its reason and passed over. Types and
fields that this version does not know are kept, counted and passed over. A payload has at most 900,000 bytes, an
integer at most 2^53-1; a *name* has 1 to 128 of the letters `A-Z a-z 0-9 _ -`.

## Versions

A released fact is never edited: logs hold its bytes for ever, and so do the golden files in `tests/golden/facts`.

- **A new field with a default** that means "as before" needs no new version. Older programs pass over it.
- **Another meaning, or a field that goes away**, is a new version: a new type with the next number. The old one stays
  readable through an *upcaster*, a function from its data to the next version's type and data. The fold sees the newest
  version only, so there is one rule for it and not one for each version. The log keeps what was written.
- **A fold that changes** raises `SCHEMA` in `projections/state/fold.py`: snapshots of the older fold are passed over,
  and `tests/golden/logs` shows what whole logs fold to before and after.

An older program keeps a newer version's fact as unknown and acts as if it had not been said, until it is updated; so
controllers are updated before those who publish.

### Worked example: RemovalWithheld

Version 1 named the pool whose removals were withheld, and said `-` for workers of no known pool. But `-` is a name that
a pool may have, so `-` said two things. Version 2 leaves `pool` out instead. What it took:

1. The field became `pool: Name | None = None`, and the class `VERSION = 2`: its type is now
   `rollbook.proxy.removal_withheld.v2`.
2. An upcaster, in `rollbook/events/upcasters.py`, and a line for it in `UPCASTERS`:
"""

_AFTER_THE_EXAMPLE: Final = """
3. The bytes of version 1 stay in `tests/golden/facts`, beside those of version 2. A test reads both as the same fact.
4. `SCHEMA` went from 2 to 3, because the same log now folds to `""` where it folded to `-`.

In one log, both are read as version 2:

| stored | read as |
|---|---|
| `v1` with `"pool": "rollout"` | `pool = "rollout"` |
| `v1` with `"pool": "-"` | no pool |
| `v2` without a pool | no pool |
| `v2` with `"pool": "-"` | the pool named `-` |

`rollbook log --json`, `export` and `import` keep the version that was written."""


def page(examples: Path = EXAMPLES) -> Iterator[str]:
    """`docs/events.md`, line by line. `examples` is the folder of the golden files."""
    yield from _INTRODUCTION.splitlines()
    yield ""
    for line in python.getsource(upcasters.removal_withheld_v1).rstrip().splitlines():
        yield f"       {line}".rstrip()
    yield from _AFTER_THE_EXAMPLE.splitlines()
    for family, (title, subject) in _SUBJECTS.items():
        yield ""
        yield f"## {title}"
        yield ""
        yield f"On {subject}."
        kinds = {kind: cls for kind, cls in FACTS.items() if family == cls.FAMILY}
        common = _common(list(kinds.values()))
        if common:
            yield ""
            yield "Every one of them has:"
            yield ""
            yield from _table(next(iter(kinds.values())), common)
        for kind, cls in kinds.items():
            yield from _fact(kind, cls, common, examples)


def _common(classes: list[type[Fact]]) -> set[str]:
    """The fields of a whole family."""
    if len(classes) == 1:
        return set()
    return set.intersection(*(set(cls.__struct_fields__) for cls in classes))


def _fact(kind: str, cls: type[Fact], common: set[str], examples: Path) -> Iterator[str]:
    yield ""
    yield f"### {cls.__name__}"
    yield ""
    yield one_line((cls.__doc__ or "").partition("\n\n")[0])
    yield ""
    yield f"`{kind}`, published by {cls.PUBLISHED_BY}."
    yield ""
    if own := set(cls.__struct_fields__) - common:
        yield from _table(cls, own)
        yield ""
    data = msgspec.json.decode((examples / f"{kind}.json").read_bytes(), type=dict[str, Any])["data"]
    yield f"    {msgspec.json.encode(data).decode()}"


def _table(cls: type[Fact], fields: set[str]) -> Iterator[str]:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - a fact is a struct
    told = field_docstrings(cls)
    yield "| field | is | default | |"
    yield "|---|---|---|---|"
    for field in info.fields:
        if field.name in fields:
            yield f"| `{field.name}` | {_kind(field)} | {_default(field)} | {one_line(told[field.name])} |"


def _kind(field: inspect.Field) -> str:
    kind = field.type
    if isinstance(kind, inspect.UnionType):
        kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    if field.name.endswith("_seconds"):
        return "seconds"
    return _name(kind)


def _name(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in sorted(values, key=str))
        case inspect.CollectionType(item_type=item):
            return f"a list of {_name(item)}s"
        case inspect.IntType(ge=least):
            return "integer" if least in {None, -MAX_INTEGER} else f"integer, from {least}"
        case inspect.FloatType():
            return "number"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(pattern=None, max_length=None):
            return "text"
        case inspect.StrType(pattern=None):
            return "URL"
        case inspect.StrType():
            return "name"
        case inspect.StructType():
            return "object"
        case _:
            return type(kind).__name__


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default in {None, "", ()} or field.default is msgspec.NODEFAULT:
        return ""
    return f"`{msgspec.json.encode(field.default).decode()}`"


if __name__ == "__main__":
    print("\n".join(page()))  # noqa: T201 - this is the generator of the page
