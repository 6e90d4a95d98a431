"""Ending tasks for sure. Before Python 3.13 one cancellation can be lost in a library's `asyncio.wait_for`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

PATIENCE_SECONDS: Final = 15.0
"""For a cancelled task to end; its cleanup is not cut short before."""


async def end(*tasks: asyncio.Future[Any], patience: float = PATIENCE_SECONDS) -> None:
    """Cancel the tasks, and again every `patience` seconds, until all have ended. What they raise is dropped."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=patience)
    for task in tasks:
        if not task.cancelled():
            task.exception()
