"""What tests ask of a proxy's adapter, and of the router behind it."""

from __future__ import annotations

from typing import Any

from rollbook.projections.ports import Entry, Proxy, Target


def target(url: str, incarnation: int = 8, *, worker: str = "rollout-3-0", **more: Any) -> Target:
    """What is to be added, unless more is said."""
    return Target(worker=worker, incarnation=incarnation, url=url, **more)


async def entries(proxy: Proxy) -> tuple[Entry, ...]:
    return (await proxy.list()).entries


async def generate(session: Any, router: Any) -> int:
    """The status of a request through the router."""
    async with session.post(f"{router.url}/generate", json={"text": "2+2="}) as response:
        await response.read()
        return response.status
