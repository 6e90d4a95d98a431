"""An event loop on which time is a number: an hour of sleeping takes no time, and a schedule repeats exactly.

When nothing is ready, the loop's time jumps to the next timer. Nothing else can wake it, so when there is no timer
either, every task waits for another one: `Deadlock`. There is no selector, no socket and no thread; creating a loop
costs microseconds.

A `Process` is a group of tasks that dies as a process does: from `kill` on, not one more line of it runs, no `finally`
either. That is what a crash between any two steps is; `Task.cancel` is the polite way. Between `pause` and `resume` no
line of it runs either, and then it goes on where it was, in a world that has gone on without it.
"""
# A loop is made from `BaseEventLoop` by its parts that all loops share: two queues of handles, and running one round.
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import sys
from asyncio import base_events
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_ROUNDS_AT_ONE_MOMENT: Final = 100_000
"""Rounds of the loop without time going on before it is called a `Livelock`."""
MOST_FINALLY_BLOCKS: Final = 50
"""Times that a killed task is told to end; each `finally` block that waits needs another one."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: no task can ever go on. The message names the tasks and where they wait."""


class Livelock(RuntimeError):
    """Tasks keep each other busy while time stands still. The message names the tasks and where they are."""


class Process:
    """A group of tasks: what `VirtualLoop.spawn` started, and whatever that started."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.alive = True
        self._loop = loop
        self._kept: list[asyncio.Handle] | None = None

    def kill(self) -> None:
        """Run nothing of it any more, as `kill -9` does."""
        self.alive = False
        self._loop.keep_remains(self)

    def pause(self) -> None:
        """Run nothing of it until `resume`, as SIGSTOP does."""
        if self._kept is None:
            self._kept = []

    def resume(self) -> None:
        """Go on, with all that came in meanwhile, in the order in which it came."""
        kept, self._kept = self._kept, None
        self._loop.run_again(kept or [])

    def keep(self, handle: asyncio.Handle) -> bool:
        """Take what was to run now; False if the process is not paused."""
        if self._kept is None:
            return False
        self._kept.append(handle)
        return True


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current() -> Process | None:
    """The process that this line runs in; None outside all of them."""
    return _process.get()


def _is_dead(context: contextvars.Context) -> bool:
    process = context.get(_process)
    return process is not None and not process.alive


class _Task(asyncio.Task[T]):
    """A task whose hash is its number, so that sets of tasks are walked in the same order in every run."""

    def __init__(
        self, coro: Coroutine[Any, Any, T], *, number: int, context: contextvars.Context, **options: Any
    ) -> None:
        self._number = number
        self.context = context
        super().__init__(coro, context=context, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(base_events.BaseEventLoop):
    """See the module. `start` is what `time()` says at first, in seconds."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start
        self._rounds = 0
        self._numbers = itertools.count()
        self._remains: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Seconds, moving only when all tasks wait."""
        return self._now

    def spawn(self, name: str, main: Coroutine[Any, Any, T]) -> tuple[Process, asyncio.Task[T]]:
        """Start `main` as a process of its own."""
        process = Process(name, self)
        context = contextvars.copy_context()
        context.run(_process.set, process)
        return process, self.create_task(main, name=name, context=context)

    def keep_remains(self, process: Process) -> None:
        """Hold a killed process's tasks to the end: Python unwinds a task that nobody holds, `finally` and all."""
        self._remains += [task for task in self._tasks() if task.context.get(_process) is process]

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        """Run in the next round what was kept back."""
        self._ready.extend(handles)

    def finish(self) -> None:
        """Cancel what still lives and let it end; then drop what was killed, whose `finally` blocks can do no harm."""
        self._rounds = 0
        for task in self._tasks():
            if (process := task.context.get(_process)) is not None:
                process.resume()
        living = [task for task in self._tasks() if not _is_dead(task.context)]
        for task in living:
            task.cancel()
        if living:
            self.run_until_complete(asyncio.gather(*living, return_exceptions=True))
        self.set_exception_handler(_ignore)
        self.run_until_complete(self._bury())
        self.run_until_complete(self.shutdown_asyncgens())

    async def _bury(self) -> None:
        """Unwind the tasks of killed processes, each in its own dead context: nothing that they start is ever run.

        A coroutine whose `finally` block waits is dropped in the middle of it, and Python would complain.
        """
        buried: set[_Task[Any]] = set()
        hook, sys.unraisablehook = sys.unraisablehook, _complain_not
        try:
            while dead := [task for task in self._tasks() if task not in buried and _is_dead(task.context)]:
                for task in dead:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    task.context.run(_drop, task)
                buried.update(dead)
        finally:
            sys.unraisablehook = hook

    # -------------------------------------------------------------- what BaseEventLoop leaves to its kinds

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if ready or self._stopping:
            self._rounds += 1
            if self._rounds > MOST_ROUNDS_AT_ONE_MOMENT:
                raise Livelock(self._complaint(f"{self._rounds} rounds have passed without time going on"))
        elif timers:
            self._rounds = 0
            self._now = max(self._now, timers[0].when())
        else:
            raise Deadlock(self._complaint("every task waits for another one, and no timer is set"))
        while timers and timers[0].when() <= self._now:
            ready.append(heapq.heappop(timers))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process: Process | None = handle._context.get(_process)  # type: ignore[attr-defined]
            if process is None or (process.alive and not process.keep(handle)):
                handle._run()
            elif not process.alive:
                _forget(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """Nothing to wake: the loop never waits."""

    # -------------------------------------------------------------- tasks

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> _Task[Any]:
        context = options.pop("context", None)
        if context is None:
            context = contextvars.copy_context()
        return _Task(coro, loop=loop, number=next(self._numbers), context=context, **options)

    def _tasks(self) -> list[_Task[Any]]:
        """All that are not done, in the order of their making."""
        return sorted((task for task in asyncio.all_tasks(self) if isinstance(task, _Task)), key=hash)

    def _complaint(self, what: str) -> str:
        told = [f"  {task.get_name()}: {_where(task)}" for task in self._tasks() if not _is_dead(task.context)]
        return "\n".join([f"at {self._now:.6f} s {what}", *told])


def _forget(handle: asyncio.Handle) -> None:
    """Never run it. A dropped async generator's closing may be among it, which Python 3.13 complains of otherwise."""
    for argument in handle._args or ():
        if isinstance(argument, Coroutine):
            with contextlib.suppress(RuntimeError):  # the generator is being closed already
                argument.close()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Async generators of killed tasks complain about being closed in the middle."""


def _complain_not(unraisable: sys.UnraisableHookArgs) -> None:
    """Nobody is left to whom it matters."""


def _drop(task: _Task[Any]) -> None:
    """Unwind a task of a killed process. A `finally` block may wait for more, or fail on what it finds."""
    for _ in range(MOST_FINALLY_BLOCKS):
        try:
            task.get_coro().close()
        except BaseException:  # noqa: S112, BLE001 - nobody is left to whom it matters
            continue
        return


def _where(task: asyncio.Task[Any]) -> str:
    """The innermost line of Python at which a task waits."""
    awaited: Any = task.get_coro()
    place = "not started"
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaited = awaited.cr_await
    return place


def run(main: Coroutine[Any, Any, T], *, start: float = 0.0) -> T:
    """Run `main` to its end on a new loop and return its result. Tasks that it left behind are cancelled."""
    loop = VirtualLoop(start)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.finish()
        finally:
            loop.close()
