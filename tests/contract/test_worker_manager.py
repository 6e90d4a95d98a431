"""What every `WorkerManager` must do, asked of the one in memory and of Ray's on a real Ray."""

import asyncio
import os
import signal

import pytest
from support.ray import SECONDS, demo_spec, launched
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.manager import MemoryWorkerManager
from rollbook.adapters.ray.provider import RayWorkerProvider
from rollbook.projections.recovery.ports import ManagerUnavailable, NotStarted, Termination

CELL = ("rollout-0-0", "rollout-0-1")
OTHER, BROKEN = "rollout-1-0", "rollout-2-0"


class MemoryWorld:
    def __init__(self):
        self.manager = MemoryWorkerManager(SystemClock(), self._say, (*CELL, OTHER, BROKEN))
        self.manager.unable = {BROKEN}

    async def _say(self, fact):
        pass

    async def kill(self, name):
        await self.manager.kill(name)

    async def cut_off(self):
        self.manager.available = False


class RayWorld:
    def __init__(self, actor, fleet):
        self.manager = asyncio.run(RayWorkerProvider.create(fleet, deadline=SECONDS)).cells()
        self._actor = actor

    async def kill(self, name):
        os.kill(self._actor.locate([name], seconds=SECONDS)[name].pid, signal.SIGKILL)

    async def cut_off(self):
        import ray

        ray.kill(ray.get_actor(self._actor.name, namespace=self._actor.namespace))


RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)])


@pytest.fixture(scope="module")
def ray_world(local_ray, nats_server):
    specs = [demo_spec(name, restart="recoverer") for name in (*CELL, OTHER)]
    nowhere = {"ray_options": {"num_cpus": 4096}, "process_seconds": 1.0}
    specs.append(demo_spec(BROKEN, restart="recoverer", **nowhere))
    specs.append(demo_spec("kept-0-0"))
    fleet = f"manager-{os.getpid()}"
    with launched(nats_server, fleet, *specs) as actor:
        yield RayWorld(actor, fleet)


@pytest.fixture(params=["memory", RAY])
def world(request):
    if request.param == "memory":
        made = MemoryWorld()
        asyncio.run(made.manager.start_cell((*CELL, OTHER)))
        return made
    return request.getfixturevalue("ray_world")


async def lives(world, *names):
    """Their numbers, once all of them live."""

    async def look():
        return {one.name: one for one in await world.manager.list_workers()}

    found = await until(look, lambda now: all(now[name].alive for name in names), SECONDS)
    return [found[name].incarnation for name in names]


async def dead(world, name):
    async def look():
        return {one.name: one.alive for one in await world.manager.list_workers()}

    await until(look, lambda now: not now[name], SECONDS)


async def test_what_lives_is_left_as_it_is(world):
    before = await lives(world, *CELL)
    await world.manager.start_cell(CELL)
    assert await lives(world, *CELL) == before


async def test_i3_only_the_life_that_was_meant_is_killed(world):
    (now,) = await lives(world, OTHER)
    assert await world.manager.terminate(OTHER, now - 1) is Termination.STALE
    assert await lives(world, OTHER) == [now]
    assert await world.manager.terminate(OTHER, now) is Termination.TERMINATED
    await dead(world, OTHER)
    assert await world.manager.terminate(OTHER, now) is Termination.ALREADY_GONE
    await world.manager.start_cell([OTHER])
    assert await lives(world, OTHER) == [now + 1]


async def test_what_nobody_knows_is_gone_and_cannot_be_started(world):
    assert await world.manager.terminate("rollout-9-9", 1) is Termination.ALREADY_GONE
    with pytest.raises(NotStarted, match="rollout-9-9"):
        await world.manager.start_cell(["rollout-9-9"])


async def test_who_died_stays_down_until_it_is_started(world):
    """Its cell may end with it, or be ended by whoever starts it again."""
    before = await lives(world, *CELL)
    await world.kill(CELL[1])
    await dead(world, CELL[1])
    assert await world.manager.terminate(CELL[0], before[0]) in {Termination.TERMINATED, Termination.ALREADY_GONE}
    await dead(world, CELL[0])
    await dead(world, CELL[1])
    await world.manager.start_cell(CELL)
    assert await lives(world, *CELL) == [one + 1 for one in before]


async def test_a_planned_stop_ends_it_and_it_stays_so(world):
    before = await lives(world, *CELL)
    await world.manager.stop_cell(CELL, "scale down")
    for name in CELL:
        await dead(world, name)
    await world.manager.stop_cell(CELL, "scale down")
    await world.manager.start_cell(CELL)
    assert await lives(world, *CELL) == [one + 1 for one in before]


async def test_asked_twice_at_once_one_life_begins(world):
    (before,) = await lives(world, OTHER)
    await world.manager.terminate(OTHER, before)
    await asyncio.gather(*(world.manager.start_cell([OTHER]) for _ in range(3)))
    assert await lives(world, OTHER) == [before + 1]


async def test_all_or_none(world):
    await world.manager.stop_cell([OTHER], "test")
    with pytest.raises(NotStarted, match=BROKEN):
        await world.manager.start_cell([OTHER, BROKEN])
    await dead(world, OTHER)


@pytest.mark.parametrize("world", [RAY], indirect=True)
async def test_whom_the_manager_restarts_no_recoverer_starts_and_a_planned_stop_is_one(world):
    await lives(world, "kept-0-0")
    with pytest.raises(NotStarted, match="restarted by its manager"):
        await world.manager.start_cell(["kept-0-0"])
    await world.manager.stop_cell(["kept-0-0"], "scale down")
    await dead(world, "kept-0-0")
    with pytest.raises(NotStarted, match="restarted by its manager"):
        await world.manager.start_cell(["kept-0-0"])


async def test_no_answer_is_no_answer(world):
    """Neither `gone` nor `stale`: who did not answer said nothing about the life that was meant."""
    await world.cut_off()

    async def said():
        try:
            return await world.manager.terminate(OTHER, 1)
        except ManagerUnavailable as exc:
            return exc

    error = await until(said, lambda answer: isinstance(answer, ManagerUnavailable), SECONDS)
    assert str(error)
    with pytest.raises(ManagerUnavailable):
        await world.manager.terminate("rollout-9-9", 1)
    with pytest.raises(ManagerUnavailable):
        await world.manager.list_workers()
