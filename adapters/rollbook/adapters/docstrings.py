"""The docstrings under the fields of a struct, for the pages that are made from code."""

from __future__ import annotations

import ast
import itertools
import sys
from pathlib import Path

import msgspec


def field_docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The string literal under each annotated name of the class and its bases; fields without one are left out."""
    found: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct:
            found |= _own(cls)
    return {name: found[name] for name in struct.__struct_fields__ if name in found}


def _own(struct: type[msgspec.Struct]) -> dict[str, str]:
    source = Path(sys.modules[struct.__module__].__file__ or "").read_text(encoding="utf-8")
    (body,) = [
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == struct.__name__
    ]
    found: dict[str, str] = {}
    for node, below in itertools.pairwise(body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[node.target.id] = str(below.value.value)
    return found


def one_line(text: str) -> str:
    """`text` for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
