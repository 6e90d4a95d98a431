"""A provider whose workers live in a dictionary that the caller changes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollbook.adapters.locating import Locating
from rollbook.projections.ports import Clock, HostAndPort, Identity, Located, ProviderUnavailable, ProviderWorker


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A worker as the provider knows it."""

    incarnation: int
    addresses: dict[str, HostAndPort]
    alive: bool
    serving: bool
    identity: Identity | None = None


class MemoryProvider(Locating):
    """Knows what it was told with `place`. Every answer is what is true when it is given."""

    who = "the provider in memory"

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
