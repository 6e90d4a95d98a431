"""Where the workers are, asked of the manager actor at every call. Caches nothing, and never stops the event loop.

A look-up answers within its deadline whatever Ray does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from rollbook.adapters.locating import DEADLINE
from rollbook.adapters.ray.border import ActorBroken, ActorGone, ActorSilent, RayThread, aside, manager_name
from rollbook.adapters.ray.cells import RayCells
from rollbook.adapters.ray.client import ManagerClient, addresses, primary
from rollbook.adapters.ray.joining import JOIN_SECONDS, RayCluster, head_nodes
from rollbook.adapters.ray.spec import WorkerState
from rollbook.projections.ports import HostAndPort, Located, ProviderWorker


class RayWorkerProvider:
    """The fleet's workers as its manager knows them at this moment. Made by `create`."""

    def __init__(self, client: ManagerClient, address: str | None, deadline: float) -> None:
        self._client = client
        self._cluster = RayCluster(client.threads, client.namespace, address)
        self._deadline = deadline

    @classmethod
    async def create(
        cls,
        fleet: str,
        *,
        manager: str | None = None,
        namespace: str | None = None,
        address: str | None = None,
        deadline: float = DEADLINE,
    ) -> Self:
        """For the manager of `fleet`, or the one named `manager`. `deadline` (seconds) bounds each look-up.

        Where this process is not connected to Ray yet, it is connected to `address` (as `ray.init` takes it; by default
        RAY_ADDRESS, or this machine's cluster). Ray need not be there yet: then look-ups say so, and try again.
        """
        provider = cls(ManagerClient(manager or manager_name(fleet), namespace), address, deadline)
        await provider._cluster.join_early(deadline)
        return provider

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker`, `WorkerUnreachable` or `ProviderUnavailable`."""
        states = await self._states([worker_name])
        return primary(states.get(worker_name), worker_name, self._client.name)

    async def get_addrs(self, worker_name: str) -> dict[str, HostAndPort]:
        """All its addresses now, by name (`primary`, `disaggregation_bootstrap`, `rpc`, ...). Raises as `get_addr`."""
        states = await self._states([worker_name])
        return addresses(states.get(worker_name), worker_name, self._client.name)

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`, without those that never had a life. Raises `ProviderUnavailable`."""
        states = await self._states(list(names))
        return {
            name: Located(state.addresses, state.incarnation, state.alive or state.unsure, state.identity)
            for name, state in states.items()
            if state.incarnation
        }

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows. Raises `ProviderUnavailable`."""
        states = await self._states(None)
        return [
            ProviderWorker(
                state.name, state.incarnation, None if state.unsure else state.alive, state.stage == "serving"
            )
            for state in states.values()
        ]

    def cells(self) -> RayCells:
        """How the same manager is told to start and stop workers."""
        return RayCells(self._client, self._connect)

    async def close(self) -> None:
        """Leave Ray if it was joined here."""
        await self._cluster.leave(self._deadline)

    async def _states(self, names: Sequence[str] | None) -> dict[str, WorkerState]:
        async def look() -> dict[str, WorkerState]:
            await self._connect()
            return await self._client.states(names, self._deadline)

        failed = "the Ray manager of the workers does not answer"
        return await self._cluster.answer(look(), self._deadline, failed)

    async def _connect(self) -> None:
        await self._cluster.join(self._deadline, doubtful=self._client.doubtful)


async def count_nodes(seconds: float = JOIN_SECONDS) -> int:
    """How many nodes of the cluster are alive; 0 if this process has not joined one, or Ray does not answer."""
    import ray

    def count() -> int:
        if not ray.is_initialized():
            return 0
        return sum(head_nodes(str(ray.get_runtime_context().gcs_address)).values())

    try:
        return await aside(RayThread(), count, seconds, "the cluster's nodes")
    except (ActorGone, ActorSilent, ActorBroken):
        return 0
