"""XTuner: what stands where its RolloutProxyManager stood, with the calls that its health manager makes.

Its health thread and its recovery call `on_worker_group_inactive(group)` and `on_worker_group_recovered(group)`, under
the health manager's lock. Here both publish one fact for each worker of the group and return; no proxy is called, and
nothing is remembered about what is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.listeners.listener import LIMIT, POOL, Listener
from rollbook.adapters.listeners.provider import FrameworkProvider
from rollbook.adapters.listeners.validating import block_on, validate
from rollbook.adapters.publisher.life import Identity
from rollbook.adapters.settings import ConfigError, Settings
from rollbook.events import Evidence, InvalidFact
from rollbook.projections.looking.waiting import Goal

SESSION: Final = "session"
"""Name of the address that XTuner registers; a pool's `url` is `http://{session}` then. `primary` is the server's."""
VALIDATE_SECONDS: Final = 300.0
_REASON: Final = "XTuner marked its worker group inactive"

_log = structlog.get_logger(__name__)


class RolloutWorker(Protocol):
    """Of XTuner's snapshot of a worker, what is read here."""

    @property
    def rank(self) -> int:
        """Its rank among all rollout workers."""
        ...

    @property
    def url(self) -> str | None:
        """Its server's."""
        ...

    @property
    def session_url(self) -> str | None:
        """Its session server's."""
        ...

    @property
    def is_request_entrypoint(self) -> bool:
        """Whether requests go to it."""
        ...


class WorkerGroup(Protocol):
    """XTuner's group of workers that live and die together: a cell."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of its workers."""
        ...

    @property
    def workers(self) -> Sequence[Any]:
        """Each a `RolloutWorker`."""
        ...


class XtunerListener(Listener):
    """One of XTuner's worker lifecycle listeners.

    `pool` names the workers, as `<pool>-<first rank of the group>-<place in the group>`. `evidence` is how sure a call
    of `on_worker_group_inactive` is. Otherwise as `Listener`.
    """

    def __init__(
        self,
        fleet: str,
        connection: Connection | str,
        *,
        pool: str = POOL,
        evidence: Evidence = "unhealthy",
        outbox: str | None = None,
        limit: int = LIMIT,
    ) -> None:
        super().__init__(fleet, connection, pool=pool, outbox=outbox, limit=limit)
        self._evidence: Evidence = evidence
        self._serving: dict[str, None] = {}
        """The entrypoints that should be registered, by XTuner's word."""

    def on_worker_groups_started(self, groups: Iterable[WorkerGroup]) -> None:
        """They were launched and serve: where XTuner has registered all session URLs anew."""
        for group in groups:
            for name, identity in self._said(group, anew=True):
                self._lives.begin(name, **identity)
            self._note(group, serving=True)

    def on_worker_group_inactive(self, group: WorkerGroup) -> None:
        """It does not serve any more: each worker's life of this moment is down."""
        for name, identity in self._said(group, anew=False):
            self._lives.end(name, evidence=self._evidence, reason=_REASON, **identity)
        self._note(group, serving=False)

    def on_worker_group_recovered(self, group: WorkerGroup) -> None:
        """It was restarted and serves: each worker has a new life."""
        for name, identity in self._said(group, anew=True):
            self._lives.recover(name, **identity)
        self._note(group, serving=True)

    def validate_registered_workers_to_proxy(
        self, timeout: float = VALIDATE_SECONDS, *, requests: int | None = None, asking: Connection | None = None
    ) -> None:
        """Block until every active entrypoint is registered, and the proxies, asked with requests, answer by them.

        `requests` through each proxy; 0 reads back only. `asking` are credentials that may ask the controller to
        verify, where those of a publisher may not. Works on any thread; that of an event loop it holds up.
        Raises `NotValidated` after `timeout` seconds.
        """
        goal = Goal(pool=self._pool, at_least=max(1, len(self._serving)))
        checks = validate(
            self.publisher,
            self._connection,
            goal,
            timeout=timeout,
            requests=requests,
            asking=asking or self._connection,
        )
        block_on(checks)
        _log.info("xtuner.validated", pool=self._pool, workers=goal.at_least)

    def _said(self, group: WorkerGroup, *, anew: bool) -> list[tuple[str, Identity]]:
        """Each worker's name and what a fact has to say about its place. `anew`: the cell was started again."""
        named = list(workers_by_name(group, self._pool).items())
        if not named:
            return []
        if len(named) == 1:
            ((name, worker),) = named
            return [(name, Identity(entrypoint=worker.is_request_entrypoint))]
        names = [name for name, _ in named]
        number = self._lives.next_cell(names) if anew else self._lives.present_cell(names)
        return [
            (
                name,
                Identity(cell_size=len(named), cell_incarnation=number, entrypoint=bool(worker.is_request_entrypoint)),
            )
            for name, worker in named
        ]

    def _note(self, group: WorkerGroup, *, serving: bool) -> None:
        for name, worker in workers_by_name(group, self._pool).items():
            if serving and worker.is_request_entrypoint:
                self._serving[name] = None
            else:
                self._serving.pop(name, None)


def workers_by_name(group: WorkerGroup, pool: str = POOL) -> dict[str, RolloutWorker]:
    """Each worker of a group by the name that the log has for it, in order of rank. Raises `InvalidFact`."""
    try:
        workers = sorted(group.workers, key=lambda worker: worker.rank)
        first = min(group.ranks, default=None)
    except (AttributeError, TypeError) as exc:
        raise InvalidFact(f"{str(group)[:100]} is no worker group of XTuner's ({exc}); nothing is said of it") from exc
    return {} if first is None else {f"{pool}-{first}-{place}": worker for place, worker in enumerate(workers)}


def xtuner_provider(groups: Callable[[], Iterable[WorkerGroup]], pool: str = POOL) -> FrameworkProvider:
    """Where XTuner's workers are, by its registry: `primary` is the server's address, `session` the session server's.

    `groups` is called at every look-up, on a thread; it may ask XTuner's rollout controller with `ray.get`.
    """

    def everybody() -> dict[str, dict[str, str | None]]:
        named = {name: worker for group in groups() for name, worker in workers_by_name(group, pool).items()}
        return {
            name: {"primary": worker.url or None, SESSION: worker.session_url or None} for name, worker in named.items()
        }

    return FrameworkProvider.of_all(everybody)


def require_proxy(settings: Settings, *managers: Any, pool: str = POOL) -> Settings:
    """`settings` in which `pool` requires a proxy if an agent loop of XTuner's declares `requires_rollout_proxy`.

    `managers` are XTuner's configurations of agent loop managers (training, evaluation; None is passed over). Says in
    the log which configuration asked. Raises `ConfigError` if no proxy serves the pool then.
    """
    asking = [label for manager in managers if manager is not None for label in _asking(manager)]
    if not asking:
        return settings
    for label in asking:
        _log.info("xtuner.proxy.required", pool=pool, config=label)
    if pool not in settings.pools:
        raise ConfigError(
            [f"pools: {asking[0]} requires a proxy for pool {pool!r}, which is not declared; add [pools.{pool}]"]
        )
    if not any(pool in proxy.pools for proxy in settings.proxies):
        raise ConfigError([f"pools.{pool}: {asking[0]} requires a proxy and none serves it; name it in a proxy"])
    required = msgspec.structs.replace(settings.pools[pool], requires_proxy=True)
    return msgspec.structs.replace(settings, pools={**settings.pools, pool: required})


def _asking(manager: Any) -> list[str]:
    tasks = manager.tasks if isinstance(manager.tasks, list | tuple) else [manager.tasks]
    labels: list[str] = []
    for task in tasks:
        config = task.agent_loop_config
        if getattr(config, "requires_rollout_proxy", False):
            named = getattr(task, "task_name", None)
            labels.append(f"{type(config).__name__} of task {named!r}" if named else type(config).__name__)
    return labels
