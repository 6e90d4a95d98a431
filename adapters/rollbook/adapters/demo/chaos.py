"""What is done in a demo without `--chaos`: a seeded schedule of kills, and one restart of the router in the middle.

The seed decides who is killed and when that is due. How long anything takes is the machine's, so the schedule may slip.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rollbook.adapters.demo.faults import GRACE_SECONDS, PORT_TAKEN, QUIET_END, QUIET_START
from rollbook.adapters.demo.hunting import Hunter, Tell
from rollbook.adapters.demo.records import RouterRestart


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


def make_schedule(seed: int, *, workers: Sequence[str], seconds: float, kills: int) -> Schedule:
    """The same for the same arguments, on every machine."""
    rng = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point
    first, last = seconds * QUIET_START, seconds * (1 - QUIET_END)
    moments = sorted(rng.uniform(first, last) for _ in range(kills))
    strikes = tuple(
        Strike(at, rng.choice(workers), rng.random() < PORT_TAKEN, rng.uniform(*GRACE_SECONDS)) for at in moments
    )
    return Schedule(strikes, rng.uniform(0.4, 0.6) * seconds)


class Chaos:
    """Carries out a schedule, with the help of a hunter."""

    def __init__(
        self, schedule: Schedule, hunter: Hunter, restart_router: Callable[[], Awaitable[RouterRestart]], tell: Tell
    ) -> None:
        self.restarts: list[RouterRestart] = []
        self._schedule = schedule
        self._hunter = hunter
        self._restart_router = restart_router
        self._tell = tell

    async def run(self) -> None:
        """Do it all, from now on."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_all(began))
            group.create_task(self._router(began))

    async def _router(self, began: float) -> None:
        await until_moment(began + self._schedule.router_at)
        self._tell("killing sglang-router, and starting it again on its port")
        self.restarts.append(await self._restart_router())
        self._tell("sglang-router answers again, with an empty list")

    async def _kill_all(self, began: float) -> None:
        for strike in self._schedule.strikes:
            await until_moment(began + strike.at)
            await self._hunter.strike(strike.worker, "killed", port_taken=strike.port_taken, grace=strike.grace)


async def until_moment(moment: float) -> None:
    """Sleep until the monotonic clock says `moment`."""
    await asyncio.sleep(max(moment - time.monotonic(), 0))
