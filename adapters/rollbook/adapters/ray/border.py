"""The border to Ray: every call has a deadline, and Ray's errors become ours here.

::

    RollbookError
    ├── ActorGone       the actor is dead, or there is none of that name
    ├── ActorSilent     no answer within the deadline, or unreachable for now: unknown, which is never dead
    └── ActorBroken     it answered with an error that is none of ours

`ActorUnavailableError` is not death: Ray's own connection to the actor broke, and the actor may be well. Only the
cluster's verdict (`ActorDiedError`, or no such name) is.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from rollbook.events import RollbookError

T = TypeVar("T")

NAMESPACE: Final = "rollbook"
"""Ray namespace of managers and workers. Drivers have anonymous namespaces of their own unless they are told."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_CREATION: Final = "an error raised in its creation task"
AGAIN_SECONDS: Final = 0.1
"""Between two tries to reach an actor that Ray cannot reach right now."""


class ActorGone(RollbookError):
    """The actor is dead, or there is none of that name."""


class ActorSilent(RollbookError):
    """No answer within the deadline, or unreachable for now: unknown, which is never dead."""


class ActorBroken(RollbookError):
    """It answered with an error that is none of ours."""


def manager_name(fleet: str) -> str:
    """The default name of a fleet's manager actor."""
    return f"rollbook-{fleet}"


def host_name(fleet: str, worker: str) -> str:
    """The name of a worker's actor. Ray lets one live actor have it, so a worker never has two living processes."""
    return f"rollbook-{fleet}/{worker}"


class RayThread:
    """Runs Ray's blocking calls (look-ups by name, creating actors, connecting) one after the other, on a thread.

    They have no deadline of their own and would stop an event loop. One that hangs holds up the next ones, which then
    run into their deadlines; it does not use up threads. The thread lives while there is work, and does not keep the
    process from exiting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._working = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run `job` after those before it. A cancelled one is left out.

        Where this process can start no thread, it ends in `ActorSilent`, and the next one is tried again.
        """
        future: Future[T] = Future()
        with self._lock:
            self._jobs.append((future, job))
            begin, self._working = not self._working, True
        if begin:
            try:
                threading.Thread(target=self._work, name="rollbook-ray", daemon=True).start()
            except RuntimeError as exc:
                self._give_up(ActorSilent(f"nobody could be asked: {exc}"))
        return future

    def _give_up(self, why: ActorSilent) -> None:
        with self._lock:
            jobs, self._jobs, self._working = self._jobs, deque(), False
        for future, _ in jobs:
            if future.set_running_or_notify_cancel():
                future.set_exception(why)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working = False
                    return
                future, job = self._jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as exc:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(raisable(exc))


def raisable(exc: BaseException) -> Exception:
    """What anybody's code raised on a thread, as it can be raised where it is awaited.

    SystemExit would end the event loop there, with the program; StopIteration no asyncio future takes, and whoever
    waits for it would wait for ever.
    """
    if isinstance(exc, Exception) and not isinstance(exc, StopIteration):
        return exc
    return RuntimeError(f"{type(exc).__name__}: {exc}")


async def call(answer: Awaitable[T], seconds: float, asked: str) -> T:
    """What an actor answers. `asked` says for people what was asked of whom. Raises our errors only."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except Exception as exc:
        error = translated(exc, asked, seconds)
        if error is exc:
            raise
        raise error from exc


async def own_words(answer: Awaitable[T], asked: str) -> T:
    """What an actor of somebody else's answers. `asked` as in `call`, which this goes into.

    An error of ours that it raised is its own business: it is not the one who is gone, or silent. Raises `ActorBroken`
    for whatever it raised, and Ray's errors.
    """
    from ray.exceptions import RayTaskError

    try:
        return await answer
    except RayTaskError as exc:
        raise _broken(exc, asked) from exc


async def aside(threads: RayThread, job: Callable[[], T], seconds: float, asked: str) -> T:
    """What a blocking `job` returns, awaited. Raises our errors only."""
    return await call(asyncio.wrap_future(threads.submit(job)), seconds, asked)


def find(name: str, namespace: str) -> Any:
    """The handle of a named actor. Blocks; raises `ActorGone` if there is none, or `ActorSilent`."""
    import ray

    if not ray.is_initialized():
        # Otherwise Ray would start a cluster of its own here and now.
        raise ActorSilent("this process is not connected to Ray (any more); call ray.init first")
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError as exc:
        raise ActorGone(f"there is no actor {name!r} (namespace {namespace!r})") from exc


def is_taken(exc: ValueError) -> bool:
    """Whether making an actor failed because its name is taken. Older versions of Ray have no class for it."""
    return "already taken" in str(exc)


async def ask_named(
    threads: RayThread, name: str, namespace: str, ask: Callable[[Any], Awaitable[T]], seconds: float
) -> T:
    """What the actor of this name answers to `ask(handle)`, looked up anew for every try.

    Ray caches look-ups, so right after a crash the handle may be of the actor before; then it is tried again, within
    the deadline. Raises `ActorGone` if there is none of that name, `ActorSilent` after `seconds`, and the actor's own
    errors.
    """
    asked = f"actor {name!r} (namespace {namespace!r})"
    until = time.monotonic() + seconds
    while True:
        handle = await aside(threads, lambda: find(name, namespace), until - time.monotonic(), asked)
        try:
            return await call(ask(handle), until - time.monotonic(), asked)
        except (ActorGone, ActorSilent):
            if time.monotonic() + AGAIN_SECONDS > until:
                raise
            await asyncio.sleep(AGAIN_SECONDS)


def translated(exc: Exception, asked: str, seconds: float) -> RollbookError:
    """Ray's error as ours; an error of ours that an actor raised comes out as it went in."""
    from ray.exceptions import (
        ActorDiedError,
        ActorUnavailableError,
        ActorUnschedulableError,
        GetTimeoutError,
        RayError,
        RayTaskError,
        RuntimeEnvSetupError,
    )

    match exc:
        case RollbookError() if not isinstance(exc, RayTaskError):
            return exc
        case RayTaskError() if isinstance(exc.cause, RollbookError):
            return exc.cause
        case RayTaskError():
            return _broken(exc, asked)
        case ActorDiedError() | ActorUnschedulableError() | RuntimeEnvSetupError():
            return ActorGone(f"{asked} is dead: {cause_of_death(exc)}")
        case TimeoutError() | GetTimeoutError():
            return ActorSilent(f"{asked} gave no answer within {seconds:.3g} s")
        case ActorUnavailableError():
            return ActorSilent(f"{asked} cannot be reached now; Ray does not say that it is dead")
        case RayError():
            return ActorSilent(f"{asked}: Ray failed: {type(exc).__name__}: {str(exc)[:300]}")
        case _:
            return ActorSilent(f"{asked}: Ray cannot be asked: {type(exc).__name__}: {str(exc)[:300]}")


def _broken(exc: Any, asked: str) -> ActorBroken:
    return ActorBroken(f"{asked} failed: {type(exc.cause).__name__}: {str(exc.cause)[:500]}")


def cause_of_death(exc: Exception) -> str:
    """The part of Ray's message that says how an actor died; of an error with a traceback, its end, which names it."""
    text = _COLOURS.sub("", str(exc))
    if _CREATION in text and "\n  File " in text:
        return f"{_CREATION}: {text.rstrip().rpartition(chr(10))[2].strip()}"[:500]
    for mark in ("The actor is dead because ", "The actor died because of "):
        _, found, told = text.rpartition(mark)
        if found:
            return " ".join(told.partition(" Some common causes")[0].split())[:500]
    return " ".join(text.split())[:500]
