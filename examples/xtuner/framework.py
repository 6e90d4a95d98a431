"""What stands in for XTuner: the parts that meet a worker lifecycle listener, with XTuner's names and call shapes.

Its engines are HTTP servers in this process; there is no Ray and no model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from examples.engine import Engine


class WorkerLifecycleState(Enum):
    """Of one worker."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    RECOVERING = "recovering"


@dataclass(frozen=True)
class WorkerSnapshot:
    """A worker at one moment."""

    rank: int
    actor: Engine
    session: Engine
    lifecycle_state: WorkerLifecycleState = WorkerLifecycleState.ACTIVE
    is_request_entrypoint: bool = True

    @property
    def url(self) -> str:
        """Of its server."""
        return self.actor.url

    @property
    def session_url(self) -> str:
        """Of its session server, where requests go in."""
        return self.session.url


@dataclass(frozen=True)
class WorkerGroup:
    """Workers that live and die together."""

    ranks: tuple[int, ...]
    workers: tuple[WorkerSnapshot, ...]


class RolloutWorkerLifecycleListener(Protocol):
    """What the health manager calls, under its lock."""

    def on_worker_group_inactive(self, group: WorkerGroup) -> None: ...

    def on_worker_group_recovered(self, group: WorkerGroup) -> None: ...


class RolloutWorkerRegistry:
    """The workers, each a group of its own."""

    def __init__(self, count: int) -> None:
        self._workers: dict[int, WorkerSnapshot] = {}
        for rank in range(count):
            snapshot = WorkerSnapshot(rank, Engine(f"rollout-{rank}-0"), Engine(f"rollout-{rank}-0"))
            snapshot.actor.start()
            snapshot.session.start()
            self._workers[rank] = snapshot

    def groups(self, state: WorkerLifecycleState | None = None) -> list[WorkerGroup]:
        """Those in that state, or all."""
        return [
            WorkerGroup((rank,), (worker,))
            for rank, worker in self._workers.items()
            if state in {None, worker.lifecycle_state}
        ]

    def set_state(self, rank: int, state: WorkerLifecycleState) -> WorkerGroup:
        """Returns the group as it is then."""
        worker = self._workers[rank] = replace(self._workers[rank], lifecycle_state=state)
        return WorkerGroup((rank,), (worker,))

    def kill(self, rank: int) -> None:
        """What happens in the night."""
        self._workers[rank].actor.kill()
        self._workers[rank].session.kill()

    def close(self) -> None:
        """End all engines."""
        for rank in self._workers:
            self.kill(rank)


class RolloutHealthManager:
    """Finds dead workers and restarts them, and tells its listeners."""

    def __init__(
        self,
        registry: RolloutWorkerRegistry,
        worker_lifecycle_listeners: Iterable[RolloutWorkerLifecycleListener],
    ) -> None:
        self._registry = registry
        self._worker_lifecycle_listeners = tuple(worker_lifecycle_listeners)
        self._operation_lock = threading.Lock()

    def run_once(self) -> None:
        """One round of the health thread."""
        for group in self._registry.groups(WorkerLifecycleState.ACTIVE):
            if all(worker.actor.healthy() for worker in group.workers):
                continue
            with self._operation_lock:
                inactive = self._registry.set_state(group.ranks[0], WorkerLifecycleState.INACTIVE)
                for listener in self._worker_lifecycle_listeners:
                    listener.on_worker_group_inactive(inactive)

    def restart_inactive_workers(self) -> None:
        """Before the next weight update."""
        with self._operation_lock:
            for group in self._registry.groups(WorkerLifecycleState.INACTIVE):
                self._registry.set_state(group.ranks[0], WorkerLifecycleState.RECOVERING)
                for worker in group.workers:
                    worker.actor.start()
                    worker.session.start()
                recovered = self._registry.set_state(group.ranks[0], WorkerLifecycleState.ACTIVE)
                for listener in self._worker_lifecycle_listeners:
                    listener.on_worker_group_recovered(recovered)


@dataclass(frozen=True)
class AgentLoopConfig:
    """One that talks to the proxy itself declares it."""

    requires_rollout_proxy: bool = False


class SandboxAgentLoopConfig(AgentLoopConfig):
    """An agent in a sandbox, which knows nothing but a URL."""


@dataclass(frozen=True)
class TaskSpecConfig:
    """One task of an agent loop manager."""

    task_name: str
    agent_loop_config: AgentLoopConfig


@dataclass(frozen=True)
class AgentLoopManagerConfig:
    """Its tasks, one or several."""

    tasks: TaskSpecConfig | list[TaskSpecConfig]
