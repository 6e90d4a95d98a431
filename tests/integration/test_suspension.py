"""Suspension as a lease: asleep is not dead, not asked and not routed, and nobody sleeps for ever."""

import asyncio
import signal
import time
from contextlib import asynccontextmanager

import pytest
from support.controlled import controlled
from support.nats import DEADLINE
from support.process import run_python
from support.until import until
from support.workers import http_workers

from rollbook.adapters.health import HealthMonitor, HealthPolicy
from rollbook.adapters.publisher import IncarnationUnknown, Publisher, PublisherMisconfigured
from rollbook.adapters.settings import StaticProvider
from rollbook.adapters.static import StaticProvider as Provider
from rollbook.events import InvalidName, WorkerDown, WorkerResumed, WorkerSuspected, WorkerSuspended, WorkerUp
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.state.worker import Phase

pytestmark = pytest.mark.integration

NAMES = ["rollout-0-0", "rollout-1-0"]
HOUR = 3600.0


@pytest.fixture
def publisher(stream):
    with Publisher(stream.fleet, stream.url, name="trainer") as made:
        for name in NAMES:
            made.publish(worker_up(name)).result(DEADLINE)
        yield made


def worker_up(name, incarnation=3):
    return WorkerUp(worker=name, incarnation=incarnation)


def results(receipts):
    return [receipt.result(DEADLINE) for receipt in receipts]


def suspended_at_last(publisher, name):
    """A life that another began within the last milliseconds may have begun after the call, so it is not meant."""
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return results(publisher.suspend([name], reason="weights", ttl=HOUR))
        except IncarnationUnknown:
            assert time.monotonic() < until


def said(stream, kind):
    return [line.fact for line in stream.lines() if isinstance(line.fact, kind)]


def test_it_is_about_the_current_life_whoever_began_it(publisher, stream):
    life = publisher.worker(NAMES[0])
    life.up()
    results(publisher.suspend(NAMES, reason="weights", ttl=HOUR))  # the first is not numbered yet
    with Publisher(stream.fleet, stream.url, name="recovery") as other:
        other.publish(worker_up(NAMES[0], 9)).result(DEADLINE)
    suspended_at_last(publisher, NAMES[0])
    results(publisher.suspend(NAMES[1:], reason="weights", ttl=HOUR))
    results(publisher.resume(NAMES, reason="loaded"))
    found = said(stream, WorkerSuspended | WorkerResumed)
    lives = {name: [(one.incarnation, one.reason) for one in found if one.worker == name] for name in NAMES}
    assert lives == {
        NAMES[0]: [(4, "weights"), (9, "weights"), (9, "loaded")],
        NAMES[1]: [(3, "weights"), (3, "weights"), (3, "loaded")],
    }
    assert all(one.until is not None for one in found if isinstance(one, WorkerSuspended))


def test_a_handle_that_has_not_begun_begins_no_life_by_sleeping(publisher, stream):
    publisher.worker(NAMES[0])
    results(publisher.suspend(NAMES[:1], reason="weights", ttl=HOUR))
    assert [one.incarnation for one in said(stream, WorkerSuspended)] == [3]


def test_who_is_not_known_cannot_be_suspended(publisher):
    (receipt,) = publisher.suspend(["rollout-7-0"], reason="weights", ttl=HOUR)
    with pytest.raises(IncarnationUnknown):
        receipt.result(DEADLINE)


def test_what_is_wrong_suspends_nobody(publisher, stream):
    with pytest.raises(InvalidName):
        publisher.suspend([NAMES[0], "no name"], reason="weights", ttl=HOUR)
    for ttl in (0, -1, float("nan"), float("inf"), 8 * 86_400):
        with pytest.raises(PublisherMisconfigured):
            publisher.suspend(NAMES, reason="weights", ttl=ttl)
    publisher.flush(DEADLINE)
    assert said(stream, WorkerSuspended) == []


@asynccontextmanager
async def watched(stream, tmp_path):
    """A controller and a monitor over two workers; yields the workers, how the roster has one, and the monitor."""
    async with http_workers(2) as workers:
        places = [worker.url.removeprefix("http://") for worker in workers]
        provider = StaticProvider(workers={name: {"primary": at} for name, at in zip(NAMES, places, strict=True)})
        pools = {"rollout": PoolPolicy(health=HealthPolicy(interval=0.1, first_wait=0.0))}
        monitor = HealthMonitor(stream.fleet, stream.url, Provider(provider.addresses()), pools)
        async with controlled(stream, tmp_path, provider) as built:
            watching = asyncio.create_task(monitor.run())
            try:

                async def look():
                    return built.controller.projector.state.roster.workers.get(NAMES[0])

                yield workers, look, monitor
            finally:
                await end(watching)


async def probed(monitor, more):
    """Wait until it has asked so many times more."""
    before = monitor.stats.probes

    async def look():
        return monitor.stats.probes

    await until(look, lambda now: now >= before + more)


async def watching(monitor, count):
    async def look():
        return monitor.watching

    await until(look, lambda now: now == count)


TRAINER = """
import os, signal, sys
from rollbook.adapters.publisher import Publisher
from rollbook.events import WorkerUp

publisher = Publisher(sys.argv[1], sys.argv[2], name="trainer")
publisher.publish(WorkerUp(worker="rollout-0-0", incarnation=1)).result(30)
publisher.suspend(["rollout-0-0"], reason="offload", ttl=float(sys.argv[3]))[0].result(30)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_trainer_that_dies_while_holding_it_leaves_nobody_asleep_for_ever(stream, tmp_path):
    async with watched(stream, tmp_path) as (_, look, monitor):
        trainer = await asyncio.to_thread(run_python, TRAINER, stream.fleet, stream.url, "2", check=False)
        assert trainer.returncode == -signal.SIGKILL, trainer.stderr
        await until(look, lambda one: one is not None and one.suspension is not None)
        await watching(monitor, 0)
        await until(look, lambda one: one.suspension is None)
        await probed(monitor, 3)
        assert (await look()).phase is Phase.SERVING
    (resumed,) = said(stream, WorkerResumed)
    assert resumed.reason == "its time was over"


async def test_asleep_is_not_asked_and_not_dead(stream, publisher, tmp_path):
    async with watched(stream, tmp_path) as (workers, look, monitor):
        await watching(monitor, 2)
        await publisher.suspend(NAMES[:1], reason="weights", ttl=HOUR)[0]
        await watching(monitor, 1)
        await workers[0].stop()
        await probed(monitor, 10)  # of the other one
        await workers[0].start()
        assert (await look()).suspension.reason == "weights"
        await publisher.resume(NAMES[:1])[0]
        await watching(monitor, 2)
        await probed(monitor, 5)
        assert (await look()).phase is Phase.SERVING
    assert said(stream, WorkerDown | WorkerSuspected) == []
