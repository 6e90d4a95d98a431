"""What a recoverer asks of the manager actor: start, stop and kill. Asked anew every time, and safe to ask again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from rollbook.adapters.ray.border import ActorBroken, ActorGone, ActorSilent
from rollbook.adapters.ray.client import ManagerClient
from rollbook.projections.recovery.ports import ManagedWorker, ManagerUnavailable, Termination

T = TypeVar("T")

START_SECONDS: Final = 3600.0
"""A cell may wait that long for a GPU; the recoverer gives up earlier, when its claim's time is over."""
STOP_SECONDS: Final = 120.0
ANSWER_SECONDS: Final = 30.0


class RayCells:
    """A `WorkerManager` on the manager actor that `client` speaks to. `connect` joins Ray if this process has not.

    It starts only workers whose spec says `restart="recoverer"`. Cells are started and stopped as wholes.
    """

    def __init__(self, client: ManagerClient, connect: Callable[[], Awaitable[None]]) -> None:
        self._client = client
        self._connect = connect

    async def start_cell(self, workers: Sequence[str]) -> None:
        """See `WorkerManager`."""
        await self._asked(self._client.start_cells(list(workers), START_SECONDS, recovering=True))

    async def begin(self, worker: str, seconds: float) -> None:
        """As `start_cell`, by a person's word: the cell of `worker`, also where the manager restarts it by itself."""
        await self._asked(self._client.start_cells([worker], seconds))

    async def stop_cell(self, workers: Sequence[str], reason: str) -> None:
        """See `WorkerManager`."""
        await self._asked(self._client.stop_cells(list(workers), reason, STOP_SECONDS))

    async def terminate(self, worker: str, expected_incarnation: int) -> Termination:
        """See `WorkerManager`."""
        return Termination(await self._asked(self._client.terminate(worker, expected_incarnation, ANSWER_SECONDS)))

    async def list_workers(self) -> list[ManagedWorker]:
        """See `WorkerManager`."""
        states = await self._asked(self._client.states(None, ANSWER_SECONDS))
        return [ManagedWorker(state.name, state.incarnation, state.alive) for state in states.values()]

    async def _asked(self, question: Coroutine[Any, Any, T]) -> T:
        try:
            await self._connect()
        except (ActorGone, ActorSilent, ActorBroken) as exc:
            question.close()
            raise ManagerUnavailable(f"Ray cannot be joined: {exc}") from exc
        try:
            return await question
        except (ActorGone, ActorSilent, ActorBroken) as exc:
            raise ManagerUnavailable(f"the Ray manager of the workers does not answer: {exc}") from exc
