"""The kinds of proxies: those of Rollbook, and those of other packages through the entry points `rollbook.proxies`."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from rollbook.adapters.proxies.kinds import ProxyKind
from rollbook.adapters.spelling import suggestion
from rollbook.events import RollbookError

GROUP: Final = "rollbook.proxies"

BUILT_IN: Final = tuple(
    EntryPoint(name=module.replace("_", "-"), value=f"rollbook.adapters.proxies.{module}:KIND", group=GROUP)
    for module in ("sglang", "vllm", "haproxy", "miles", "routed_api", "lmdeploy")
)
"""Rollbook's own, here and not in its metadata: what it is made of does not depend on how it was installed."""


class UnusableKind(RollbookError):
    """There is no such kind, or the package that provides it does not work."""


def kind_names() -> list[str]:
    """The name of every kind that there is here, Rollbook's own first."""
    own = [point.name for point in BUILT_IN]
    return own + sorted({point.name for point in entry_points(group=GROUP)} - set(own))


@functools.cache
def find_kind(name: str) -> ProxyKind:
    """The kind of that name. Other packages are looked at only for a name that is not Rollbook's own, and only once.

    Raises `UnusableKind` if nobody provides it, several packages do, or the one that does cannot be loaded.
    """
    points = [point for point in BUILT_IN if point.name == name] or sorted(
        entry_points(group=GROUP, name=name), key=lambda point: point.value
    )
    if not points:
        raise UnusableKind(f"there is no kind {name[:80]!r}; {suggestion(name, kind_names())}")
    whose = " and ".join(f"{point.dist.name if point.dist else 'rollbook'} ({point.value})" for point in points)
    if len(points) > 1:
        raise UnusableKind(f"the kind {name!r} is provided more than once, by {whose}; uninstall all but one")
    try:
        kind = points[0].load()
    except Exception as exc:  # whatever another package's import raises
        raise UnusableKind(f"the kind {name!r} of {whose} cannot be loaded: {type(exc).__name__}: {exc}") from exc
    if not isinstance(kind, ProxyKind) or kind.name != name:
        raise UnusableKind(f"the kind {name!r} of {whose} is no ProxyKind of that name, as its entry point must be")
    return kind
