"""Work that other threads ask the publisher's loop to do, and wait for: every question gets an answer or an error.

`asyncio.run_coroutine_threadsafe` leaves its caller waiting for ever if the loop stops before it comes to the question.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollbook.adapters.publisher.errors import PublisherClosed

T = TypeVar("T")


class Questions:
    """Those of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False

    def ask(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` on the loop. Any thread. The future ends in `PublisherClosed` if the loop ends first."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._open[answer] = work
        answer.add_done_callback(lambda _: self._open.pop(answer, None))
        with contextlib.suppress(RuntimeError):  # the loop is closed, so `end` is not far
            self._loop.call_soon_threadsafe(self._begin, work, answer)
        if self._ended:
            self.end()
        return answer

    def end(self) -> None:
        """The loop is closed: whoever waits, or asked too late, is told so."""
        self._ended = True
        for answer, work in tuple(self._open.items()):
            work.close()
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                answer.set_exception(_closed())

    def _begin(self, work: Coroutine[Any, Any, T], answer: concurrent.futures.Future[T]) -> None:
        task = asyncio.ensure_future(self._answer(work, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, work: Coroutine[Any, Any, T], answer: concurrent.futures.Future[T]) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # nobody waits for it any more
            try:
                answer.set_result(await work)
            except asyncio.CancelledError:
                answer.set_exception(_closed())
                raise
            except Exception as exc:  # noqa: BLE001 - it is raised where the answer is awaited
                answer.set_exception(exc)


def _closed() -> PublisherClosed:
    return PublisherClosed("the publisher was closed meanwhile; make a new one")
