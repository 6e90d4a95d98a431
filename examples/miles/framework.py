"""What stands in for miles and slime: a server group and its RolloutHealthMonitor, with their call shapes.

Its engines are HTTP servers in this process; there is no Ray and no model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from examples.engine import Engine


@dataclass(frozen=True)
class Arguments:
    """Of the command line."""

    rollout_health_check_interval: float = 0.2
    rollout_health_check_first_wait: float = 0.0


class ServerGroup:
    """The engines, each of one node."""

    nodes_per_engine = 1

    def __init__(self, count: int) -> None:
        self.all_engines = [Engine(f"rollout-{number}-0") for number in range(count)]
        for engine in self.all_engines:
            engine.start()
        self.engines: list[Engine | None] = list(self.all_engines)
        """None where one was killed."""

    def mark_engine_group_dead(self, rollout_engine_id: int) -> None:
        """Kill it."""
        engine = self.engines[rollout_engine_id]
        if engine is not None:
            engine.kill()
        self.engines[rollout_engine_id] = None

    def recover(self) -> list[int]:
        """Start those that were killed again; returns which."""
        dead = [number for number, engine in enumerate(self.engines) if engine is None]
        for number in dead:
            engine = self.engines[number] = self.all_engines[number]
            engine.start()
        return dead

    def get_addr(self, worker_name: str) -> tuple[str, int] | None:
        """Host and port of a worker's engine, None while it is dead. Raises `KeyError` for a stranger."""
        for engine, alive in zip(self.all_engines, self.engines, strict=True):
            if engine.name == worker_name:
                return None if alive is None else ("127.0.0.1", engine.port)
        raise KeyError(worker_name)

    def close(self) -> None:
        """End all engines."""
        for engine in self.all_engines:
            engine.kill()


class RolloutHealthMonitor:
    """Checks the engines from a thread, between `resume` and `pause`."""

    def __init__(
        self,
        server_group: ServerGroup,
        args: Arguments,
        on_engine_failure: Callable[[object, int], None] | None = None,
    ) -> None:
        self._server_group = server_group
        self._on_engine_failure = on_engine_failure
        self._interval = args.rollout_health_check_interval
        self._first_wait = args.rollout_health_check_first_wait
        self._stop, self._going = threading.Event(), threading.Event()
        self._check_lock = threading.RLock()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> bool:
        """Begin, paused."""
        self._thread.start()
        return True

    def pause(self) -> None:
        """The engines are offloaded from now on."""
        self._going.clear()
        with self._check_lock:
            pass

    def resume(self) -> None:
        """They are back."""
        self._going.set()

    def stop(self) -> None:
        """For good."""
        self._stop.set()
        self._going.set()
        self._thread.join()

    def _loop(self) -> None:
        self._stop.wait(self._first_wait)
        while not self._stop.wait(self._interval):
            self._going.wait()
            with self._check_lock:
                failed = [number for number in range(len(self._server_group.engines)) if not self._check(number)]
            for number in failed:
                if self._on_engine_failure is not None:
                    self._on_engine_failure(self._server_group, number)

    def _check(self, number: int) -> bool:
        engine = self._server_group.engines[number]
        if engine is None or not self._going.is_set() or engine.healthy():
            return True
        self._server_group.mark_engine_group_dead(number)
        return False
