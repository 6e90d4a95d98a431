"""A provider whose workers live in a dictionary that the caller changes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollbook.projections.ports import (
    Clock,
    HostAndPort,
    Identity,
    Located,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerUnreachable,
)

PRIMARY = "primary"


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A worker as the provider knows it."""

    incarnation: int
    addresses: dict[str, HostAndPort]
    alive: bool
    serving: bool
    identity: Identity | None = None


class MemoryProvider:
    """Knows what it was told with `place`. Every answer is what is true when it is given."""

    def __init__(self, clock: Clock) -> None:
        self.available = True
        """False: every call raises `ProviderUnavailable`."""
        self.seconds = 0.0
        """How long an answer takes."""
        self._clock = clock
        self._workers: dict[str, Placed] = {}

    def place(
        self,
        worker: str,
        *,
        incarnation: int,
        addresses: dict[str, HostAndPort],
        alive: bool = True,
        serving: bool = True,
        identity: Identity | None = None,
    ) -> None:
        """From now on this life of `worker` is at `addresses`, and says who it is as `identity` tells."""
        self._workers[worker] = Placed(incarnation, dict(addresses), alive, serving, identity)

    def kill(self, worker: str) -> None:
        """It is known, and dead."""
        placed = self._workers[worker]
        self._workers[worker] = msgspec.structs.replace(placed, alive=False, serving=False)

    def forget(self, worker: str) -> None:
        """It is not known any more."""
        self._workers.pop(worker, None)

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker`, `WorkerUnreachable` or `ProviderUnavailable`."""
        placed = (await self._answer()).get(worker_name)
        if placed is None:
            msg = f"the provider knows no worker {worker_name!r}; it knows {len(self._workers)}"
            raise UnknownWorker(msg)
        if not placed.alive or PRIMARY not in placed.addresses:
            state = "has no primary address" if placed.alive else "is dead"
            msg = f"worker {worker_name!r} (incarnation {placed.incarnation}) {state}; wait for its next life"
            raise WorkerUnreachable(msg)
        return placed.addresses[PRIMARY]

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`. Raises `ProviderUnavailable`."""
        workers = await self._answer()
        return {
            name: Located(dict(placed.addresses), placed.incarnation, placed.alive, placed.identity)
            for name in names
            if (placed := workers.get(name)) is not None
        }

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows. Raises `ProviderUnavailable`."""
        workers = await self._answer()
        return [
            ProviderWorker(name, placed.incarnation, placed.alive, placed.serving) for name, placed in workers.items()
        ]

    async def _answer(self) -> dict[str, Placed]:
        if self.seconds:
            await self._clock.sleep(self.seconds)
        if not self.available:
            msg = "the provider in memory was made unavailable"
            raise ProviderUnavailable(msg)
        return self._workers
