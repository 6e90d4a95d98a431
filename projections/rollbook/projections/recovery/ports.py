"""What recovery needs from whoever starts and kills processes.

::

    RollbookError
    └── ManagerError
        ├── ManagerUnavailable  no answer: what it did is unknown
        └── NotStarted          it answered, and what it had started is ended again
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from rollbook.events import RollbookError


class ManagerError(RollbookError):
    """A worker manager did not do what it was asked for."""


class ManagerUnavailable(ManagerError):
    """No answer from the manager: what it did is unknown. Asking again is safe."""


class NotStarted(ManagerError):
    """The workers could not be started. None of those that this call began is left."""


class Termination(StrEnum):
    """What became of a life that was to end."""

    TERMINATED = "terminated"
    """It was alive, and is gone."""
    ALREADY_GONE = "already_gone"
    STALE = "stale"
    """Another life of the worker is alive. It was not touched."""


class ManagedWorker(msgspec.Struct, frozen=True, gc=False):
    """A worker as its manager knows it now."""

    name: str
    incarnation: int
    """Of its newest life; 0 before the first one."""
    alive: bool


class WorkerManager(Protocol):
    """Starts and ends the processes of workers, and publishes their facts itself. Restarts nothing by itself.

    It may know which of them are a cell, and end all of a cell when one of it has ended.
    """

    async def start_cell(self, workers: Sequence[str]) -> None:
        """Begin a new life of each of these that is not alive; return when each has a process and a number.

        All or none: raises `NotStarted` after having ended those that it began. Raises `ManagerUnavailable`.
        """
        ...

    async def stop_cell(self, workers: Sequence[str], reason: str) -> None:
        """End these workers in order; they are down as `planned` then. Raises `ManagerUnavailable`."""
        ...

    async def terminate(self, worker: str, expected_incarnation: int) -> Termination:
        """Kill that very life of `worker`, which is down as `exited` then; another one is never touched [I3].

        Raises `ManagerUnavailable`.
        """
        ...

    async def list_workers(self) -> list[ManagedWorker]:
        """All that it manages. Raises `ManagerUnavailable`."""
        ...
