"""A publisher that lives on while its fleet's stream is deleted and made anew: what it knew was of another log."""

import pytest
from support.nats import DEADLINE
from support.stream import FleetStream

from rollbook.adapters.publisher import IncarnationUnknown, Publisher, Superseded, sender
from rollbook.events import WorkerUp

pytestmark = pytest.mark.integration

OTHERS = 20
"""Facts about other workers, so that sequences of the old log are beyond those of the new one."""


@pytest.fixture
def stream(nats_server, fleet):
    return FleetStream(nats_server.url, fleet).make()


@pytest.fixture
def publisher(stream, monkeypatch):
    """It had a fact about w-0-0 acknowledged, far up in the log."""
    monkeypatch.setattr(sender, "ASK_WITHIN", DEADLINE)  # the machine may be busy
    with Publisher(stream.fleet, stream.url, name="tests") as made:
        for number in range(OTHERS):
            made.publish(WorkerUp(worker=f"other-{number}-0", incarnation=1))
        made.publish(WorkerUp(worker="w-0-0", incarnation=7)).result(DEADLINE)
        yield made


def facts(stream):
    return [line.fact for line in stream.lines()]


def test_a_verdict_about_the_log_before_is_void(publisher, stream):
    """It was compared for ever, as fast as the server answers, and held up all later facts about its worker."""
    with publisher.probe("w-0-0", timeout=DEADLINE) as probe:
        stream.make_anew()
        stream.say(WorkerUp(worker="w-0-0", incarnation=1))
        verdict, later = probe.down(), publisher.publish(WorkerUp(worker="w-0-0", incarnation=2))
    assert verdict.result(DEADLINE) == Superseded(worker="w-0-0", sequence=1)
    assert later.result(DEADLINE) == 2


def test_a_life_of_the_new_log_may_have_begun_after_the_call(publisher, stream, monkeypatch):
    """I3: that a fact of the log before was acknowledged says nothing of a life of this one."""
    stream.make_anew()
    stream.say(WorkerUp(worker="w-0-0", incarnation=1))
    reader = publisher._core.sender._delivery._reader
    clock = reader.clock

    async def slow():
        return await clock() - 3600.0

    monkeypatch.setattr(reader, "clock", slow)
    with pytest.raises(IncarnationUnknown, match="began its life 1 after this fact was published"):
        publisher.worker_down("w-0-0").result(DEADLINE)
    assert facts(stream) == [WorkerUp(worker="w-0-0", incarnation=1)]


def test_nobody_claims_to_have_seen_what_stood_in_the_log_before(publisher, stream):
    """An Up with the knowledge of the old log would revive whoever went down in the new one [I2]."""
    stream.make_anew()
    publisher.publish(WorkerUp(worker="w-0-0", incarnation=7)).result(DEADLINE)
    up = publisher.publish(WorkerUp(worker="w-0-0", incarnation=7))
    sequence = up.result(DEADLINE)
    assert facts(stream)[sequence - 1].seen == 1


def test_lives_are_counted_anew_also_if_the_new_log_is_longer(publisher, stream):
    """I3: a number of the log before would be a life that nobody began, and end the one that is there."""
    publisher.worker_down("w-0-0", evidence="timeout").result(DEADLINE)
    stream.make_anew()
    stream.say(WorkerUp(worker="w-0-0", incarnation=1))
    stream.say(*(WorkerUp(worker=f"other-{number}-0", incarnation=1) for number in range(2 * OTHERS)))
    stream.say(WorkerUp(worker="w-0-0", incarnation=1, seen=1))
    publisher.worker_down("w-0-0", evidence="timeout").result(DEADLINE)
    assert facts(stream)[-1].incarnation == 1
