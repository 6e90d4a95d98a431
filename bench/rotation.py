"""A worker comes back on its URL: how soon it serves again, with Rollbook and with the router left alone.

Two routers with their default circuit breaker, each with a worker that stays and one that dies under traffic and
returns on the same port; both at the same time, in one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from bench.figures import Figure
from bench.stage import DEADLINE, FLEET, Admin, controller
from rollbook.adapters.demo.router import Router
from rollbook.adapters.demo.worker import serve
from rollbook.adapters.publisher import Publisher
from rollbook.projections.ports import HostAndPort

DEAD_SECONDS = 3.0
"""Under traffic all the time, so that the breaker opens."""
PACE = 0.02
STAYS, RETURNS = "rollout-0-0", "rollout-1-0"


async def measure() -> list[Figure]:
    """The same death and return at both routers."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        routers = [Router(Path(folder)), Router(Path(folder))]
        try:
            for router in routers:
                await router.start()
            left_alone, ours = await asyncio.gather(_left_alone(routers[0]), _with_rollbook(Path(folder), routers[1]))
        finally:
            for router in routers:
                await router.kill()
    note = f"from listening again to the first request served: {ours:.2f} s with Rollbook, {left_alone:.1f} s without"
    value = left_alone / ours
    return [Figure(name="back in rotation", value=value, target=10.0, better="higher", unit="x sooner", note=note)]


async def _left_alone(router: Router) -> float:
    async with aiohttp.ClientSession() as session, serve(STAYS, 1) as stays:
        admin = Admin(router.url, session)

        async def register(address: HostAndPort, _: int) -> None:
            for worker in (stays, address):
                await admin.add(f"http://{worker}")
                await admin.until(f"http://{worker}", listed=True)

        return await _die_and_return(router.url, session, register=register, died=_nothing, returned=_nothing)


async def _with_rollbook(folder: Path, router: Router) -> float:
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        stays = await stack.enter_async_context(serve(STAYS, 1))
        admin = Admin(router.url, session)
        publisher: Publisher | None = None

        async def register(address: HostAndPort, life: int) -> None:
            nonlocal publisher
            workers = {STAYS: stays, RETURNS: address}
            built = await stack.enter_async_context(controller(folder, {"router": router.url}, workers))
            publisher = Publisher(FLEET, built.nats)
            stack.push_async_callback(publisher.aclose, 5)
            for name, worker in workers.items():
                await publisher.worker_up(name, incarnation=life)
                await admin.until(f"http://{worker}", listed=True)

        async def died(life: int) -> None:
            assert publisher is not None
            await publisher.worker_down(RETURNS, incarnation=life)

        async def returned(life: int) -> None:
            assert publisher is not None
            await publisher.worker_up(RETURNS, incarnation=life)

        return await _die_and_return(router.url, session, register=register, died=died, returned=returned)


async def _die_and_return(
    router: str,
    session: aiohttp.ClientSession,
    *,
    register: Callable[[HostAndPort, int], Awaitable[None]],
    died: Callable[[int], Awaitable[None]],
    returned: Callable[[int], Awaitable[None]],
) -> float:
    """Seconds from the moment the second life listens to the first request that it serves."""
    first_served = asyncio.Event()
    async with serve(RETURNS, 1) as address:
        await register(address, 1)
        traffic = asyncio.create_task(_traffic(router, session, first_served))
        await asyncio.sleep(1)
    await died(1)
    await asyncio.sleep(DEAD_SECONDS)
    try:
        async with serve(RETURNS, 2, port=address.port):
            begin = time.perf_counter()
            await returned(2)
            async with asyncio.timeout(DEADLINE):
                await first_served.wait()
            return time.perf_counter() - begin
    finally:
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)


async def _traffic(router: str, session: aiohttp.ClientSession, first_served: asyncio.Event) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=5)
            async with session.post(f"{router}/generate", json={"text": "hello"}, timeout=timeout) as answer:
                said = await answer.json() if answer.status == 200 else {}
            if (said.get("worker"), said.get("incarnation")) == (RETURNS, 2):
                first_served.set()
        await asyncio.sleep(PACE)


async def _nothing(_: int) -> None:
    """Nobody tells the router that is left alone."""
