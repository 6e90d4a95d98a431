"""XTuner's rollout workers behind a real sglang-router, kept right by Rollbook.

From the top of the repository:

    python -m examples.xtuner

What XTuner's trainer would have of Rollbook is in `train` and `main`; the rest stands in for XTuner.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from examples.xtuner.framework import (
    AgentLoopConfig,
    AgentLoopManagerConfig,
    RolloutHealthManager,
    RolloutWorkerRegistry,
    SandboxAgentLoopConfig,
    TaskSpecConfig,
)

from rollbook.adapters import logs
from rollbook.adapters.bootstrap import build
from rollbook.adapters.demo.router import Router
from rollbook.adapters.listeners.xtuner import XtunerListener, require_proxy, xtuner_provider
from rollbook.adapters.settings import ProxySettings, Settings, StaticProvider
from rollbook.projections.policy import PoolPolicy

WORKERS = 3
SECONDS = 60.0
AGENTS = AgentLoopManagerConfig(
    tasks=[
        TaskSpecConfig("math", AgentLoopConfig()),
        TaskSpecConfig("swe", SandboxAgentLoopConfig(requires_rollout_proxy=True)),
    ]
)


def train(registry: RolloutWorkerRegistry, listener: XtunerListener) -> None:
    """Three steps of a trainer; before the second a worker dies."""
    health = RolloutHealthManager(registry, [listener])
    listener.on_worker_groups_started(registry.groups())
    for step in range(3):
        if step == 1:
            registry.kill(1)
        health.run_once()
        health.restart_inactive_workers()
        listener.validate_registered_workers_to_proxy(SECONDS)
        print(f"step {step}: the router serves by all {WORKERS} workers")


async def main() -> None:
    """Everything in one process, for the example; a controller usually is one of its own (`rollbook up`)."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        router, registry = Router(directory), RolloutWorkerRegistry(WORKERS)
        try:
            await router.start()
            settings = require_proxy(
                Settings(
                    fleet="xtuner-example",
                    provider=StaticProvider(),
                    pools={"rollout": PoolPolicy(url="http://{session}")},
                    proxies=(ProxySettings(name="a", kind="sglang", admin_url=router.url, pools=("rollout",)),),
                ),
                AGENTS,
            )
            provider = xtuner_provider(registry.groups)
            async with build(settings, directory / ".rollbook", environ=os.environ, provider=provider) as built:
                running = asyncio.create_task(built.run())
                try:
                    listener = XtunerListener(settings.fleet, built.nats)
                    try:
                        await asyncio.to_thread(train, registry, listener)
                    finally:
                        await asyncio.to_thread(listener.close)
                finally:
                    built.controller.stop()
                    await running
        finally:
            registry.close()
            await router.kill()


logs.configure(environ=os.environ, level="info")
asyncio.run(main())
