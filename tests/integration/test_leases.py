"""Leases with real publishers: heard of outside the log, and asked before anybody says that they are down."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.controlled import controlled
from support.process import python_process
from support.until import until
from support.workers import http_worker

from rollbook.adapters.publisher import Publisher
from rollbook.adapters.settings import StaticProvider
from rollbook.events import InvalidFact, WorkerDown, WorkerUp

pytestmark = pytest.mark.integration

W = "rollout-0-0"


@asynccontextmanager
async def hearing(stream, tmp_path, worker):
    """A controller over one worker; yields when its lease was renewed last, as the controller heard it."""
    provider = StaticProvider(workers={W: {"primary": worker.url.removeprefix("http://")}})
    async with controlled(stream, tmp_path, provider) as built:
        leases = built.controller.leading.resources.leases

        async def heard():
            return leases._heard.get(W)

        yield heard


def facts(stream, *kinds):
    return [line.fact for line in stream.lines() if isinstance(line.fact, kinds)]


async def said(stream, kind, count):
    async def look():
        return await asyncio.to_thread(lambda: len(facts(stream, kind)))

    await until(look, lambda seen: seen == count)


TRAINER = """
import sys
from rollbook.adapters.publisher import Publisher

publisher = Publisher(sys.argv[1], sys.argv[2], name="trainer")
publisher.worker_up("rollout-0-0", lease=1.0).result(30)
sys.stdin.read()
"""


async def test_the_death_of_a_publisher_takes_only_workers_that_do_not_answer(stream, tmp_path):
    async with http_worker() as worker, hearing(stream, tmp_path, worker) as heard:
        with python_process(TRAINER, stream.fleet, stream.url) as trainer:
            await until(heard, lambda one: one is not None and one[0] == 1)
            first = await heard()
            await until(heard, lambda one: one[1] > first[1] + 2.0)  # for longer than the lease
            trainer.kill()
            last = await heard()
        await until(heard, lambda one: one[1] > last[1] + 2.0)  # it answered, so the lease began anew
        assert facts(stream, WorkerDown) == []
        await worker.stop()
        await said(stream, WorkerDown, 1)
    (down,) = facts(stream, WorkerDown)
    assert (down.evidence, down.incarnation) == ("lease_expired", 1)
    assert "connection refused" in down.reason


async def test_a_life_is_renewed_until_it_ends(stream, tmp_path):
    async with (
        http_worker() as worker,
        hearing(stream, tmp_path, worker) as heard,
        Publisher(stream.fleet, stream.url, name="worker") as publisher,
    ):
        life = publisher.worker(W)
        await life.up(lease=1.0)
        await until(heard, lambda one: one is not None)
        begun = await heard()
        await until(heard, lambda one: one[1] > begun[1])
        await life.down(evidence="exited")
        assert publisher._leased() == []
    assert [type(fact) for fact in facts(stream, WorkerUp, WorkerDown)] == [WorkerUp, WorkerDown]


def test_a_lease_that_is_no_time_is_refused_at_the_call(stream):
    with Publisher(stream.fleet, stream.url, name="worker") as publisher:
        for lease in (0, -1.0, 1e9, float("nan")):
            with pytest.raises(InvalidFact):
                publisher.worker_up(W, lease=lease)
            with pytest.raises(InvalidFact):
                publisher.worker(W).up(lease=lease)
        assert publisher._leased() == []
