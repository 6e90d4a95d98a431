"""An update of the weights over a real log and a real router, with a worker that restarts in the middle of it."""

from __future__ import annotations

import asyncio
import signal

import pytest
from support.nats import DEADLINE
from support.process import run_python
from support.routers import running_router
from support.scene import NAMES, scene

from rollbook.adapters.publisher import Publisher, PublisherMisconfigured, WouldBlock
from rollbook.adapters.weights import weight_update
from rollbook.events import (
    Deregistering,
    InvalidName,
    WeightsLoaded,
    WeightsPublished,
    WorkerResumed,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import LogUnavailable

pytestmark = pytest.mark.integration

ONE, TWO, THREE, FOUR = NAMES
W = "rollout-0-0"


async def holding(on, worker, version, incarnation=1):
    await on.publisher.publish(WeightsLoaded(worker=worker, incarnation=incarnation, version=version))


@pytest.mark.router
async def test_who_restarts_in_the_middle_is_not_marked_ready(tmp_path, tmp_path_factory):
    """I1, I3, I4: those that were not replaced stay listed all the time, and its new life waits for its own weights."""
    with running_router(tmp_path_factory.mktemp("router")) as router:
        async with scene(tmp_path, router, "sglang", PoolPolicy(stale="replace")) as on:
            await on.publisher.publish(WeightsPublished(pool="rollout", version=1))
            for name in NAMES:
                await holding(on, name, 1)
                await on.up(name, 1)
            await on.right()
            async with weight_update(on.publisher, "rollout", version=2) as update:
                assert dict(update.workers) == dict.fromkeys(NAMES, 1)
                await on.right()  # all are there, and only a newcomer would have to hold version 2
                await on.workers[THREE].stop()
                await on.down(THREE)
                await on.workers[THREE].start()  # on the same URL, and it answers
                await on.publisher.worker_up(THREE, incarnation=2)
                update.loaded(ONE, THREE)  # the trainer has not noticed
                update.loaded("rollout-9-0")
            found = update.outcome
            assert (found.ready, found.restarted, found.not_loaded) == ((ONE,), {THREE: 2}, (TWO, FOUR))
            assert (found.strangers, found.complete) == (("rollout-9-0",), False)
            await on.right()  # without the one that restarted
            assert set(+(await on.served())) == {ONE, TWO, FOUR}
            held = on.controller.lanes["router"].held[THREE]
            assert held.gate == "weights_current"

            await holding(on, THREE, 2, incarnation=2)
            on.lives[THREE] = 2
            del on.lives[TWO]  # it leaves for it: two are there with the new version, of which one replaced itself
            del on.lives[FOUR]
            await on.right()
            await holding(on, TWO, 2)
            await holding(on, FOUR, 2)
            on.lives |= {TWO: 1, FOUR: 1}
            await on.right()
            removed = [fact.worker for fact in await on.facts(Deregistering)]
            assert sorted(removed) == sorted([TWO, THREE, FOUR])


@pytest.fixture
def publisher(stream):
    with Publisher(stream.fleet, stream.url, name="trainer") as made:
        for name in (W, "rollout-1-0", "reward-0-0"):
            made.publish(WorkerUp(worker=name, incarnation=3)).result(DEADLINE)
        yield made


def said(stream, kind):
    return [line.fact for line in stream.lines() if isinstance(line.fact, kind)]


def test_workers_sleep_until_each_has_loaded_it_and_who_has_not_is_woken(publisher, stream):
    with weight_update(publisher, "rollout", version=7, suspend=60) as update:
        assert [(one.worker, one.incarnation) for one in said(stream, WorkerSuspended)] == [(W, 3), ("rollout-1-0", 3)]
        assert [(one.pool, one.version) for one in said(stream, WeightsPublished)] == [("rollout", 7)]
        update.loaded(W)
    assert (update.outcome.ready, update.outcome.not_loaded) == ((W,), ("rollout-1-0",))
    woken = sorted((one.worker, one.reason) for one in said(stream, WorkerResumed))
    assert woken == [
        (W, "weights 7 loaded"),
        ("rollout-1-0", "the update is over, and weights 7 were not loaded"),
    ]


async def test_an_update_that_fails_wakes_everybody_and_lets_the_error_pass(publisher, stream):
    update = weight_update(publisher, "rollout", "reward", version=7, suspend=60)

    async def train():
        async with update:
            update.loaded(W)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        await train()
    assert update.outcome is None
    publisher.publish(WorkerUp(worker=W, incarnation=3))
    assert await publisher.aflush(DEADLINE)
    assert sorted(one.worker for one in said(stream, WorkerResumed)) == ["reward-0-0", W, "rollout-1-0"]
    assert [one.version for one in said(stream, WeightsLoaded)] == [7]


TRAINER = """
import os, signal, sys
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.weights import weight_update

with weight_update(Publisher(sys.argv[1], sys.argv[2], name="dies"), "rollout", version=9, suspend=60):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_that_dies_in_the_middle_leaves_a_published_version_and_leases_that_end(publisher, stream):
    assert run_python(TRAINER, stream.fleet, stream.url, check=False).returncode == -signal.SIGKILL
    assert [one.version for one in said(stream, WeightsPublished)] == [9]
    assert all(one.until is not None for one in said(stream, WorkerSuspended))
    with weight_update(publisher, "rollout", version=9) as update:
        update.loaded(*update.workers)
    assert update.outcome.complete


def test_of_two_updates_at_once_the_one_that_was_said_last_holds(publisher, stream):
    """Who holds another version at the end is not ready, whatever was said of him before."""
    with (
        weight_update(publisher, "rollout", version=8) as later,
        weight_update(publisher, "rollout", version=7) as former,
    ):
        former.loaded(W, "rollout-1-0")
        later.loaded(W)
    assert (former.outcome.ready, former.outcome.not_loaded) == (("rollout-1-0",), (W,))
    assert (later.outcome.ready, later.outcome.not_loaded) == ((W,), ("rollout-1-0",))


async def test_what_cannot_be_an_update_begins_none(publisher, stream):
    for wrong, error in (
        (lambda: weight_update(publisher, version=1), PublisherMisconfigured),
        (lambda: weight_update(publisher, "rollout", version=1, suspend=0), PublisherMisconfigured),
        (lambda: weight_update(publisher, "no pool", version=1), InvalidName),
        (lambda: weight_update(publisher, "rollout", version="7", suspend=60), PublisherMisconfigured),
        (lambda: weight_update(publisher, "rollout", version=7.5, suspend=60), PublisherMisconfigured),
        (lambda: weight_update(publisher, "rollout", version=2**60, suspend=60), PublisherMisconfigured),
        (lambda: weight_update(publisher, "rollout", version=1, timeout=0), PublisherMisconfigured),
        (lambda: weight_update(publisher, "rollout", version=1, timeout=float("nan")), PublisherMisconfigured),
        (lambda: weight_update(publisher, "rollout", version=1).__enter__(), WouldBlock),
    ):
        with pytest.raises(error):
            wrong()
    assert said(stream, WeightsPublished) == []


async def test_an_update_that_cannot_begin_leaves_nobody_asleep(publisher, stream):
    """Its caller never gets to the end of its block, which would wake them."""
    update = weight_update(publisher, "rollout", version=7, suspend=60, timeout=3)
    update._stored = asyncio.Event().wait  # what it said is still in the outbox when its time is over
    with pytest.raises(LogUnavailable, match="has not said who is there within"):
        await update.__aenter__()
    await publisher.aflush(DEADLINE)
    assert [one.worker for one in said(stream, WorkerResumed)] == [one.worker for one in said(stream, WorkerSuspended)]
    assert len(said(stream, WorkerResumed)) == 2


def test_a_log_that_does_not_answer_in_time_is_said(publisher):
    with pytest.raises(LogUnavailable, match="has not said who is there within"):
        weight_update(publisher, "rollout", version=1, timeout=0.000_001).__enter__()
