"""A real local Ray, one for all tests of a session, and fleets on it that are gone when their test is."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from support.nats import NatsServer
from support.stream import FleetStream
from support.until import until

from rollbook.adapters.demo import cluster
from rollbook.adapters.ray.border import NAMESPACE
from rollbook.adapters.ray.manager import RayWorkerManager
from rollbook.adapters.ray.spec import ServeWorkerSpec, Spec
from rollbook.events import WorkerFact

SECONDS = 90.0
"""Deadline for what takes two seconds on a quiet machine."""
DEMO = "rollbook.adapters.demo.worker:DemoWorker"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def local_ray() -> Iterator[str]:
    """Its address. The workers of Ray find our code, and the tests' own, by PYTHONPATH."""
    path = os.pathsep.join(str(ROOT / part) for part in ("events", "projections", "adapters", "tests"))
    loop = asyncio.new_event_loop()
    running = cluster.local_ray(cpus=4)
    with pytest.MonkeyPatch.context() as patch:
        # Not a runtime_env: with one, each worker process imports Ray twice.
        patch.setenv("PYTHONPATH", path)
        started = loop.run_until_complete(running.__aenter__())
    yield started.address
    loop.run_until_complete(running.__aexit__(None, None, None))
    loop.close()


Launch = Callable[..., RayWorkerManager]


@contextlib.contextmanager
def launched(server: NatsServer, fleet: str, *specs: Spec) -> Generator[RayWorkerManager]:
    """A fleet with its stream, which is gone afterwards."""
    FleetStream(server.url, fleet).make()
    try:
        yield RayWorkerManager.launch(specs, fleet=fleet, environ={"ROLLBOOK_NATS_URL": server.url}, seconds=SECONDS)
    finally:
        end_fleet(fleet)


@pytest.fixture
def launch(local_ray: str, nats_server: NatsServer, stream: FleetStream, fleet: str) -> Iterator[Launch]:
    """Launches workers of the test's fleet; whatever is left of it at the end is killed."""

    def launch(*specs: Spec, **options) -> RayWorkerManager:
        options.setdefault("environ", {"ROLLBOOK_NATS_URL": nats_server.url})
        return RayWorkerManager.launch(specs, fleet=fleet, seconds=SECONDS, **options)

    yield launch
    end_fleet(fleet)


def end_fleet(fleet: str) -> None:
    """Kill its manager first, then its workers."""
    import ray

    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    for name in sorted(name for name in names if name.partition("/")[0] == f"rollbook-{fleet}"):
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))


def demo_spec(name: str = "rollout-0-0", **fields) -> ServeWorkerSpec:
    """A demo worker that needs no CPU of its own, so that as many fit as a test likes."""
    return ServeWorkerSpec(
        name=name, **{"actor": DEMO, "ray_options": {"num_cpus": 0}, "process_seconds": SECONDS} | fields
    )


def facts_about(stream: FleetStream, worker: str) -> list[WorkerFact]:
    """What the log says about one worker, in order."""
    return [
        line.recorded.fact
        for line in stream.lines()
        if line.recorded and isinstance(line.recorded.fact, WorkerFact) and line.recorded.fact.worker == worker
    ]


def told(facts: list[WorkerFact]) -> list[str]:
    """Facts as short words: `Started 1`."""
    return [f"{type(fact).__name__.removeprefix('Worker')} {fact.incarnation}" for fact in facts]


async def facts_once(stream: FleetStream, worker: str, last: str) -> list[WorkerFact]:
    """All that the log says about one worker, once `last` (as `told` has it) is among it."""

    async def look() -> list[WorkerFact]:
        return await asyncio.to_thread(facts_about, stream, worker)

    return await until(look, lambda facts: last in told(facts), SECONDS)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not a dead one that its parent has not asked about yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def gone(*pids: int, seconds: float = SECONDS) -> None:
    """Wait until there are no such processes."""

    async def look() -> list[int]:
        return [pid for pid in pids if is_alive(pid)]

    await until(look, lambda left: not left, seconds)
