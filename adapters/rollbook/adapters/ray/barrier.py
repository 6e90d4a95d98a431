"""A step that all workers of a cell take together: it is over when the last one has done it, or the first one failed.

Pure asyncio; what the steps are is the keeper's business.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from rollbook.projections.ending import end

T = TypeVar("T")


async def together(steps: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """The results by name, once all are there. The first failure is raised when all others have been ended.

    Of several that failed at the same moment it is the first one in the order of `steps`.
    """
    tasks = {name: asyncio.ensure_future(step) for name, step in steps.items()}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks.values():
            if task.done() and not task.cancelled() and (failed := task.exception()) is not None:
                raise failed
        return {name: task.result() for name, task in tasks.items()}
    finally:
        await end(*tasks.values())


async def unless(death: Future[Any], work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None, with `work` ended, if `death` is done before."""
    task = asyncio.ensure_future(work)
    either: list[Future[Any]] = [task, death]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await end(task)


async def first(*tasks: Future[T]) -> T:
    """The result of the one that is done first."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return next(task for task in tasks if task.done()).result()
