"""The settings' structs as msgspec tells of them, with the one thing that it cannot know: a proxy's options.

Decoding, the environment's variables and the reference page all walk the same shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from rollbook.adapters.proxies.kinds import ProxyKind
from rollbook.adapters.proxies.registry import UnusableKind, find_kind
from rollbook.adapters.settings.model import ProxySettings


class FromVariable(msgspec.Struct, frozen=True):
    """A value that an environment variable put into the tree."""

    variable: str
    text: str


def struct_info(struct: type) -> inspect.StructType:
    """What msgspec knows of a struct. Raises `TypeError` for another type."""
    info = inspect.type_info(struct)
    if not isinstance(info, inspect.StructType):
        msg = f"{struct} is not a struct"
        raise TypeError(msg)
    return info


def kind_of(proxy: Mapping[str, Any]) -> ProxyKind | None:
    """The kind that an entry of `[[proxies]]` names, or None for one that is not known."""
    kind = proxy.get("kind")
    name = kind.text if isinstance(kind, FromVariable) else kind
    if not isinstance(name, str):
        return None
    try:
        return find_kind(name)
    except UnusableKind:
        return None


def fields_of(info: inspect.StructType, value: Mapping[str, Any]) -> tuple[inspect.Field, ...]:
    """The fields of a struct, where `value` stands for one; the options of a proxy are the struct that its kind has."""
    kind = kind_of(value) if info.cls is ProxySettings else None
    if kind is None:
        return info.fields
    options = struct_info(kind.options)
    required = any(field.required for field in options.fields)
    return tuple(
        inspect.Field(name=field.name, encode_name=field.encode_name, type=options, required=required)
        if field.name == "options"
        else field
        for field in info.fields
    )


_TOML_NAMES: Final[dict[type[inspect.Type], str]] = {
    inspect.StrType: "a string",
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.VarTupleType: "a list of strings",
}


def without_none(kind: inspect.Type) -> inspect.Type:
    """The type of a field that may be left out; TOML has no null, so None can only be a default."""
    if isinstance(kind, inspect.UnionType):
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        if len(others) == 1:
            return others[0]
    return kind


def expected(kind: inspect.Type) -> str:
    """What a value of this type is called in TOML."""
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(json.dumps(value) for value in kind.values)
    if isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.StructType):
        return "a list of tables ([[...]])"
    return _TOML_NAMES.get(type(kind), "a table")
