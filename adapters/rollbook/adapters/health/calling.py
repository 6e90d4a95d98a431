"""Asking by any callable: async or not, with whatever answer comes naturally to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from rollbook.adapters.ray.border import raisable
from rollbook.projections.health.monitor import Check, Subject
from rollbook.projections.health.verdict import OK, Finding, Outcome


def called(function: Callable[[Subject], Any]) -> Check:
    """A `Check` from a function of the `Subject`: well if it returns None or True, a string says what is wrong.

    `ConnectionRefusedError` stands for nobody there and `TimeoutError` for no answer; anything else that it raises for
    an unhealthy worker. It may also return a `Finding`. One that is not `async` runs on a thread of its own and cannot
    be stopped: while it hangs, that life of its worker counts as slow and is not asked again. What it returns is
    awaited if that is possible: a lambda may stand around an `async` one.
    """
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - the method is looked at, not called
        return _Awaited(function)
    return _OnThreads(function)


class _Awaited:
    def __init__(self, function: Callable[[Subject], Awaitable[Any]]) -> None:
        self._function = function

    async def __call__(self, subject: Subject) -> Finding:
        return await _finding(self._function(subject))


class _OnThreads:
    def __init__(self, function: Callable[[Subject], Any]) -> None:
        self._function = function
        self._calls: dict[str, tuple[int, concurrent.futures.Future[Any]]] = {}
        """By worker: the life that was asked last, and the call that may still hang."""

    async def __call__(self, subject: Subject) -> Finding:
        before = self._calls.get(subject.name)
        if before is not None and before[0] == subject.incarnation and not before[1].done():
            return Finding(Outcome.SLOW, "an earlier call has not returned yet")
        try:
            call = _on_a_thread(self._function, subject)
        except RuntimeError as exc:  # that is this process's trouble, and not the worker's
            return Finding(Outcome.UNKNOWN, f"no thread to ask on: {exc}")
        self._calls[subject.name] = (subject.incarnation, call)
        try:
            answer = await asyncio.wrap_future(call)
            return await _finding(answer) if inspect.isawaitable(answer) else finding_of(answer)
        except ConnectionRefusedError as exc:
            return Finding(Outcome.REFUSED, str(exc))


async def _finding(answer: Awaitable[Any]) -> Finding:
    """What comes of it."""
    try:
        return finding_of(await answer)
    except ConnectionRefusedError as exc:
        return Finding(Outcome.REFUSED, str(exc))
    except SystemExit as exc:
        raise raisable(exc) from exc


def finding_of(answer: object) -> Finding:
    """What a check's own answer means."""
    match answer:
        case None | True:
            return OK
        case Finding():
            return answer
        case str():
            return Finding(Outcome.UNHEALTHY, answer)
        case _:
            return Finding(Outcome.UNHEALTHY, f"it answered {str(answer)[:100]}")


def _on_a_thread(function: Callable[[Subject], Any], subject: Subject) -> concurrent.futures.Future[Any]:
    """Begin a call that does not keep the process from exiting, as the threads of a pool would."""
    import threading

    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function(subject))
        except BaseException as exc:  # noqa: BLE001 - it is raised where the answer is awaited
            future.set_exception(raisable(exc))

    threading.Thread(target=work, name=f"rollbook-check-{subject.name}", daemon=True).start()
    return future
