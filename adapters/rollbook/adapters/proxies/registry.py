"""From a kind's name, as the configuration has it, to the proxy that speaks its admin API."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

from rollbook.adapters.proxies import sglang
from rollbook.events import RollbookError
from rollbook.projections.ports import Proxy

KINDS: Final[dict[str, Callable[[str, str, str, str | None], Proxy]]] = {sglang.KIND: sglang.SglangProxy}
"""Each takes name, admin URL, fleet and API key."""


def make_proxy(kind: str, *, name: str, admin_url: str, fleet: str, api_key: str | None = None) -> Proxy:
    """The proxy `name` of that kind; nothing is connected yet.

    Raises `RollbookError` for a kind that is not known, an `admin_url` that cannot be one (`UnusableURL`) or a key that
    no header can carry.
    """
    make = KINDS.get(kind)
    if make is None:
        near = difflib.get_close_matches(kind.lower(), KINDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RollbookError(f"proxy {name!r}: there is no kind {kind[:80]!r}, only {', '.join(sorted(KINDS))}{hint}")
    return make(name, admin_url, fleet, api_key)
