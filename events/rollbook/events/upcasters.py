"""Older versions of facts, lifted to the next one when they are read; the log keeps them as they are.

One function for each older version, from its data to the next version's type and data. Nothing calls them directly: the
codec applies them until a type comes out that it knows, so a log with many versions is folded as one of the newest.
docs/events.md says when a fact gets a new version, with the first of these as its example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

Upcaster = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]
"""Takes the data of an older version and returns the next version's type and data. Whatever it raises on data that
does not suit it quarantines the message."""


def removal_withheld_v1(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Version 1 said `-` for workers of no known pool; but a pool may be named `-`. Version 2 leaves the pool out."""
    fields = {name: value for name, value in data.items() if (name, value) != ("pool", "-")}
    return "rollbook.proxy.removal_withheld.v2", fields


UPCASTERS: Final[Mapping[str, Upcaster]] = MappingProxyType(
    {"rollbook.proxy.removal_withheld.v1": removal_withheld_v1},
)
"""Older type → what lifts it."""
