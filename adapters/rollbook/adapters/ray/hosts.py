"""Makes, finds and ends the processes of a fleet's workers, each under the name that only one living actor can have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rollbook.adapters.ray.border import (
    AGAIN_SECONDS,
    ActorGone,
    ActorSilent,
    RayThread,
    aside,
    call,
    find,
    host_name,
    is_taken,
)
from rollbook.adapters.ray.capacity import shortage
from rollbook.adapters.ray.host import CONCURRENCY, Identity, WorkerHost
from rollbook.adapters.ray.processes import is_gone
from rollbook.adapters.ray.rooms import Rooms
from rollbook.adapters.ray.spec import InvalidSpec, Spec
from rollbook.events import RollbookError

T = TypeVar("T")

_log = structlog.get_logger()

LOOK_SECONDS: Final = 10.0
"""Deadline of one question to Ray's head or to a host that should be able to answer."""
GONE_SECONDS: Final = 15.0
"""For a process that was killed to be gone, or its node to be called lost. Ray gives one that hangs 5 s. One that the
kernel still holds (a GPU's driver may) delays nobody longer."""
_SHORTLY: Final = 0.05
_AT_ONCE_SECONDS: Final = 2.0
"""For what is only told, while something else waits for it."""


class Hosts:
    """The processes of one fleet. `manager` is a handle whose end they share, or None for a detached fleet."""

    def __init__(self, fleet: str, namespace: str, threads: RayThread, manager: Any | None) -> None:
        self._fleet = fleet
        self._namespace = namespace
        self._threads = threads
        self._manager = manager
        self._rooms = Rooms(fleet, detached=manager is None)

    async def make_room(self, specs: Sequence[Spec]) -> Any | None:
        """A placement group for the processes of a cell, as their specs say; None if they ask for none.

        Ray may not have found room yet: the processes wait for it.
        """
        if specs[0].placement is None:
            return None
        return await self._blocking(lambda: self._rooms.make(specs), f"cell {specs[0].cell_key}")

    async def free_room(self, specs: Sequence[Spec]) -> None:
        """Remove the cell's placement group, if it has one."""
        if specs[0].placement is not None:
            await self._blocking(lambda: self._rooms.remove(specs[0].cell_key), f"cell {specs[0].cell_key}")

    async def shortage(self, specs: Sequence[Spec]) -> str:
        """What the processes of a cell ask for and what the cluster has; empty if Ray does not say at once."""

        def look() -> str:
            import ray

            nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]  # type: ignore[no-untyped-call]
            return shortage(specs, nodes, ray.available_resources())  # type: ignore[no-untyped-call]

        try:
            return await self._blocking(look, "the resources of the cluster", _AT_ONCE_SECONDS)
        except RollbookError:
            return ""

    async def listed(self) -> set[str]:
        """The workers of this fleet that have a living actor, as Ray's head lists them at this moment."""
        import ray

        found: Any = await self._blocking(lambda: ray.util.list_named_actors(all_namespaces=True), "the list of actors")
        prefix = host_name(self._fleet, "")
        return {
            one["name"].removeprefix(prefix)
            for one in found
            if one["namespace"] == self._namespace and one["name"].startswith(prefix)
        }

    async def create(self, spec: Spec, room: Any | None = None) -> Any:
        """A handle to a new process, in its bundle of `room`, which Ray may not have started yet.

        The name may be taken: by the process before, which is ending, or by one that another manager made at the same
        moment; a living one is returned. Raises `ActorSilent` if the name does not become free, and Ray's own error for
        options that it refuses.
        """
        asked = f"worker {spec.name!r}"
        until = time.monotonic() + max(LOOK_SECONDS, spec.stop_seconds)
        while True:
            # Ray may upload a runtime environment here, which takes its time.
            handle = await self._blocking(lambda: self._make(spec, room), asked, spec.process_seconds)
            if handle is not None:
                return handle
            handle = await self.find(spec.name)
            if handle is not None and await self._answers(handle, asked):
                return handle
            if time.monotonic() > until:
                raise ActorSilent(f"{asked}: its actor name is taken by a process that neither answers nor ends")
            await asyncio.sleep(AGAIN_SECONDS)

    async def find(self, worker: str) -> Any | None:
        """A handle to the process that Ray knows under this worker's name, or None. Raises `ActorSilent`."""
        name = host_name(self._fleet, worker)
        try:
            return await self._blocking(lambda: find(name, self._namespace), f"worker {worker!r}")
        except ActorGone:
            return None

    async def end(self, handle: Any, worker: str, seconds: float) -> None:
        """Wait until the process is gone, and kill it if it is not after `seconds`."""
        import ray

        asked = f"worker {worker!r}"
        if not await self._ends(handle, asked, seconds):
            await self._blocking(lambda: ray.kill(handle), asked)
        until, why = time.monotonic() + GONE_SECONDS, "its node says that it is there"
        while time.monotonic() < until:
            try:
                if await self._blocking(lambda: is_gone(handle), f"the process of {asked}"):
                    return
            except RollbookError as exc:
                why = str(exc)
            await asyncio.sleep(_SHORTLY)
        _log.warning("manager.worker.not_gone", worker=worker, seconds=GONE_SECONDS, reason=why)

    def check(self, spec: Spec) -> None:
        """Raise `InvalidSpec` for options that Ray does not take."""
        self._actor_class(spec, None)

    def _actor_class(self, spec: Spec, room: Any | None) -> Any:
        import ray

        owned = {
            "name": host_name(self._fleet, spec.name),
            "namespace": self._namespace,
            # Every worker outlives its manager's process, so that a new manager finds it. A fleet that is not
            # detached ends through the host's own watch on the manager.
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": CONCURRENCY,
        }
        if room is not None:
            owned["scheduling_strategy"] = self._rooms.strategy(room, spec)
        try:
            return ray.remote(WorkerHost).options(**spec.ray_options, **owned)
        except (TypeError, ValueError) as exc:
            raise InvalidSpec(f"worker {spec.name!r}: Ray does not take its ray_options: {exc}") from exc

    def _make(self, spec: Spec, room: Any | None) -> Any | None:
        """Blocks. None if the name is taken."""
        cls = self._actor_class(spec, room)
        try:
            return cls.remote(self._fleet, msgspec.json.encode(spec), self._manager)
        except ValueError as exc:
            if is_taken(exc):
                return None
            raise InvalidSpec(f"worker {spec.name!r}: Ray does not make its actor: {exc}") from exc

    async def _ends(self, handle: Any, asked: str, seconds: float) -> bool:
        """Whether Ray says within `seconds` that it is dead."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                await call(handle.identity.remote(), left, asked)
            except ActorGone:
                return True
            except ActorSilent:
                pass
            await asyncio.sleep(min(AGAIN_SECONDS, left))
        return False

    async def _answers(self, handle: Any, asked: str) -> bool:
        try:
            who = msgspec.json.decode(await call(handle.identity.remote(), LOOK_SECONDS, asked), type=Identity)
        except (ActorGone, ActorSilent):
            return False
        return who.fleet == self._fleet

    async def _blocking(self, job: Callable[[], T], asked: str, seconds: float = LOOK_SECONDS) -> T:
        return await aside(self._threads, job, seconds, asked)
