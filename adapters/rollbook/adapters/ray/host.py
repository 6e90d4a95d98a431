"""The actor around a worker: it is the life that the log numbers, whatever the worker's own code does.

The process exists before its number does, so that the first fact can name its pid, and so that an unreachable log costs
no worker: the process waits. The number, once given, stays with the process; a manager that comes back asks for it.

Ray runs a synchronous actor's constructor in the main thread and, with `max_concurrency` above 1, its methods in a
pool. That is why this actor is synchronous: it can answer while the worker's own code blocks, and it can take SIGTERM.
(In an asyncio actor Ray's own handler waits for the outstanding `watch`, and the process lives on, neither dead nor
alive.)
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import msgspec
import structlog

from rollbook.adapters.ray.guest import Guest, StartFailed
from rollbook.adapters.ray.holding import Held
from rollbook.adapters.ray.seat import Seat
from rollbook.adapters.ray.spec import Spec

CONCURRENCY: Final = 8
"""Threads for calls: one blocks in the worker's start, one or two in `watch`, the others answer."""
_LAST_WORDS_SECONDS: Final = 0.3
"""Between ending and exiting, so that the answer of `watch` gets out and the manager learns not only of a death."""

_log = structlog.get_logger()


class Identity(msgspec.Struct, frozen=True):
    """Which life a process is."""

    fleet: str
    worker: str
    incarnation: int
    """0 while it has no number."""
    cell_incarnation: int
    """0 too in a cell of one worker."""
    pid: int
    node: str


class WorkerHost:
    """One process of one worker: is numbered, chooses its ports, starts the worker's code, and tells when it is over.

    Each of these steps can be asked for again, by the next manager, and answers the same.
    """

    def __init__(self, fleet: str, spec: bytes, manager: Any = None) -> None:
        """`spec` is a `Spec` as JSON. With a `manager` (an actor handle) it ends when that is gone for good."""
        import ray

        self._fleet = fleet
        self._spec: Spec = msgspec.json.decode(spec, type=Spec)
        self._node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._incarnation = self._cell_incarnation = 0
        self._held: Held | None = None
        self._begun: Future[dict[str, str]] | None = None
        self._guest = Guest(self._spec)
        self._ended = threading.Event()
        self._reason = ""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if manager is not None:
            self._thread("fate", lambda: self._share_fate(manager))

    def identity(self) -> bytes:
        """An `Identity` as JSON."""
        return msgspec.json.encode(
            Identity(self._fleet, self._spec.name, self._incarnation, self._cell_incarnation, os.getpid(), self._node)
        )

    def number(self, incarnation: int, cell_incarnation: int) -> None:
        """Take the numbers that its life and its cell's life have in the log."""
        self._incarnation, self._cell_incarnation = incarnation, cell_incarnation

    def reserve(self, former: Mapping[str, int]) -> dict[str, int]:
        """Choose its ports, those of its `former` life if they are free, and hold them until it starts.

        Raises `PortTaken`.
        """
        with self._lock:
            if self._held is None:
                self._held = Held(self._spec.ports, self._spec.place.rank, former)
            return self._held.ports

    def begin(self, seat: bytes, seconds: float) -> dict[str, str] | None:
        """Start the worker's code in its `Seat` (as JSON); return its addresses. Raises `StartFailed`.

        Who asks while it is starting gets None after `seconds`, or each manager that comes back would block a thread
        until then.
        """
        place = msgspec.json.decode(seat, type=Seat)
        with self._lock:
            begun, mine = self._begun, self._begun is None
            if begun is None:
                begun = self._begun = Future()
        if mine:
            try:
                if self._held is not None:
                    self._held.let_go()
                begun.set_result(self._guest.start(place))
            except StartFailed as exc:
                _log.exception("worker.start.failed", worker=self._spec.name, incarnation=place.incarnation)
                begun.set_exception(exc)
            else:
                self._thread("wait", self._wait)
        try:
            return begun.result(seconds)
        except TimeoutError:
            return None

    def watch(self, seconds: float) -> str | None:
        """Why the worker ended by itself, or None if it has not within `seconds`. A death ends it with Ray's error."""
        return self._reason if self._ended.wait(seconds) else None

    def halt(self, reason: str) -> None:
        """Stop the worker's code and end the process."""
        self._end(reason)

    def _wait(self) -> None:
        reason = self._guest.wait()
        if reason is not None:
            self._end(reason)

    def _end(self, reason: str) -> None:
        """Tell `watch`, then let the worker's code stop within its time, then exit."""
        with self._lock:
            if self._ended.is_set():
                return
            self._reason = reason
            self._ended.set()
        _log.info("worker.ended", worker=self._spec.name, incarnation=self._incarnation, reason=reason)
        self._thread("exit", self._exit)

    def _exit(self) -> None:
        until = time.monotonic() + _LAST_WORDS_SECONDS
        stopping = self._thread("stop", self._guest.stop)
        stopping.join(self._spec.stop_seconds)
        time.sleep(max(0.0, until - time.monotonic()))
        # Not sys.exit: other threads are the worker's own and need not be daemons.
        os._exit(0)

    def _on_sigterm(self, *_: object) -> None:
        # A signal handler may interrupt this very thread inside `_end`, which holds a lock.
        self._thread("sigterm", lambda: self._end("it received SIGTERM"))

    def _share_fate(self, manager: Any) -> None:
        """A fleet that is not detached ends with its manager, which ends with its driver. A restart is no end."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        while True:
            try:
                ray.get(manager.hold.remote())
            except ActorUnavailableError:
                time.sleep(0.2)
            except RayError as exc:
                _log.debug("worker.manager.gone", worker=self._spec.name, error=str(exc))
                self._end("its manager is gone, and the fleet is not detached")
                return

    @staticmethod
    def _thread(name: str, run: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"rollbook-{name}", daemon=True)
        thread.start()
        return thread
