"""From a tree of plain values to structs, with every problem and not only the first.

msgspec alone stops at the first wrong value. So the tree is walked along the structs' types first: unknown keys,
missing keys, wrong types and failed checks are collected with their paths, and only a tree without any is converted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import inspect

from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.checks import (
    EXAMPLES,
    FIELD_CHECKS,
    KEY_CHECKS,
    LEAF_CHECKS,
    Check,
    Problem,
    admin_url_problem,
)
from rollbook.adapters.settings.model import ProxySettings
from rollbook.adapters.settings.shapes import FromVariable, expected, fields_of, kind_of, struct_info, without_none
from rollbook.adapters.settings.together import check_together
from rollbook.adapters.spelling import suggestion

_T = TypeVar("_T")
Path = tuple[str | int, ...]
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_IN_CLEAR: Final = 'a secret in clear: change it, and write { env = "NAME" } or { file = "path" }'


def format_path(path: Path) -> str:
    """The path of a key as people write it: `proxies[0].admin_url`, with quotes where TOML wants them."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE.fullmatch(step) else json.dumps(step))
    return text


def decode(tree: Mapping[str, Any], into: type[_T], *, where: str) -> tuple[_T | None, list[str]]:
    """Convert `tree` to `into`; or None and all problems, each one line: `where` or a variable's name, key, what."""
    walk = _Walk()
    good = walk.struct(struct_info(into), tree, ())
    walk.problems.extend(check_together(good or {}))
    if walk.problems:
        return None, [_line(walk.variables, path, problem, where) for path, problem in walk.problems]
    return msgspec.convert(good, into), []


def _example(info: inspect.StructType, field: inspect.Field, value: Mapping[str, Any]) -> str:
    """What to write for a key that is missing."""
    if info.cls is ProxySettings and field.name == "admin_url":
        kind = kind_of(value)
        return f'admin_url = "{kind.example if kind else "http://host:port"}"; it has no default'
    if isinstance(field.type, inspect.StructType) and info.cls is ProxySettings:
        needed = ", ".join(option.encode_name for option in field.type.fields if option.required)
        return f"[proxies.options] with {needed}"
    example = EXAMPLES.get((info.cls, field.encode_name))
    return example or f"{field.encode_name} = ..., {expected(without_none(field.type))}"


def _line(variables: Mapping[Path, str], path: Path, problem: str, where: str) -> str:
    if path in variables:
        return f"{variables[path]}: {problem}"
    return f"{where}: {format_path(path)}: {problem}" if path else f"{where}: {problem}"


class _Walk:
    """One pass over a tree.

    Each method returns its value with None for what is wrong in it (TOML has no null); `problems` says what that is.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.variables: dict[Path, str] = {}

    def struct(self, info: inspect.StructType, value: Any, path: Path) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            self.problems.append((path, f"{describe(value)} where {expected(info)} is needed"))
            return None
        before = len(self.problems)
        good: dict[str, Any] = {}
        tag = info.tag_field
        if tag is not None:
            good[tag] = info.tag
        fields = fields_of(info, value)
        known = [*([tag] if tag is not None else []), *(field.encode_name for field in fields)]
        for key in value:
            if key not in known:
                self.problems.append(((*path, key), f"unknown key; {suggestion(key, known)}"))
        for field in fields:
            here = (*path, field.encode_name)
            if field.encode_name in value:
                good[field.encode_name] = self.field(info.cls, field, value[field.encode_name], here)
            elif field.required:
                self.problems.append((here, f"is missing; write {_example(info, field, value)}"))
        if info.cls is ProxySettings:
            self.admin_url(good, path)
        elif len(self.problems) == before and hasattr(info.cls, "__post_init__"):
            self.whole(info, good, path)
        return good

    def secret(self, info: inspect.StructType, value: Any, path: Path) -> dict[str, Any] | None:
        """A reference to a secret. Whatever else stands there may be the secret itself, and is not repeated."""
        if not isinstance(value, Mapping):
            self.problems.append((path, _IN_CLEAR if isinstance(value, str) else _REFERENCE))
            return None
        good = self.struct(info, value, path)
        if sum(key in value for key in ("env", "file")) != 1:
            self.problems.append((path, _REFERENCE))
        return good

    def admin_url(self, good: dict[str, Any], path: Path) -> None:
        """Where a proxy's admin API can be: that depends on its kind."""
        kind, url = kind_of(good), good.get("admin_url")
        problem = None if kind is None or url is None else admin_url_problem(kind, url)
        if problem is not None:
            self.problems.append(((*path, "admin_url"), problem))
            good["admin_url"] = None

    def whole(self, info: inspect.StructType, good: dict[str, Any], path: Path) -> None:
        """What a struct itself has against its values together: options of a kind may."""
        try:
            msgspec.convert(good, info.cls)
        except msgspec.ValidationError as exc:
            self.problems.append((path, str(exc).partition(" - at `")[0]))

    def field(self, owner: type, field: inspect.Field, value: Any, path: Path) -> Any:
        """The good part of one field's value, or None."""
        kind = without_none(field.type)
        at = (owner, field.encode_name)
        if isinstance(kind, inspect.DictType):
            return self.table(kind, value, path, KEY_CHECKS.get(at, ()), LEAF_CHECKS.get(at))
        found = self.value(kind, value, path)
        check = FIELD_CHECKS.get(at)
        problem = check(found) if check is not None and found is not None else None
        if problem is not None:
            self.problems.append((path, problem))
            return None
        return found

    def table(
        self, kind: inspect.DictType, value: Any, path: Path, keys: Sequence[Check], leaf: Check | None
    ) -> dict[str, Any] | None:
        """A table whose keys are free names: `keys` has a check for each depth, `leaf` is for the innermost values."""
        if not isinstance(value, Mapping):
            self.problems.append((path, f"{describe(value)} where {expected(kind)} is needed"))
            return None
        good: dict[str, Any] = {}
        inner = without_none(kind.value_type)
        for key, item in value.items():
            here = (*path, key)
            if keys and (problem := keys[0](key)) is not None:
                self.problems.append((here, problem))
            if isinstance(inner, inspect.DictType):
                good[key] = self.table(inner, item, here, keys[1:], leaf)
                continue
            good[key] = found = self.value(inner, item, here)
            if found is not None and leaf is not None and (problem := leaf(found)) is not None:
                self.problems.append((here, problem))
        return good

    def value(self, kind: inspect.Type, value: Any, path: Path) -> Any:
        """The good part of a value that is no table of free names, or None."""
        match kind:
            case inspect.StructType(cls=cls) if cls is SecretRef:
                return self.secret(kind, value, path)
            case inspect.StructType():
                return self.struct(kind, value, path)
            case inspect.UnionType():
                return self.choice(kind, value, path)
            case inspect.VarTupleType(item_type=inspect.StructType() as item):
                if not isinstance(value, list):
                    self.problems.append((path, f"{describe(value)} where {expected(kind)} is needed"))
                    return None
                return [self.struct(item, one, (*path, index)) for index, one in enumerate(value)]
            case _:
                return self.leaf(kind, value, path)

    def choice(self, kind: inspect.UnionType, value: Any, path: Path) -> Any:
        """One of several structs, told apart by the key that names its kind."""
        structs = {one.tag: one for one in kind.types if isinstance(one, inspect.StructType)}
        tag_field = next(iter(structs.values())).tag_field or "kind"
        if not isinstance(value, Mapping):
            self.problems.append((path, f"{describe(value)} where a table with a {tag_field} is needed"))
            return None
        here = (*path, tag_field)
        kinds = " or ".join(json.dumps(tag) for tag in structs)
        if tag_field not in value:
            self.problems.append((here, f"is missing; write {kinds}"))
            return None
        tag = value[tag_field]
        if isinstance(tag, FromVariable):
            self.variables[here] = tag.variable
            tag = tag.text
        if not isinstance(tag, str) or tag not in structs:
            self.problems.append((here, f"{describe(tag)} where {kinds} is needed"))
            return None
        return self.struct(structs[tag], value, path)

    def leaf(self, kind: inspect.Type, value: Any, path: Path) -> Any:
        """A plain value, converted by msgspec; from a variable also from text."""
        shown = value
        strict = True
        if isinstance(value, FromVariable):
            self.variables[path] = value.variable
            shown, strict = value.text, False
            value = value.text
            if isinstance(kind, inspect.VarTupleType):
                value = [part.strip() for part in value.split(",") if part.strip()]
        try:
            return msgspec.to_builtins(
                msgspec.convert(value, _PYTHON_TYPES.get(type(kind)) or _literal(kind), strict=strict)
            )
        except msgspec.ValidationError:
            self.problems.append((path, f"{describe(shown)} where {expected(kind)} is needed"))
            return None


_REFERENCE: Final = 'needs exactly one of { env = "NAME" } and { file = "path" }'

_PYTHON_TYPES: Final[dict[type[inspect.Type], Any]] = {
    inspect.StrType: str,
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.VarTupleType: list[str],
    inspect.AnyType: Any,
}


def _literal(kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.LiteralType):
        return Literal[kind.values]
    msg = f"settings hold a type that the walk does not know: {kind}"
    raise TypeError(msg)


def describe(value: Any) -> str:
    """What was found, for people. A string that may hold credentials is not repeated."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return "a string" if "@" in value else f"the string {json.dumps(value[:40], ensure_ascii=False)}"
        case list():
            return "a list"
        case Mapping():
            return "a table"
        case _:
            return f"a {type(value).__name__}"
