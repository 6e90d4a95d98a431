"""Asks a manager actor, anew every time: nothing is kept between two calls, neither a handle nor an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from rollbook.adapters.ray.border import NAMESPACE, ActorBroken, RayThread, ask_named
from rollbook.adapters.ray.claims import Description
from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.ray.spec import Spec, WorkerState, decode_states, encode_specs
from rollbook.projections.ports import HostAndPort, UnknownWorker, WorkerUnreachable

T = TypeVar("T")


class ManagerClient:
    """Speaks to the manager actor `name`.

    Every call raises `ActorGone`, `ActorSilent` or `ActorBroken`, within the seconds that it is given.
    """

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self.name = name
        self.namespace = namespace or NAMESPACE
        self.threads = RayThread()
        self.doubtful = False
        """Whether the last question got no answer."""

    async def describe(self, seconds: float) -> Description:
        """What it is."""
        answer = await self._ask(lambda handle: handle.describe.remote(), seconds)
        return self._decoded(lambda: msgspec.json.decode(answer, type=Description))

    async def launch(self, specs: Sequence[Spec], seconds: float) -> None:
        """Hand it more workers. Raises `InvalidSpec` and `KeptElsewhere` too."""
        await self._ask(lambda handle: handle.launch.remote(encode_specs(specs)), seconds)

    async def resign(self, seconds: float) -> bool:
        """Have it take no workers any more, unless it has some; whether it is so."""
        return await self._ask(lambda handle: handle.resign.remote(), seconds)

    async def states(self, names: Sequence[str] | None, seconds: float) -> dict[str, WorkerState]:
        """How its workers are: those of `names` that it knows, or all."""
        answer = await self._ask(lambda handle: handle.states.remote(names), seconds)
        return self._decoded(lambda: decode_states(answer))

    async def start_cells(self, workers: Sequence[str], seconds: float, *, recovering: bool = False) -> None:
        """Begin lives of the cells of these that have none. Raises `NotStarted` too.

        A recoverer says that it is `recovering`: it may not start those that the manager restarts.
        """
        await self._ask(lambda handle: handle.start_cells.remote(workers, recovering=recovering), seconds)

    async def stop_cells(self, workers: Sequence[str], reason: str, seconds: float) -> None:
        """End the cells of these in order. Raises `NotStarted` too."""
        await self._ask(lambda handle: handle.stop_cells.remote(workers, reason), seconds)

    async def terminate(self, name: str, expected: int, seconds: float) -> str:
        """Kill that very life; a `Termination`."""
        return await self._ask(lambda handle: handle.terminate.remote(name, expected), seconds)

    async def stop(self, reason: str, seconds: float) -> list[str]:
        """End its workers; return the facts that did not reach the log, as lines for people."""
        return await self._ask(lambda handle: handle.stop.remote(reason, seconds / 2), seconds)

    async def _ask(self, ask: Callable[[Any], Awaitable[T]], seconds: float) -> T:
        try:
            answer = await ask_named(self.threads, self.name, self.namespace, ask, seconds)
        except BaseException:
            self.doubtful = True
            raise
        self.doubtful = False
        return answer

    def _decoded(self, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except msgspec.MsgspecError as exc:
            raise ActorBroken(f"manager {self.name!r} answered what this version cannot read: {exc}") from exc


def addresses(state: WorkerState | None, worker: str, manager: str) -> dict[str, HostAndPort]:
    """Its addresses by name. Raises `UnknownWorker` or `WorkerUnreachable`."""
    if state is None:
        raise UnknownWorker(f"manager {manager!r} has no worker {worker!r}")
    if not state.alive or not state.addresses:
        told = f": {state.reason}" if state.reason else ""
        raise WorkerUnreachable(f"worker {worker!r} (incarnation {state.incarnation}) is {state.stage}{told}")
    return state.addresses


def primary(state: WorkerState | None, worker: str, manager: str) -> HostAndPort:
    """Its primary address. Raises as `addresses`."""
    found = addresses(state, worker, manager)
    if PRIMARY not in found:
        known = ", ".join(sorted(found))
        raise WorkerUnreachable(f"worker {worker!r} has no {PRIMARY} address, only {known}, says manager {manager!r}")
    return found[PRIMARY]
