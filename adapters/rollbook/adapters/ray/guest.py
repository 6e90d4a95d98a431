"""A worker's own code inside its actor's process: found by its import path, started on a port that is free, stopped.

Whatever that code does (raise, exit, return nonsense, be `async` or not) comes out as addresses or as `StartFailed`.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from rollbook.adapters.ray.spec import WorkerSpec
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.events import RollbookError

PRIMARY: Final = "primary"
"""The address that takes requests."""

_log = structlog.get_logger()


class StartFailed(RollbookError):
    """The worker's own code did not come to listen. The message says which step failed, and how."""


class WorkerActor(Protocol):
    """What a worker's class must offer. `wait` and `stop` may be left out. Each may be `async`.

    The class is made with `name`, `incarnation`, `host`, `port` and the spec's `kwargs`, all as keywords. Its code runs
    in a thread that is not the process's main thread; what is `async` runs on one event loop that lives as long as the
    worker does.
    """

    def __init__(self, *, name: str, incarnation: int, host: str, port: int, **kwargs: Any) -> None:
        """`host` is this node's address as Ray knows it, `port` what to listen on (0: let the system choose)."""
        ...

    def start(self) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Listen; return the named addresses, each `host:port`, among them `primary`.

        A taken port must raise the system's own `OSError` (EADDRINUSE): then it is made again with another port.
        """
        ...

    def wait(self) -> str | Awaitable[str]:
        """Return when it has ended by itself, saying why: for a worker whose server is another process."""
        ...

    def stop(self) -> Awaitable[None] | None:
        """Let go: called on SIGTERM, on a planned stop, and after `wait` returned."""
        ...


class Guest:
    """The worker of one spec in this process. `host` is the node's address. All methods block."""

    def __init__(self, spec: WorkerSpec, host: str) -> None:
        self._spec = spec
        self._host = host
        self._worker: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, incarnation: int, ports: Sequence[int]) -> dict[str, str]:
        """Make it and start it on the first of `ports` that is free; return its addresses. Raises `StartFailed`."""
        try:
            cls = _imported(self._spec.actor)
            for port in ports[:-1]:
                try:
                    return self._start_on(cls, incarnation, port)
                except OSError as exc:
                    if exc.errno != errno.EADDRINUSE:
                        raise
                    _log.info("worker.port.taken", worker=self._spec.name, port=port)
                    self.stop()
            return self._start_on(cls, incarnation, ports[-1])
        except StartFailed:
            raise
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
        except Exception as exc:  # noqa: BLE001 - the worker's code may raise anything
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

    def _start_on(self, cls: Any, incarnation: int, port: int) -> dict[str, str]:
        spec = self._spec
        self._worker = cls(name=spec.name, incarnation=incarnation, host=self._host, port=port, **spec.kwargs)
        return _addresses(self._call(self._worker.start))

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


def _addresses(answer: object) -> dict[str, str]:
    """What `start` returned, checked. Raises `StartFailed`."""
    if not isinstance(answer, Mapping) or PRIMARY not in answer:
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
    return await result
