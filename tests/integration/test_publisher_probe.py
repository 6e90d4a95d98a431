"""Check, then act: a verdict counts only if nobody else spoke about the worker since the check began."""

import asyncio

import pytest
from support.nats import DEADLINE
from support.stream import FleetStream, in_thread

from rollbook.adapters.publisher import IncarnationUnknown, Publisher, Superseded
from rollbook.events import DrainRequested, WorkerCordoned, WorkerDown, WorkerSuspected, WorkerUp, worker_subject

pytestmark = pytest.mark.integration


@pytest.fixture
def publisher(stream):
    with Publisher(stream.fleet, stream.url, name="prober") as made:
        yield made


@pytest.fixture
def other(stream):
    with Publisher(stream.fleet, stream.url, name="other") as made:
        made.publish(WorkerUp(worker="w-0-0", incarnation=3)).result(DEADLINE)
        yield made


def probe(publisher):
    return publisher.probe("w-0-0", timeout=DEADLINE)


def test_a_verdict_is_about_the_life_that_was_checked(publisher, other, stream):
    with probe(publisher) as check:
        assert check.incarnation == 3
        sequence = check.down(evidence="timeout", reason="no answer").result(DEADLINE)
    last = stream.lines()[-1]
    assert last.sequence == sequence
    assert last.fact == WorkerDown(worker="w-0-0", incarnation=3, seen=1, evidence="timeout", reason="no answer")


def test_somebody_else_was_quicker(publisher, other, stream):
    with probe(publisher) as check:
        newer = other.publish(WorkerUp(worker="w-0-0", incarnation=4)).result(DEADLINE)
        verdict = check.down()
        assert verdict.result(DEADLINE) == Superseded(worker="w-0-0", sequence=newer)
        assert verdict.error is None
    assert not any(isinstance(line.fact, WorkerDown) for line in stream.lines())
    assert publisher.stats().superseded == 1
    assert publisher.close().unsent == ()


@pytest.mark.parametrize(
    "fact",
    [WorkerCordoned(worker="w-0-0", by="me", why="so"), DrainRequested(worker="w-0-0", by="me", why="so")],
    ids=lambda fact: type(fact).__name__,
)
def test_operators_count_too(publisher, other, fact):
    with probe(publisher) as check:
        decided = other.publish(fact).result(DEADLINE)
        assert check.up().result(DEADLINE) == Superseded(worker="w-0-0", sequence=decided)


def test_what_happens_to_others_does_not_count(publisher, other):
    with probe(publisher) as check:
        other.publish(WorkerUp(worker="w-1-0", incarnation=1)).result(DEADLINE)
        other.publish(WorkerCordoned(worker="w-1-0", by="me", why="so")).result(DEADLINE)
        assert isinstance(check.up().result(DEADLINE), int)


def test_ones_own_facts_do_not_supersede(publisher, other, stream):
    """Acknowledged, on their way, and operators' facts of this publisher: none of them voids its verdicts."""
    with probe(publisher) as check:
        publisher.publish(WorkerSuspected(worker="w-0-0", incarnation=3)).result(DEADLINE)
        publisher.publish(WorkerCordoned(worker="w-0-0", by="me", why="so")).result(DEADLINE)
        publisher.publish(WorkerSuspected(worker="w-0-0", incarnation=3))
        first = check.suspected()
        second = check.down()
        assert all(isinstance(receipt.result(DEADLINE), int) for receipt in (first, second))
    subject = worker_subject(stream.fleet, "w-0-0")
    mine = [line.recorded.source.endswith("/prober") for line in stream.lines() if line.subject == subject]
    assert mine == [False, True, True, True, True]


def test_somebody_else_between_ones_own(publisher, other):
    with probe(publisher) as check:
        publisher.publish(WorkerSuspected(worker="w-0-0", incarnation=3)).result(DEADLINE)
        foreign = other.publish(WorkerSuspected(worker="w-0-0", incarnation=3)).result(DEADLINE)
        publisher.publish(WorkerSuspected(worker="w-0-0", incarnation=3)).result(DEADLINE)
        assert check.down().result(DEADLINE) == Superseded(worker="w-0-0", sequence=foreign)


def test_a_superseded_verdict_holds_nothing_up(publisher, other):
    with probe(publisher) as check:
        other.publish(WorkerSuspected(worker="w-0-0", incarnation=3)).result(DEADLINE)
        void, next_one = check.down(), publisher.worker_up("w-0-0", incarnation=3)
        assert isinstance(void.result(DEADLINE), Superseded)
        assert isinstance(next_one.result(DEADLINE), int)


def test_nothing_to_check(publisher, stream):
    with publisher.probe("unknown-0-0", timeout=DEADLINE) as check:
        assert check.incarnation is None
        with pytest.raises(IncarnationUnknown, match="no life of unknown-0-0"):
            check.down()


async def test_in_asyncio(nats_server, fleet):
    in_thread(FleetStream(nats_server.url, fleet).make)
    async with asyncio.timeout(3 * DEADLINE), Publisher(fleet, nats_server.url) as publisher:
        await publisher.worker("w-0-0").up()
        async with probe(publisher) as check:
            assert await check.down() == 2
        async with Publisher(fleet, nats_server.url) as other, probe(publisher) as check:
            await other.publish(WorkerSuspected(worker="w-0-0", incarnation=1))
            assert await check.up() == Superseded(worker="w-0-0", sequence=3)
