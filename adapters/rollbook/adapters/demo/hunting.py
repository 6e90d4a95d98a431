"""Ends lives of workers: finds the one that a worker has now, ends it once, and may take its port away.

A life that is starting may be hit. A victim that has no life at that moment is waited for until it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import msgspec

from rollbook.adapters.demo.records import How, Kill
from rollbook.projections.ports import HostAndPort

VICTIM_SECONDS: Final = 120.0
"""How long a victim is waited for. A restart takes 1 to 3 seconds, 20 on a machine that is too busy; in a chaos run the
Ray manager may be restarted before it has found out that a worker hangs, and then once more."""

_POLL_SECONDS: Final = 0.1


class Victim(msgspec.Struct, frozen=True):
    """A life that can be ended."""

    incarnation: int
    pid: int
    """Of the process that serves."""
    address: HostAndPort | None
    """None while it does not listen yet."""
    serving: bool
    """False while it starts."""


Tell = Callable[[str], None]
"""Says in words what is done."""

FindVictim = Callable[[str], Awaitable[Victim | None]]
"""The current life of a worker, None if it has none now."""

KillActor = Callable[[str], Awaitable[None]]
"""Has Ray kill the actor of a worker."""


class Hunter:
    """Ends each life once. `kills` has all that it ended, and those that ended with their node."""

    def __init__(self, find: FindVictim, tell: Tell, kill_actor: KillActor | None = None) -> None:
        self.kills: list[Kill] = []
        self._find = find
        self._tell = tell
        self._kill_actor = kill_actor
        self._squatters = contextlib.AsyncExitStack()

    async def close(self) -> None:
        """Give the taken ports back."""
        await self._squatters.aclose()

    async def strike(self, worker: str, how: How, *, port_taken: bool, grace: float) -> bool:
        """End a life of the worker that was not ended before; False if there is none within `VICTIM_SECONDS`.

        One that had to be waited for may serve for `grace` seconds first.
        """
        until = time.monotonic() + VICTIM_SECONDS
        waited = False
        while time.monotonic() < until:
            victim = await self.fresh(worker)
            # One that hangs while it starts is given up only when its time for that is over, which is long.
            if victim is not None and (victim.serving or not (waited or how == "hung")):
                await asyncio.sleep(grace if waited else 0)
                if await self._end(worker, victim, how, port_taken=port_taken):
                    return True
            waited = True
            await asyncio.sleep(_POLL_SECONDS)
        self._tell(f"{worker} did not live within {VICTIM_SECONDS:g} s, and could not be killed")
        return False

    async def fresh(self, worker: str) -> Victim | None:
        """The life of a worker, if it has one that was not ended here."""
        victim = await self._find(worker)
        return None if victim is None or self._ended(worker, victim.incarnation) else victim

    def died(self, worker: str, incarnation: int, at: float) -> None:
        """It ended with its node, unless it had ended before."""
        if not self._ended(worker, incarnation):
            kill = Kill(worker=worker, incarnation=incarnation, pid=None, at=at, port_taken=False, how="node died")
            self.kills.append(kill)

    def _ended(self, worker: str, incarnation: int) -> bool:
        return any((kill.worker, kill.incarnation) == (worker, incarnation) for kill in self.kills)

    async def _end(self, worker: str, victim: Victim, how: How, *, port_taken: bool) -> bool:
        """False if it had died by itself."""
        at = time.time()
        try:
            if how == "actor killed" and self._kill_actor is not None:
                await self._kill_actor(worker)
            else:
                os.kill(victim.pid, signal.SIGSTOP if how == "hung" else signal.SIGKILL)
        except ProcessLookupError:
            return False
        taken = port_taken and victim.address is not None and await self._take(victim.address)
        incarnation, pid = victim.incarnation, victim.pid
        self.kills.append(Kill(worker=worker, incarnation=incarnation, pid=pid, at=at, port_taken=taken, how=how))
        port = "; its port is somebody else's now" if taken else ""
        self._tell(f"{how} {worker} {victim.incarnation} (pid {victim.pid}){port}")
        return True

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
