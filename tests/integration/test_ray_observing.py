"""A manager on a real Ray says to a real log who lives in its pools, and nothing of pools that it cannot answer for."""

import os
import signal

import pytest
from support.ray import SECONDS, demo_spec
from support.until import until

from rollbook.adapters.publisher import Publisher, PublisherMisconfigured
from rollbook.adapters.ray.manager import RayWorkerManager
from rollbook.adapters.ray.spec import InvalidSpec
from rollbook.events import FleetObserved, ObservedWorker

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

W, STRANGER = "rollout-0-0", "rollout-9-0"


def listings(stream):
    """By sequence."""
    lines = stream.lines()
    return {
        line.sequence: line.recorded.fact
        for line in lines
        if line.recorded and isinstance(line.recorded.fact, FleetObserved)
    }


async def listed(stream, seen):
    """The first listing of which `seen(sequence, fact)` is true."""

    async def look():
        return [fact for sequence, fact in listings(stream).items() if seen(sequence, fact)]

    return (await until(look, bool, SECONDS))[0]


async def test_who_lives_is_said_on_change_and_now_and_then_and_never_of_a_pool_with_strangers(
    launch, stream, fleet, nats_server
):
    """I3: a worker that somebody else started is not down because the manager does not know it."""
    manager = launch(demo_spec(W), observe_seconds=2.0)
    (state,) = manager.wait_until_up(seconds=SECONDS)
    first = await listed(stream, lambda _, fact: fact.workers == (ObservedWorker(W, 1),))
    assert (first.observer, first.pools) == ("ray-manager", ("rollout",))
    await listed(stream, lambda _, fact: fact.workers == first.workers and fact.as_of > first.as_of)  # nothing changed

    async with Publisher(fleet, nats_server.url, name="somebody-else") as publisher:
        there = await publisher.worker_up(STRANGER)
        os.kill(state.pid, signal.SIGKILL)

        async def look():
            return manager.locate([W], seconds=SECONDS)[W]

        await until(look, lambda now: now.stage == "serving" and now.incarnation == 2, SECONDS)
        gone = await publisher.worker_down(STRANGER, evidence="exited")
    after = await listed(stream, lambda _, fact: fact.as_of >= gone)
    assert after.workers == (ObservedWorker(W, 2),)
    for sequence, fact in listings(stream).items():
        assert fact.as_of < sequence
        assert not there <= fact.as_of < gone


def test_a_manager_that_could_tell_nobody_is_refused_where_it_is_launched(local_ray, fleet):
    with pytest.raises(PublisherMisconfigured, match="ROLLBOOK_NATS_URL is not in `environ`"):
        RayWorkerManager.launch([], fleet=fleet, environ={})


def test_a_time_between_listings_that_is_none_is_refused(local_ray, fleet):
    with pytest.raises(InvalidSpec, match=r"observe_seconds is 0; it must be more than 0"):
        RayWorkerManager.launch([], fleet=fleet, environ={}, observe_seconds=0)
