"""Workers, as whoever runs them tells of them: where each is now, and which life of it answers there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from rollbook.events import RollbookError
from rollbook.projections.ports.readiness import Identity


class HostAndPort(msgspec.Struct, frozen=True, gc=False):
    """An address. `str()` gives `host:port`, with brackets around IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Located(msgspec.Struct, frozen=True, gc=False):
    """Where a worker is now, and which life of it answered."""

    addresses: dict[str, HostAndPort]
    """By name; `primary` is the one that takes requests."""
    incarnation: int
    """0 when the provider cannot tell (a static file): then it matches any."""
    alive: bool = True
    """False for one that is known to be dead; one whose life the provider cannot judge is not."""
    identity: Identity | None = None
    """None for a worker that cannot tell who it is."""


class ProviderWorker(msgspec.Struct, frozen=True, gc=False):
    """One line of a provider's listing."""

    name: str
    incarnation: int
    """As in `Located`."""
    alive: bool | None
    """None when the provider cannot tell: it knows where the worker should be, not whether it is there."""
    serving: bool = True


class ProviderError(RollbookError):
    """Something is wrong with a worker's address."""


class ProviderUnavailable(ProviderError):
    """The provider gave no answer within its deadline."""


class UnknownWorker(ProviderError):
    """The provider answered, and has no such worker."""


class WorkerUnreachable(ProviderError):
    """The provider knows the worker, which is dead or has no address yet."""


class WorkerProvider(Protocol):
    """Resolves a worker's address at the moment of the call. Caches nothing."""

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker`, `WorkerUnreachable` or `ProviderUnavailable`."""
        ...

    async def get_addrs(self, worker_name: str) -> dict[str, HostAndPort]:
        """All its addresses now, by name; without a primary one it has only others. Raises as `get_addr`."""
        ...

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out. Raises `ProviderUnavailable`."""
        ...

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows. Raises `ProviderUnavailable`."""
        ...
