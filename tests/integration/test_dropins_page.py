"""The snippets of the drop-ins page that have no example of their own run as they stand, against what stands in."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.small_routers import MilesRouter, small_router
from support.stream import FleetStream
from support.workers import HttpWorker

from rollbook.adapters.settings import NatsSettings, ProxySettings, Settings, StaticProvider
from rollbook.events import WorkerFact
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import HostAndPort

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dropins.md"


def snippet(heading):
    """The first piece of Python below a heading."""
    below = PAGE.read_text().partition(f"# {heading}\n")[2]
    return re.search(r"^```python\n(.*?)^```", below, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def stream(nats_server, fleet, monkeypatch):
    """The fleet's log, with an environment that names it."""
    monkeypatch.setenv("ROLLBOOK_FLEET", fleet)
    monkeypatch.setenv("ROLLBOOK_NATS_URL", nats_server.url)
    return FleetStream(nats_server.url, fleet).make()


def told(stream, worker):
    """What the log says of a worker: words and lives."""
    facts = [line.fact for line in stream.lines() if line.recorded is not None]
    about = [fact for fact in facts if isinstance(fact, WorkerFact) and fact.worker == worker]
    return [(type(fact).__name__.removeprefix("Worker"), fact.incarnation) for fact in about]


@pytest.mark.ray
async def test_ray_replicas_of_verl_are_told_of_and_found(stream, local_ray):
    import ray

    class Server:
        def __init__(self, port):
            self.port = port

        async def get_server_address(self):
            return "127.0.0.1", self.port

    handles = [ray.remote(Server).options(num_cpus=0).remote(port) for port in range(8000, 8004)]
    await asyncio.to_thread(ray.get, [handle.get_server_address.remote() for handle in handles])
    replicas = [SimpleNamespace(replica_rank=rank, server_handle=handle) for rank, handle in enumerate(handles)]
    names = {"ray": ray, "replicas": replicas}
    await asyncio.to_thread(exec, snippet("verl"), names)
    publisher, provider = names["publisher"], names["provider"]
    try:
        assert await publisher.aflush(30)
        assert await provider.get_addr("rollout-3-0") == HostAndPort("127.0.0.1", 8003)
        assert len(await provider.list_workers()) == 4
        assert await provider.locate(["rollout-9-0"]) == {}
    finally:
        await asyncio.to_thread(publisher.close)
        for handle in handles:
            ray.kill(handle)
    assert told(stream, "rollout-0-0") == [("Up", 1), ("Suspended", 1)]
    assert told(stream, "rollout-3-0") == [("Up", 1), ("Down", 1), ("Up", 2), ("Suspended", 2)]


async def test_skyrls_engines_are_registered_by_the_controller_of_the_page(stream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engines = [HttpWorker(f"rollout-{number}-0") for number in range(2)]
    *before, last = ast.parse(snippet("SkyRL").replace("timeout=300", "timeout=60")).body
    names = {"remote_inference_engine_urls": []}
    async with small_router(MilesRouter) as router:
        try:
            for engine in engines:
                await engine.start()
            names["remote_inference_engine_urls"] = [engine.url for engine in engines]
            await asyncio.to_thread(exec, compile(ast.Module(before, []), "before", "exec"), names)
            names["settings"] = Settings(
                fleet=stream.fleet,
                nats=NatsSettings(url=stream.url),
                provider=StaticProvider(),
                pools={"rollout": PoolPolicy()},
                proxies=(ProxySettings(name="a", kind="miles", admin_url=router.url, pools=("rollout",)),),
            )
            page = compile(snippet("Drop-ins for RL frameworks"), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            controlling = asyncio.ensure_future(eval(page, names))  # noqa: S307 - the page is ours
            waiting = asyncio.ensure_future(
                asyncio.to_thread(exec, compile(ast.Module([last], []), "last", "exec"), names)
            )
            try:
                await asyncio.wait([controlling, waiting], return_when=asyncio.FIRST_COMPLETED)
                assert not controlling.done()
                await waiting
            finally:
                if "controller" in names:
                    names["controller"].controller.stop()
                await controlling
            assert set(router.urls) == {engine.url for engine in engines}
        finally:
            await asyncio.to_thread(names["publisher"].close)
            for engine in engines:
                await engine.stop()


async def test_the_hook_of_miles_says_what_its_lines_say(stream, fleet):
    monitors = []
    group = SimpleNamespace(engines=[object(), object()])
    names = {
        "group": group,
        "args": None,
        "engines": [0, 1],
        "RolloutHealthMonitor": lambda group, args, *, on_engine_failure: monitors.append(on_engine_failure),
        "get_addr": {"rollout-0-0": ("127.0.0.1", 8000)}.__getitem__,
        "names": lambda: ["rollout-0-0"],
    }
    lines = snippet("miles and slime").replace('"math-rl", "nats://10.0.0.5:4222"', f"{fleet!r}, {stream.url!r}")
    await asyncio.to_thread(exec, lines, names)
    try:
        monitors[0](group, 1)
        assert await names["hook"].publisher.aflush(30)
        assert await names["provider"].get_addr("rollout-0-0") == HostAndPort("127.0.0.1", 8000)
    finally:
        await asyncio.to_thread(names["hook"].close)
    assert told(stream, "rollout-0-0") == [("Up", 1), ("Suspended", 1), ("Resumed", 1)]
    assert told(stream, "rollout-1-0") == [("Up", 1), ("Suspended", 1), ("Resumed", 1), ("Down", 1)]
