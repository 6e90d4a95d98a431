"""Who sleeps on a real router: out of it until the lease ends, or in it all the time, as the pool says."""

import pytest
from support.routers import running_router
from support.scene import NAMES, scene
from support.until import until

from rollbook.events import Deregistering, WorkerResumed
from rollbook.projections.policy import PoolPolicy

pytestmark = [pytest.mark.router, pytest.mark.integration]

ONE = NAMES[0]


@pytest.fixture
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as started:
        yield started


async def asleep(on, names, ttl):
    for receipt in on.publisher.suspend(names, reason="offload", ttl=ttl):
        await receipt


async def test_two_who_put_one_worker_to_sleep_leave_it_out_until_the_later_lease_ends(tmp_path, router):
    """The second suspension takes the place of the first; nobody resumes it."""
    async with scene(tmp_path, router, "sglang", PoolPolicy()) as on:
        for name in NAMES:
            await on.up(name, 1)
        await on.right()
        await asleep(on, [ONE], 600)
        await asleep(on, [ONE], 2)
        life = on.lives.pop(ONE)
        await on.right()
        on.lives[ONE] = life
        await on.right()
        assert [fact.worker for fact in await on.facts(WorkerResumed)] == [ONE]


async def test_a_pool_that_keeps_who_sleeps_loses_nobody(tmp_path, router):
    """I4."""
    async with scene(tmp_path, router, "sglang", PoolPolicy(deregister_suspended=False)) as on:
        for name in NAMES:
            await on.up(name, 1)
        await on.right()
        await asleep(on, NAMES, 1)
        await until(lambda: on.facts(WorkerResumed), lambda facts: len(facts) == len(NAMES))
        await on.right()
        assert await on.facts(Deregistering) == []
