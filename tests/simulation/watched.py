"""The ports of a world that note, for the witness, what controllers ask and what they are told."""

import contextvars
from typing import TYPE_CHECKING

import msgspec

from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.log import MemoryLog
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.projections.ports import Identity

if TYPE_CHECKING:
    from simulation.controllers import Running
    from simulation.world import World

current: contextvars.ContextVar["Running | None"] = contextvars.ContextVar("current", default=None)
"""The controller process in which a line of code runs."""


class WatchedLog(MemoryLog):
    """Notes who is about to write [I7], and on what [I3]."""

    def __init__(self, world: "World") -> None:
        weather = world.weather
        super().__init__(world.clock, world.rng("log"), window=weather.window, faults=weather.log)
        self._world = world

    async def append(self, drafts, *, expect=None):
        self._world.witness.appends(current.get(), drafts)
        if self._world.kept is not None:
            self._world.kept.probes.appends(drafts)
        return await super().append(drafts, expect=expect)


class WatchedProvider(MemoryProvider):
    """Notes every answer, so that an add can be held against the look-up before it [I6]."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.clock)
        self._world = world

    async def locate(self, names):
        answer = await super().locate(names)
        for name, located in answer.items():
            if self._world.weather.identities:
                answer[name] = msgspec.structs.replace(located, identity=identity(name, located.incarnation))
            if (running := current.get()) is not None:
                self._world.witness.located(running, name, answer[name])
        return answer

    async def list_workers(self):
        answer = await super().list_workers()
        if (running := current.get()) is not None:
            self._world.witness.budget.provider_listed(running)
        return answer


class WatchedReadiness(MemoryReadiness):
    """As the provider's."""

    def __init__(self, clock: LoopClock, world: "World") -> None:
        super().__init__(clock)
        self._world = world

    async def check(self, url, path, identity=None):
        self._world.witness.probed(url, identity, "no answer yet")
        answer = await super().check(url, path, identity)
        self._world.witness.probed(url, identity, answer)
        return answer


def identity(name: str, incarnation: int) -> Identity:
    """What a life of a worker says when it is asked who it is."""
    return Identity(f"{name}.{incarnation}", header="x-rollbook-worker")
