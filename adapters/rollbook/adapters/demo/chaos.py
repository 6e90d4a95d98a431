"""What is done to the fleet: a seeded schedule of kills, and one restart of the router in the middle.

The seed decides who is killed and when that is due. How long anything takes is the machine's: a life that is starting
may be hit, and a victim that has no life at that moment is waited for until it serves, so the schedule may slip.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from rollbook.adapters.demo.records import Kill, RouterRestart
from rollbook.projections.ports import HostAndPort

VICTIM_SECONDS: Final = 60.0
"""How long a kill waits for its victim to live. A restart takes 1 to 3 seconds, 20 on a machine that is too busy."""

_QUIET_START: Final = 0.05
_QUIET_END: Final = 0.20
"""Parts of the run in which nothing is killed: the last kill's consequences belong into the picture too."""
_PORT_TAKEN: Final = 0.25
"""Chance that a victim's port is taken by somebody else; else its next life has the same URL."""
_GRACE_SECONDS: Final = (0.5, 2.5)
_POLL_SECONDS: Final = 0.1


class Strike(msgspec.Struct, frozen=True):
    """A kill to be made."""

    at: float
    """Seconds after the beginning."""
    worker: str
    port_taken: bool
    grace: float
    """Seconds that a victim which had to be waited for may serve first."""


class Schedule(msgspec.Struct, frozen=True):
    """All that will be done, in order of time."""

    strikes: tuple[Strike, ...]
    router_at: float
    """Seconds after the beginning."""


class Victim(msgspec.Struct, frozen=True):
    """A life that can be killed."""

    incarnation: int
    pid: int
    address: HostAndPort | None
    """None while it does not listen yet."""
    serving: bool
    """False while it starts."""


Tell = Callable[[str], None]
"""Says in words what is done."""

FindVictim = Callable[[str], Awaitable[Victim | None]]
"""The current life of a worker, None if it has none now."""


def make_schedule(seed: int, *, workers: Sequence[str], seconds: float, kills: int) -> Schedule:
    """The same for the same arguments, on every machine."""
    rng = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point
    first, last = seconds * _QUIET_START, seconds * (1 - _QUIET_END)
    moments = sorted(rng.uniform(first, last) for _ in range(kills))
    strikes = tuple(
        Strike(at, rng.choice(workers), rng.random() < _PORT_TAKEN, rng.uniform(*_GRACE_SECONDS)) for at in moments
    )
    return Schedule(strikes, rng.uniform(0.4, 0.6) * seconds)


class Chaos:
    """Carries out a schedule."""

    def __init__(
        self, schedule: Schedule, find: FindVictim, restart_router: Callable[[], Awaitable[RouterRestart]], tell: Tell
    ) -> None:
        self.kills: list[Kill] = []
        self.restarts: list[RouterRestart] = []
        self._schedule = schedule
        self._find = find
        self._restart_router = restart_router
        self._tell = tell
        self._squatters = contextlib.AsyncExitStack()

    async def run(self) -> None:
        """Do it all, from now on. Ports that were taken stay taken until `close`."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_all(began))
            group.create_task(self._router(began))

    async def close(self) -> None:
        """Give the taken ports back."""
        await self._squatters.aclose()

    async def _router(self, began: float) -> None:
        await _until(began + self._schedule.router_at)
        self._tell("killing sglang-router, and starting it again on its port")
        self.restarts.append(await self._restart_router())
        self._tell("sglang-router answers again, with an empty list")

    async def _kill_all(self, began: float) -> None:
        for strike in self._schedule.strikes:
            await _until(began + strike.at)
            if not await self._strike(strike):
                self._tell(f"{strike.worker} did not live within {VICTIM_SECONDS:g} s, and could not be killed")

    async def _strike(self, strike: Strike) -> bool:
        """Kill a life of the victim that was not killed before; False if there is none within `VICTIM_SECONDS`."""
        until = time.monotonic() + VICTIM_SECONDS
        waited = False
        while time.monotonic() < until:
            victim = await self._fresh(strike.worker)
            if victim is not None and (victim.serving or not waited):
                await asyncio.sleep(strike.grace if waited else 0)
                if await self._kill(strike, victim):
                    return True
            waited = True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    async def _kill(self, strike: Strike, victim: Victim) -> bool:
        """False if it had died by itself."""
        at = time.time()
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        taken = strike.port_taken and victim.address is not None and await self._take(victim.address)
        self.kills.append(
            Kill(worker=strike.worker, incarnation=victim.incarnation, pid=victim.pid, at=at, port_taken=taken)
        )
        port = "; its port is somebody else's now" if taken else ""
        self._tell(f"killed {strike.worker} {victim.incarnation} (pid {victim.pid}){port}")
        return True

    async def _fresh(self, worker: str) -> Victim | None:
        """The life of a worker, if it has one that was not killed here."""
        victim = await self._find(worker)
        killed = victim is not None and any(
            (k.worker, k.incarnation) == (worker, victim.incarnation) for k in self.kills
        )
        return None if killed else victim

    async def _take(self, address: HostAndPort) -> bool:
        """Become a stranger on the dead worker's port, who hangs up on everybody."""
        until = time.monotonic() + 1
        while time.monotonic() < until:
            try:
                await self._squatters.enter_async_context(_stranger(address))
            except OSError:  # the kernel has not cleaned up after the victim yet
                await asyncio.sleep(0.005)
            else:
                return True
        return False


@contextlib.asynccontextmanager
async def _stranger(address: HostAndPort) -> AsyncGenerator[None]:
    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, address.host, address.port)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def _until(moment: float) -> None:
    await asyncio.sleep(max(moment - time.monotonic(), 0))
