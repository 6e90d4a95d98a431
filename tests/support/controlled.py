"""A fleet's controller in this process, as `rollbook up` builds it, without proxies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.nats import DEADLINE
from support.stream import FleetStream

from rollbook.adapters.bootstrap import Built, build
from rollbook.adapters.settings import NatsSettings, Settings, StaticProvider
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy

NOBODY = StaticProvider()


@asynccontextmanager
async def controlled(stream: FleetStream, folder: Path, provider: StaticProvider = NOBODY) -> AsyncGenerator[Built]:
    """It leads the fleet of `stream`; its workers are where `provider` says."""
    settings = Settings(
        fleet=stream.fleet,
        nats=NatsSettings(url=stream.url),
        provider=provider,
        pools={"rollout": PoolPolicy(requires_proxy=False)},
    )
    async with build(settings, folder / ".rollbook", environ=os.environ) as built:
        running = asyncio.create_task(built.run())
        try:
            async with asyncio.timeout(DEADLINE):
                await built.controller.started.wait()
            yield built
        finally:
            await end(running)
