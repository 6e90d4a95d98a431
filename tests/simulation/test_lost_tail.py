"""A log that lost its tail (an unsynced crash, an older backup): reading the routers back makes the world right."""

import asyncio

import pytest
from simulation.test_isolation import CALM
from simulation.world import World

from rollbook.adapters.memory import virtual
from rollbook.events import WorkerDown, WorkerSuspected, WorkerUp

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("lost", [1, 2, 5, 9])
@pytest.mark.parametrize("written_since", [0, 1, 2, 12])
def test_the_controller_folds_the_log_that_is_there(lost, written_since):
    async def main():
        world = World(f"tail/{lost}/{written_since}", CALM)
        background = [asyncio.create_task(author.run()) for author in world.fleet.authors.values()]
        background.append(asyncio.create_task(world.controllers.supervise()))
        first, *others = [worker for worker in world.fleet.workers.values() if worker.pool == "rollout"]
        for worker in (first, *others):
            worker.incarnation, worker.alive, worker.serving = 1, True, True
            world.fleet.place(worker)
            world.fleet.listen(worker)
            await world.fleet.say("worker", worker, WorkerUp)
            await asyncio.sleep(1)
        world.fleet.leave(first, known=True)
        await world.fleet.say("health", first, WorkerDown, evidence="exited")
        await asyncio.sleep(3)
        world.log.cut_off()
        world.log.lose_tail(world.log.messages[-1].sequence - lost)
        world.witness.journal.forget()
        world.log.available = True
        for _ in range(written_since):
            await world.fleet.say("health", others[0], WorkerSuspected)
        await asyncio.sleep(30)
        state = world.witness.journal.fold()
        assert world.controllers.leader.controller.projector.state.digest() == state.digest()
        assert world.verdict.differences(state) == []
        assert not world.problems
        for task in background:
            task.cancel()

    virtual.run(main())
