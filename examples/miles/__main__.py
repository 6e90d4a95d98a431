"""miles' rollout engines behind a real sglang-router, kept right by Rollbook.

From the top of the repository:

    python -m examples.miles

What the trainer of miles or slime would have of Rollbook is in `train` and `main`; the rest stands in for them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from examples.miles.framework import Arguments, RolloutHealthMonitor, ServerGroup

from rollbook.adapters import logs
from rollbook.adapters.bootstrap import build
from rollbook.adapters.demo.router import Router
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.listeners.miles import MilesHook
from rollbook.adapters.listeners.provider import FrameworkProvider
from rollbook.adapters.settings import ProxySettings, Settings, StaticProvider
from rollbook.adapters.waiting import wait_gone, wait_routed
from rollbook.projections.policy import PoolPolicy

FLEET = "miles-example"
ENGINES = 3
SECONDS = 60.0
ALL = range(ENGINES)


def train(group: ServerGroup, hook: MilesHook, nats: Connection) -> None:
    """An engine dies and is recovered; then all are offloaded and come back."""
    monitor = RolloutHealthMonitor(group, Arguments(), on_engine_failure=hook.on_engine_failure)
    monitor.start()
    try:
        hook.on_engines_started(group, ALL)
        wait_routed(pool="rollout", at_least=ENGINES, timeout=SECONDS, fleet=FLEET, connection=nats)
        print(f"the router has all {ENGINES} engines")

        monitor.resume()
        group.all_engines[1].kill()
        wait_gone(worker="rollout-1-0", incarnation=1, timeout=SECONDS, fleet=FLEET, connection=nats)
        print("the health monitor found engine 1 dead, and the router has lost it")

        monitor.pause()
        hook.on_engines_started(group, group.recover())
        wait_routed(worker="rollout-1-0", incarnation=2, timeout=SECONDS, fleet=FLEET, connection=nats)
        print("engine 1 is back in its second life")

        hook.on_pause(group, ALL, reason="offload", ttl=600)
        wait_gone(pool="rollout", timeout=SECONDS, fleet=FLEET, connection=nats)
        print("offloaded: the router has nobody")

        hook.on_resume(group, ALL)
        wait_routed(pool="rollout", at_least=ENGINES, timeout=SECONDS, fleet=FLEET, connection=nats)
        print(f"onloaded: the router has all {ENGINES} engines")
    finally:
        monitor.stop()


async def main() -> None:
    """Everything in one process, for the example; a controller usually is one of its own (`rollbook up`)."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        router, group = Router(directory), ServerGroup(ENGINES)
        try:
            await router.start()
            settings = Settings(
                fleet=FLEET,
                provider=StaticProvider(),
                pools={"rollout": PoolPolicy()},
                proxies=(ProxySettings(name="a", kind="sglang", admin_url=router.url, pools=("rollout",)),),
            )
            provider = FrameworkProvider.by_name(group.get_addr, lambda: [engine.name for engine in group.all_engines])
            async with build(settings, directory / ".rollbook", environ=os.environ, provider=provider) as built:
                running = asyncio.create_task(built.run())
                try:
                    hook = MilesHook(FLEET, built.nats)
                    try:
                        await asyncio.to_thread(train, group, hook, built.nats)
                    finally:
                        await asyncio.to_thread(hook.close)
                finally:
                    built.controller.stop()
                    await running
        finally:
            group.close()
            await router.kill()


logs.configure(environ=os.environ, level="info")
asyncio.run(main())
