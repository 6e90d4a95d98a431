"""How a trainer starts its fleet's workers and finds them: plain blocking calls, each with a deadline.

The manager is an actor; this is a handle on it that looks it up at every call. The controller has its own way, the
asynchronous `RayWorkerProvider`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, Self, TypeVar

from rollbook.adapters.publisher.errors import PublisherMisconfigured
from rollbook.adapters.ray.actor import CONCURRENCY, ManagerActor
from rollbook.adapters.ray.border import (
    NAMESPACE,
    ActorBroken,
    ActorGone,
    ActorSilent,
    RayThread,
    aside,
    find,
    is_taken,
    manager_name,
)
from rollbook.adapters.ray.checking import cells_of
from rollbook.adapters.ray.claims import Description, KeptElsewhere
from rollbook.adapters.ray.client import ManagerClient, addresses, primary
from rollbook.adapters.ray.observing import OBSERVE_SECONDS
from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.ray.spec import InvalidSpec, Spec, WorkerState
from rollbook.events import RollbookError, validate_name
from rollbook.projections.ports import HostAndPort, WorkerUnreachable
from rollbook.projections.recovery.ports import Termination

T = TypeVar("T")

_KEPT: Final[dict[str, Any]] = {}
"""Handles of the managers that this process made. Ray ends an actor that is not detached when its last handle is gone,
and a trainer that does not keep the result of `launch` must not lose its workers for it."""
_LOOK_AGAIN_SECONDS: Final = 0.05


class FleetMismatch(RollbookError):
    """There is a manager of that name, and it keeps another fleet or lives differently."""


class WorkersNotUp(RollbookError):
    """Not all workers came to serve in time. The message says for each how far it is."""


class RayWorkerManager:
    """A fleet's manager. Made by `launch` or `get_handle`.

    Every call raises `ActorGone` if there is no such manager (any more), and `ActorSilent` if it does not answer in
    time. Calls block; on an event loop use `asyncio.to_thread`.
    """

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self._client = ManagerClient(name, namespace)

    @classmethod
    def launch(
        cls,
        specs: Iterable[Spec],
        *,
        fleet: str,
        environ: Mapping[str, str],
        name: str | None = None,
        namespace: str = NAMESPACE,
        detached: bool = False,
        observe_seconds: float = OBSERVE_SECONDS,
        seconds: float = 60.0,
    ) -> Self:
        """Start the workers, under the manager of that name; make it if there is none. Does not wait for the workers.

        `environ` says where NATS is, as for `Publisher.from_env`; only its ROLLBOOK_NATS_ variables are taken, and
        `os.environ` will do. A fleet that is not `detached` ends with this process. Cells that the manager has
        already stay as they are. A manager that is made here says who lives in its pools (`FleetObserved`) on change
        and every `observe_seconds`. `seconds` bounds each of the steps. Ray must be initialised.

        Raises `InvalidSpec`, `KeptElsewhere` if another manager of the fleet has some of these cells (either way none
        is started), `InvalidName`, `FleetMismatch`, or `PublisherMisconfigured` if `environ` names no server.
        """
        validate_name("fleet", fleet)
        if not 0 < observe_seconds < float("inf"):
            raise InvalidSpec(f"observe_seconds is {observe_seconds}; it must be more than 0 and finite")
        listed = [spec for ranks in cells_of(specs).values() for spec in ranks]
        manager = cls(name or manager_name(fleet), namespace)
        nats = {key: value for key, value in environ.items() if key.startswith("ROLLBOOK_NATS_")}
        if not nats.get("ROLLBOOK_NATS_URL"):
            raise PublisherMisconfigured(
                "ROLLBOOK_NATS_URL is not in `environ` (for example nats://host:4222): the manager says there what "
                "becomes of its workers. Of the server that `rollbook up` embeds, .rollbook/nats.url holds it"
            )
        made = manager._make(fleet, nats, detached=detached, observe_seconds=observe_seconds, seconds=seconds)
        found = manager.describe(seconds=seconds)
        if (found.fleet, found.detached) != (fleet, detached):
            raise FleetMismatch(
                f"manager {manager.name!r} keeps fleet {found.fleet!r} (detached: {found.detached}), not {fleet!r} "
                f"(detached: {detached}); give another name, or stop that one first"
            )
        try:
            manager._run(manager._client.launch(listed, seconds))
        except (InvalidSpec, KeptElsewhere):
            if made:
                manager._unmake(seconds)
            raise
        return manager

    @classmethod
    def get_handle(cls, name: str, *, namespace: str = NAMESPACE, seconds: float = 10.0) -> Self:
        """The manager that was launched under this name (`rollbook-<fleet>` unless it was given one)."""
        manager = cls(name, namespace)
        manager.describe(seconds=seconds)
        return manager

    def describe(self, *, seconds: float = 5.0) -> Description:
        """What the manager itself is."""
        return self._run(self._client.describe(seconds))

    def get_worker_addr(self, worker_name: str, *, seconds: float = 5.0) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker` or `WorkerUnreachable`."""
        states = self._run(self._client.states([worker_name], seconds))
        return primary(states.get(worker_name), worker_name, self.name)

    def locate(self, names: Iterable[str], *, seconds: float = 5.0) -> dict[str, WorkerState]:
        """How these workers are; unknown ones are left out."""
        return self._run(self._client.states(list(names), seconds))

    def list_workers(self, *, seconds: float = 5.0) -> list[WorkerState]:
        """How all workers are."""
        return list(self._run(self._client.states(None, seconds)).values())

    def wait_until_up(self, *, seconds: float) -> list[WorkerState]:
        """Wait until every worker serves that is not stopped. Raises `WorkersNotUp`, at once if one was given up."""
        return self._run(self._wait_until_up(seconds))

    def get_worker_url(self, worker_name: str, kind: str = PRIMARY, *, seconds: float = 5.0) -> str:
        """The URL of one kind of address now, as the spec's `urls` write it.

        Raises `UnknownWorker`, or `WorkerUnreachable`, also if it has no such address.
        """
        state = self._run(self._client.states([worker_name], seconds)).get(worker_name)
        known = addresses(state, worker_name, self.name)
        if state is None or kind not in state.urls:
            told = ", ".join(sorted(known))
            raise WorkerUnreachable(f"worker {worker_name!r} has no address {kind!r}; it has {told}")
        return state.urls[kind]

    def start_cells(self, workers: Iterable[str], *, seconds: float = 600.0) -> None:
        """Begin a life of every cell of these workers that has none; return when all have processes and numbers.

        All or none: raises `NotStarted` after having ended those that it began.
        """
        self._run(self._client.start_cells(list(workers), seconds))

    def stop_cells(self, workers: Iterable[str], reason: str, *, seconds: float = 120.0) -> None:
        """End the cells of these workers in order; they are down as `planned`, and stay so until they are started.

        Raises `NotStarted` for a worker that the manager does not have.
        """
        self._run(self._client.stop_cells(list(workers), reason, seconds))

    def terminate(self, worker: str, expected_incarnation: int, *, seconds: float = 60.0) -> Termination:
        """Kill that very life of `worker`, and its cell's with it; another one is never touched.

        What follows is the business of whoever restarts the cell: the manager, or a recoverer.
        """
        return Termination(self._run(self._client.terminate(worker, expected_incarnation, seconds)))

    def stop(self, reason: str = "the fleet was stopped", *, seconds: float = 60.0) -> list[str]:
        """End all workers, then the manager. Returns the facts that did not reach the log, as lines for people."""
        unsaid = self._run(self._client.stop(reason, seconds))
        self._kill()
        return unsaid

    def _make(
        self, fleet: str, nats: Mapping[str, str], *, detached: bool, observe_seconds: float, seconds: float
    ) -> bool:
        """Make the actor, unless its name is taken; whether it was made here."""

        def make() -> Any | None:
            import ray

            if not ray.is_initialized():
                raise ActorSilent("this process is not connected to Ray; call ray.init first")
            made = ray.remote(ManagerActor).options(
                name=self.name,
                namespace=self.namespace,
                lifetime="detached" if detached else None,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=CONCURRENCY,
            )
            try:
                return made.remote(fleet, self.namespace, nats, detached=detached, observe_seconds=observe_seconds)
            except ValueError as exc:
                if is_taken(exc):
                    return None
                raise

        handle = self._run(aside(self._client.threads, make, seconds, f"manager {self.name!r}"))
        if handle is not None and not detached:
            _KEPT[self._key] = handle
        return handle is not None

    def _unmake(self, seconds: float) -> None:
        """End the actor that was made here, unless it has got workers from elsewhere."""
        with contextlib.suppress(ActorGone, ActorSilent, ActorBroken):
            if self._run(self._client.resign(seconds)):
                self._kill()

    def _kill(self) -> None:
        import ray

        _KEPT.pop(self._key, None)
        with contextlib.suppress(ActorGone):
            ray.kill(find(self.name, self.namespace))

    async def _wait_until_up(self, seconds: float) -> list[WorkerState]:
        until = time.monotonic() + seconds
        while True:
            states = await self._client.states(None, max(0.1, until - time.monotonic()))
            missing = [state for state in states.values() if state.stage not in {"serving", "stopped"}]
            if not missing:
                return list(states.values())
            if time.monotonic() >= until or any(state.stage == "given_up" for state in missing):
                told = "; ".join(f"{state.name} is {state.stage}: {state.reason}" for state in missing)
                raise WorkersNotUp(f"{len(missing)} of {len(states)} workers do not serve: {told}")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    @property
    def _key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """On a thread of its own: the caller's may run an event loop, and another one's call may wait for long."""
        return RayThread().submit(lambda: asyncio.run(work)).result()
