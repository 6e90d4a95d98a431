"""Environment variables that override the file.

The rule: `ROLLBOOK_` and the key's path in capitals, joined by `_`, every other character as `_` too. An entry of
`[[proxies]]` goes by its name. A variable changes a fixed key, or a key of a pool, proxy or worker that the file
declares; it declares none. A list is separated by commas. For a secret the variable holds the secret itself, as if the
file said `{ env = "<that variable>" }`.

    ROLLBOOK_FLEET                          fleet
    ROLLBOOK_NATS_URL                       nats.url
    ROLLBOOK_RECONCILE_RESYNC               reconcile.resync
    ROLLBOOK_POOLS_ROLLOUT_URL              pools.rollout.url
    ROLLBOOK_PROXIES_ROUTER_A_ADMIN_URL     admin_url of the proxy named router-a
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import inspect

from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.decode import Path
from rollbook.adapters.settings.shapes import FromVariable, fields_of
from rollbook.adapters.spelling import nearest

PREFIX: Final = "ROLLBOOK_"

OTHER_VARIABLES: Final = frozenset({"ROLLBOOK_CONFIG", "ROLLBOOK_DEBUG", "ROLLBOOK_OUTBOX"})
"""Read elsewhere: the file's place, whether an unexpected failure shows its traceback, a publisher's durable outbox."""


def override(
    tree: Mapping[str, Any], into: type, environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """`tree` with the variables' values put in, the problems, and warnings about variables that override nothing."""
    result = copy.deepcopy(dict(tree))
    given = {name for name in environ if name.startswith(PREFIX) and name not in OTHER_VARIABLES}
    _put(result, variables(into, result), given, environ)
    known = variables(into, result)  # the provider's and the proxies' kinds, now set, decide which keys there are
    _put(result, known, given, environ)
    problems = [
        f"{name}: stands for two keys; choose names that differ in more than '-' and '_'"
        for name in sorted(given)
        if len(known.get(name, ())) > 1
    ]
    return result, problems, [_no_override(name, known) for name in sorted(given - known.keys())]


def _no_override(name: str, known: Iterable[str]) -> str:
    near = nearest(name.removeprefix(PREFIX), (one.removeprefix(PREFIX) for one in known))
    return f"{name} is set and overrides nothing{f'; did you mean {PREFIX}{near}?' if near else ''}"


def _put(
    tree: dict[str, Any], known: Mapping[str, list[tuple[Path, bool]]], given: set[str], environ: Mapping[str, str]
) -> None:
    for name in given & known.keys():
        (path, secret), *others = known[name]
        if not others:
            _assign(tree, path, {"env": name} if secret else FromVariable(name, environ[name]))


def variables(into: type, tree: Mapping[str, Any]) -> dict[str, list[tuple[Path, bool]]]:
    """Every variable that can override a key of `tree`, with the keys it stands for and whether each is a secret."""
    found: dict[str, list[tuple[Path, bool]]] = {}
    for words, path, secret in _keys(inspect.type_info(into), tree, (), ()):
        name = PREFIX + "_".join(re.sub(r"[^A-Za-z0-9]", "_", word).upper() for word in words)
        found.setdefault(name, []).append((path, secret))
    return found


def _keys(
    kind: inspect.Type, value: Any, words: tuple[str, ...], path: Path
) -> Iterator[tuple[tuple[str, ...], Path, bool]]:
    match kind:
        case inspect.UnionType():
            yield from _choice_keys(kind, value, words, path)
        case inspect.StructType() if kind.cls is SecretRef:
            yield words, path, True
        case inspect.StructType():
            for field in fields_of(kind, _table(value)):
                key = field.encode_name
                yield from _keys(field.type, _table(value).get(key), (*words, key), (*path, key))
        case inspect.DictType():
            for key, item in _table(value).items():
                yield from _keys(kind.value_type, item, (*words, key), (*path, key))
        case inspect.VarTupleType(item_type=inspect.StructType() as one):
            for index, item in enumerate(value if isinstance(value, list) else ()):
                name = _table(item).get("name")
                if isinstance(name, str):
                    yield from _keys(one, item, (*words, name), (*path, index))
        case _:
            yield words, path, False


def _choice_keys(
    kind: inspect.UnionType, value: Any, words: tuple[str, ...], path: Path
) -> Iterator[tuple[tuple[str, ...], Path, bool]]:
    """The keys of a value that may be left out, or of the struct that the value's `kind` names."""
    others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    if len(others) == 1:
        yield from _keys(others[0], value, words, path)
        return
    yield (*words, "kind"), (*path, "kind"), False
    tag = _table(value).get("kind")
    tag = tag.text if isinstance(tag, FromVariable) else tag
    for one in others:
        if isinstance(one, inspect.StructType) and one.tag == tag:
            yield from _keys(one, value, words, path)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _assign(here: Any, path: Path, value: Any) -> None:
    """Set the value at `path`, making tables on the way; where a table should be and is none, the check reports it."""
    step, *rest = path
    if not rest:
        here[step] = value
        return
    if isinstance(step, str):
        here.setdefault(step, {})
    if isinstance(here[step], dict | list):
        _assign(here[step], tuple(rest), value)
