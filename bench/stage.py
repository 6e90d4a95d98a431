"""What the router benchmarks share: a controller over an embedded NATS, and a bare admin client."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from rollbook.adapters.bootstrap import Built, build
from rollbook.adapters.settings import ProxySettings, Settings, StaticProvider
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import HostAndPort

FLEET = "bench"
DEADLINE = 90.0
"""Seconds for anything to happen."""


@contextlib.asynccontextmanager
async def controller(
    folder: Path, routers: Mapping[str, str], workers: dict[str, HostAndPort]
) -> AsyncGenerator[Built]:
    """A running controller with sglang-routers (URLs by name) and a static provider."""
    settings = Settings(
        fleet=FLEET,
        provider=StaticProvider(workers={name: {"primary": str(address)} for name, address in workers.items()}),
        pools={"rollout": PoolPolicy()},
        proxies=tuple(
            ProxySettings(name=name, kind="sglang", admin_url=url, pools=("rollout",)) for name, url in routers.items()
        ),
    )
    async with build(settings, folder / ".rollbook", environ=os.environ) as built:
        running = asyncio.create_task(built.controller.run())
        started = asyncio.create_task(built.controller.started.wait())
        try:
            await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield built
        finally:
            started.cancel()
            built.controller.stop()
            await running


@contextlib.asynccontextmanager
async def serve_workers(count: int, seconds: float = 0.0) -> AsyncGenerator[list[HostAndPort]]:
    """So many workers, each on a port of its own, that take so long to say how they are.

    They name no model: for each worker that does, the router looks for a tokenizer, which takes longer than the add,
    and up to six seconds, in which the router does nothing else, where it looks on the network and there is none.
    """

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        for _ in range(count):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield [HostAndPort(host, port) for host, port in runner.addresses]
    finally:
        await runner.cleanup()


class Admin:
    """The router's admin API by hand."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def list(self) -> dict[str, str]:
        """URL → id."""
        async with self._session.get(f"{self._url}/workers") as answer:
            found: dict[str, Any] = await answer.json()
        return {worker["url"]: worker["id"] for worker in found["workers"]}

    async def add(self, url: str) -> None:
        """Accepted, not done."""
        async with self._session.post(f"{self._url}/workers", json={"url": url}) as answer:
            answer.raise_for_status()

    async def delete(self, worker_id: str) -> None:
        """Accepted, not done."""
        async with self._session.delete(f"{self._url}/workers/{worker_id}") as answer:
            answer.raise_for_status()

    async def until(self, url: str, *, listed: bool) -> None:
        """Poll until the URL is listed, or is not."""
        async with asyncio.timeout(DEADLINE):
            while (url in await self.list()) is not listed:  # noqa: ASYNC110 - a router has no event to wait for
                await asyncio.sleep(0.001)
