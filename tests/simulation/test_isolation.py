"""[I10] one slow, dead or lying router delays no other router and not the fold."""

import asyncio

import pytest
from simulation.weather import RouterWeather, Weather
from simulation.world import World

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.events import WorkerDown, WorkerUp

pytestmark = pytest.mark.simulation

CALM = Weather(routers=(RouterWeather(),) * 3, strangers=0.0)
SEED = "isolation/2"
"""One in which every router serves the pool."""
AT_ONCE = 0.1
"""Virtual seconds: nothing here takes time by itself but the pauses between two looks at a router."""


def stall(router):
    router.stalled = True


def vanish(router):
    router.available = False


def slow_down(router):
    router.faults = ProxyFaults(slowest_call=3.9)


def lie(router):
    router.faults = ProxyFaults(lie=1.0)


def fail(router):
    router.faults = ProxyFaults(fail_job=1.0)


@pytest.mark.parametrize("spoil", [stall, vanish, slow_down, lie, fail])
@pytest.mark.parametrize("when", ["from the start", "later"])
def test_one_bad_router_delays_no_other(spoil, when):
    async def main():
        world = World(SEED, CALM)
        assert all("rollout" in served.pools for served in world.policy.proxies.values())
        bad, *good = world.routers.values()
        background = [asyncio.create_task(author.run()) for author in world.fleet.authors.values()]
        if when == "from the start":
            spoil(bad)
        world.controllers.start()
        await asyncio.sleep(1)
        for round_ in range(1, 6):
            if round_ == 3:
                spoil(bad)
            for worker in world.fleet.workers.values():
                if worker.pool == "rollout":
                    await come_and_go(world, worker, round_, good)
            await asyncio.sleep(3)
        for task in background:
            task.cancel()
        assert not world.problems

    virtual.run(main())


async def come_and_go(world, worker, incarnation, good):
    """One life: every good router lists it, and drops it, as soon as the fact is stored."""
    worker.incarnation, worker.alive, worker.serving = incarnation, True, True
    world.fleet.place(worker)
    world.fleet.listen(worker)
    stored = await world.fleet.say("worker", worker, WorkerUp)
    await asyncio.sleep(AT_ONCE)
    assert world.controllers.leader.controller.projector.state.sequence >= stored
    for router in good:
        assert (worker.name, incarnation) in {(entry.worker, entry.incarnation) for entry in router.listed}
    world.fleet.leave(worker, known=True)
    await world.fleet.say("health", worker, WorkerDown, evidence="exited")
    await asyncio.sleep(AT_ONCE)
    for router in good:
        assert worker.name not in {entry.worker for entry in router.listed}
