"""What every `WorkerProvider` must do, asked of the one in memory, the static one, and Ray's on a real Ray."""

import asyncio
import os
import signal

import pytest
from support.ray import SECONDS, demo_spec, launched
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.ray.provider import RayWorkerProvider
from rollbook.adapters.static import StaticProvider
from rollbook.projections.ports import (
    HostAndPort,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerUnreachable,
)

STEADY, RESTARTED, KILLED = "rollout-0-0", "rollout-1-0", "rollout-2-0"
NOBODY = "rollout-9-0"


class MemoryWorld:
    """A provider, and what happens to the workers behind it. Each worker is for one thing to happen to."""

    counts_lives = True

    def __init__(self):
        self.provider = MemoryProvider(SystemClock())
        for port, worker in enumerate((STEADY, RESTARTED, KILLED), 8000):
            self._place(worker, 1, port)

    def _place(self, worker, incarnation, port):
        addresses = {"primary": HostAndPort("127.0.0.2", port)}
        self.provider.place(worker, incarnation=incarnation, addresses=addresses)

    async def restart(self):
        """RESTARTED lives again, at another address."""
        self._place(RESTARTED, 2, 9000)

    async def kill(self):
        """KILLED is dead and does not come back."""
        self.provider.kill(KILLED)

    async def cut_off(self):
        """Nobody can tell any more where anybody is."""
        self.provider.available = False


class StaticWorld:
    """A file: nothing happens in it."""

    counts_lives = False

    def __init__(self):
        self.provider = StaticProvider(
            {
                worker: {"primary": HostAndPort("127.0.0.2", port)}
                for port, worker in enumerate((STEADY, RESTARTED, KILLED), 8000)
            }
        )


class RayWorld:
    """A manager with demo workers."""

    counts_lives = True

    def __init__(self, manager, fleet):
        self.provider = asyncio.run(RayWorkerProvider.create(fleet, deadline=SECONDS))
        self._manager = manager

    def _state(self, worker):
        return self._manager.locate([worker], seconds=SECONDS)[worker]

    async def restart(self):
        os.kill(self._state(RESTARTED).pid, signal.SIGKILL)
        await self._until(RESTARTED, lambda now: now.stage == "serving" and now.incarnation == 2)

    async def kill(self):
        os.kill(self._state(KILLED).pid, signal.SIGKILL)
        await self._until(KILLED, lambda now: not now.alive)

    async def cut_off(self):
        import ray

        ray.kill(ray.get_actor(self._manager.name, namespace=self._manager.namespace))

    async def _until(self, worker, seen):
        async def look():
            return self._state(worker)

        await until(look, seen, SECONDS)


RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)])


@pytest.fixture(scope="module")
def ray_world(local_ray, nats_server):
    specs = [demo_spec(STEADY), demo_spec(RESTARTED, keep_port=False), demo_spec(KILLED, max_restarts=0)]
    with launched(nats_server, f"provider-{os.getpid()}", *specs) as manager:
        manager.wait_until_up(seconds=SECONDS)
        yield RayWorld(manager, f"provider-{os.getpid()}")


@pytest.fixture
def world(request):
    """Its workers come and go."""
    return MemoryWorld() if request.param == "memory" else request.getfixturevalue("ray_world")


@pytest.fixture(params=["memory", "static", RAY])
def still_world(request):
    """Nothing happens in it during the test."""
    if request.param == "static":
        return StaticWorld()
    return MemoryWorld() if request.param == "memory" else request.getfixturevalue("ray_world")


lively = pytest.mark.parametrize("world", ["memory", RAY], indirect=True)


async def test_a_known_worker_has_an_address_and_the_life_that_answers_there(still_world):
    provider = still_world.provider
    address = await provider.get_addr(STEADY)
    assert address.host == "127.0.0.2"
    assert address.port > 0
    located = await provider.locate([STEADY])
    assert list(located) == [STEADY]
    assert located[STEADY].addresses["primary"] == address
    assert located[STEADY].alive
    assert located[STEADY].incarnation == int(still_world.counts_lives)


async def test_an_unknown_worker_is_told_from_an_unreachable_one(still_world):
    with pytest.raises(UnknownWorker, match=NOBODY):
        await still_world.provider.get_addr(NOBODY)


async def test_many_are_located_at_once_and_unknown_ones_left_out(still_world):
    assert set(await still_world.provider.locate([STEADY, NOBODY, RESTARTED])) == {STEADY, RESTARTED}
    assert await still_world.provider.locate([NOBODY]) == {}
    assert await still_world.provider.locate([]) == {}


async def test_the_listing_holds_all(still_world):
    listed = {worker.name: worker for worker in await still_world.provider.list_workers()}
    assert set(listed) == {STEADY, RESTARTED, KILLED}
    assert listed[STEADY] == ProviderWorker(STEADY, int(still_world.counts_lives), alive=True, serving=True)


@lively
async def test_the_next_life_is_at_its_own_address_at_once(world):
    """I6: nothing is remembered between two look-ups."""
    before = await world.provider.get_addr(RESTARTED)
    await world.restart()
    after = await world.provider.get_addr(RESTARTED)
    assert after != before
    located = (await world.provider.locate([RESTARTED]))[RESTARTED]
    assert (located.addresses["primary"], located.incarnation, located.alive) == (after, 2, True)


@lively
async def test_a_dead_worker_is_known_and_has_no_address(world):
    await world.kill()
    with pytest.raises(WorkerUnreachable, match=f"'{KILLED}' \\(incarnation 1\\)"):
        await world.provider.get_addr(KILLED)
    assert not (await world.provider.locate([KILLED]))[KILLED].alive
    (listed,) = [worker for worker in await world.provider.list_workers() if worker.name == KILLED]
    assert listed == ProviderWorker(KILLED, 1, alive=False, serving=False)


async def assert_unavailable(provider):
    for look in (provider.get_addr(STEADY), provider.locate([STEADY]), provider.list_workers()):
        with pytest.raises(ProviderUnavailable):
            await look


async def test_no_answer_in_memory_is_unknown_and_never_no():
    world = MemoryWorld()
    await world.cut_off()
    await assert_unavailable(world.provider)


@pytest.mark.ray
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_no_manager_is_unknown_and_never_no(local_ray, nats_server, fleet):
    with launched(nats_server, fleet) as manager:
        world = RayWorld(manager, fleet)

        async def look():
            assert await world.provider.list_workers() == []
            await world.cut_off()
            await assert_unavailable(world.provider)

        asyncio.run(look())


async def test_a_static_worker_without_a_primary_address_is_unreachable():
    provider = StaticProvider({STEADY: {"session": HostAndPort("127.0.0.2", 1)}})
    with pytest.raises(WorkerUnreachable, match="no primary address"):
        await provider.get_addr(STEADY)
