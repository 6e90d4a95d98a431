"""A worker's own code inside its actor's process: found by its import path, started on its ports, stopped.

Whatever that code does (raise, exit, return nonsense, be `async` or not) comes out as addresses or as `StartFailed`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import structlog

from rollbook.adapters.ray.border import raisable
from rollbook.adapters.ray.command import CommandActor
from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.ray.seat import Seat, TemplateError, render
from rollbook.adapters.ray.spec import CommandWorkerSpec, Spec
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.events import RollbookError

_log = structlog.get_logger()


class StartFailed(RollbookError):
    """The worker's own code did not come to listen. The message says which step failed, and how."""


class WorkerActor(Protocol):
    """What a worker's class must offer. `wait` and `stop` may be left out. Each may be `async`.

    The class is made with `name`, `incarnation`, `host`, `port` and the spec's `kwargs`, all as keywords, and with
    `seat` (a `Seat`) if it has a parameter of that name. Its code runs in a thread that is not the process's main
    thread; what is `async` runs on one event loop that lives as long as the worker does.
    """

    def __init__(self, *, name: str, incarnation: int, host: str, port: int, **kwargs: Any) -> None:
        """`host` is this node's address as Ray knows it, `port` its primary port, which was free just now, or 0."""
        ...

    def start(self) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Listen; return the addresses by kind, each `host:port`, among them `primary`."""
        ...

    def wait(self) -> str | Awaitable[str]:
        """Return when it has ended by itself, saying why: for a worker whose server is another process."""
        ...

    def stop(self) -> Awaitable[None] | None:
        """Let go: called on SIGTERM, on a planned stop, and after `wait` returned."""
        ...


class Guest:
    """The worker of one spec in this process. All methods block."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._worker: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, seat: Seat) -> dict[str, str]:
        """Make it and start it; return its addresses. Raises `StartFailed`."""
        try:
            os.environ.update({key: render(value, seat) for key, value in self._spec.env.items()})
            self._worker = self._made(seat)
            needed = self._spec.ready_path is not None or not isinstance(self._spec, CommandWorkerSpec)
            return _addresses(self._call(self._worker.start), needed=needed)
        except StartFailed:
            raise
        except TemplateError as exc:
            raise StartFailed(str(exc)) from exc
        except BaseException as exc:
            # SystemExit too: only this worker's start ends with it.
            raise StartFailed(f"start raised {_told(exc)}") from exc

    def wait(self) -> str | None:
        """Why it ended by itself; None at once if it is of a kind that does not tell."""
        wait = getattr(self._worker, "wait", None)
        if wait is None:
            return None
        try:
            return str(self._call(wait) or "it ended by itself")
        except BaseException as exc:  # noqa: BLE001 - the worker's code may raise anything, also SystemExit
            _log.exception("worker.wait.failed", worker=self._spec.name)
            return f"wait raised {_told(exc)}"

    def stop(self) -> None:
        """Let it let go. What it raises is logged."""
        stop = getattr(self._worker, "stop", None)
        if stop is not None:
            try:
                self._call(stop)
            except Exception:  # noqa: BLE001 - as in `wait`
                _log.exception("worker.stop.failed", worker=self._spec.name)

    def _made(self, seat: Seat) -> Any:
        port = seat.own[PRIMARY].port if PRIMARY in seat.own else 0
        given: dict[str, Any] = {"name": seat.name, "incarnation": seat.incarnation, "host": seat.host, "port": port}
        spec = self._spec
        if isinstance(spec, CommandWorkerSpec):
            command = render(spec.command, seat)
            return CommandActor(**given, seat=seat, command=command, cwd=spec.cwd, stop_seconds=spec.stop_seconds)
        cls = _imported(spec.actor)
        return cls(**given, **({"seat": seat} if _takes_seat(cls) else {}), **spec.kwargs)

    def _call(self, method: Callable[[], Any]) -> Any:
        """The result of a method of the worker, also of an `async` one."""
        result = method()
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rollbook-worker-loop", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(_awaited(result), self._loop).result()


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except BaseException as exc:
        raise StartFailed(f"importing {path} raised {_told(exc)}") from exc


def _takes_seat(cls: Any) -> bool:
    try:
        return "seat" in inspect.signature(cls).parameters
    except (TypeError, ValueError):  # what is written in C may not tell
        return False


def _addresses(answer: object, *, needed: bool) -> dict[str, str]:
    """What `start` returned, checked. Raises `StartFailed`."""
    if not isinstance(answer, Mapping) or (needed and PRIMARY not in answer):
        raise StartFailed(f"start() returned {str(answer)[:200]!r}; it must return named addresses with {PRIMARY!r}")
    for name, text in answer.items():
        try:
            parse_host_and_port(str(text))
        except ValueError as exc:
            raise StartFailed(f"start() returned {str(text)[:200]!r} as its address {name!r}: {exc}") from exc
    return {str(name): str(text) for name, text in answer.items()}


def _told(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {str(exc)[:500]}"


async def _awaited(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except (SystemExit, KeyboardInterrupt) as exc:  # it would end the loop, and nobody would hear of it
        raise raisable(exc) from exc
