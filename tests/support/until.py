"""Waiting for what must come true, with a deadline that a busy machine does not reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 45.0


async def until(look: Callable[[], Awaitable[T]], seen: Callable[[T], bool], seconds: float = SECONDS) -> T:
    """Look again and again until `seen`; return what was seen, or fail with what was there last."""
    deadline = time.monotonic() + seconds
    while True:
        found = await look()
        if seen(found):
            return found
        assert time.monotonic() < deadline, f"not seen within {seconds:g} s; last: {found!r}"
        await asyncio.sleep(0.02)
