"""A provider for workers whose addresses do not change: they stand in the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rollbook.projections.ports import HostAndPort, Located, ProviderWorker, UnknownWorker, WorkerUnreachable

_PRIMARY: Final = "primary"
_ANY: Final = 0
"""A file cannot say which life answers at an address, so any does."""


class StaticProvider:
    """Knows what it was given, by worker and by the address's name. Whether anybody listens there it cannot know."""

    def __init__(self, workers: Mapping[str, Mapping[str, HostAndPort]]) -> None:
        self._workers = {worker: dict(addresses) for worker, addresses in workers.items()}

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address. Raises `UnknownWorker`, or `WorkerUnreachable` if none is given."""
        addresses = self._workers.get(worker_name)
        if addresses is None:
            raise UnknownWorker(
                f"the configuration names no worker {worker_name!r}; add [provider.workers.{worker_name}]"
            )
        if _PRIMARY not in addresses:
            raise WorkerUnreachable(f"the configuration gives worker {worker_name!r} no {_PRIMARY} address")
        return addresses[_PRIMARY]

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out."""
        return {name: Located(dict(self._workers[name]), _ANY) for name in names if name in self._workers}

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that the configuration names."""
        return [ProviderWorker(name, _ANY, alive=True) for name in self._workers]
