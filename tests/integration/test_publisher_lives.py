"""Lives: numbered once by the log, whatever else stands on the subject and whoever else numbers at the same time."""

import json
import threading
import time
from contextlib import ExitStack

import pytest
from support.nats import DEADLINE
from support.process import python_process

from rollbook.adapters.publisher import IncarnationUnknown, Publisher, sender
from rollbook.events import RecoveryStarted, WorkerDown, WorkerUp, worker_subject

pytestmark = pytest.mark.integration

HOUR = 3600.0


@pytest.fixture
def publisher(stream, monkeypatch):
    monkeypatch.setattr(sender, "ASK_WITHIN", DEADLINE)  # the machine may be busy
    with Publisher(stream.fleet, stream.url, name="tests") as made:
        made.publish(WorkerUp(worker="connected-0-0", incarnation=1)).result(DEADLINE)
        yield made


def facts(stream, worker="w-0-0"):
    return [line.fact for line in stream.lines() if line.subject == worker_subject(stream.fleet, worker)]


def test_a_life_is_numbered_once(publisher, stream):
    life = publisher.worker("w-0-0", pool="p")
    receipts = [life.started(pid=7), life.up(), life.up(), life.weights_loaded(3), life.down(evidence="planned")]
    assert life.incarnation_result(DEADLINE) == 1
    sequences = [receipt.result(DEADLINE) for receipt in receipts]
    assert sequences == sorted(sequences)
    assert [fact.incarnation for fact in facts(stream)] == [1] * 5
    assert {fact.pool for fact in facts(stream)} == {"p"}
    again = publisher.worker("w-0-0")
    again.up().result(DEADLINE)
    assert again.incarnation == 2
    assert facts(stream)[-1].seen == sequences[-1]
    assert life.incarnation == 1


def test_worker_up_twice_is_one_life_until_the_process_is_gone(publisher, stream):
    publisher.worker_up("w-0-0")
    publisher.worker_up("w-0-0")
    publisher.worker_down("w-0-0", evidence="unhealthy")
    publisher.worker_up("w-0-0")
    publisher.worker_down("w-0-0")  # exited
    publisher.worker_up("w-0-0")
    publisher.worker_started("w-0-0")
    publisher.worker_up("w-0-0")
    assert publisher.flush(DEADLINE).unsent == ()
    assert [fact.incarnation for fact in facts(stream)] == [1, 1, 1, 1, 1, 2, 3, 3]


def test_a_late_fact_of_an_earlier_life_does_not_turn_numbering_back(publisher, stream):
    publisher.publish(WorkerUp(worker="w-0-0", incarnation=5))
    publisher.publish(WorkerDown(worker="w-0-0", incarnation=2, evidence="timeout")).result(DEADLINE)
    life = publisher.worker("w-0-0")
    life.up()
    assert life.incarnation_result(DEADLINE) == 6


def test_garbage_and_facts_of_later_versions(publisher, stream):
    """Numbering considers every worker's fact on the subject, also one that only a later version can read."""
    subject = worker_subject(stream.fleet, "w-0-0")
    publisher.publish(WorkerUp(worker="w-0-0", incarnation=5)).result(DEADLINE)
    envelope = {"specversion": "1.0", "id": "x", "source": f"rollbook://{stream.fleet}/y", "subject": "w-0-0"}
    later = envelope | {"type": "rollbook.worker.up.v9", "data": {"worker": "w-0-0", "incarnation": 8}}
    stream.put(subject, json.dumps(later).encode())
    odd = envelope | {"type": "rollbook.worker.odd.v1", "data": {"incarnation": "many"}}
    stream.put(subject, json.dumps(odd).encode())
    foreign = later | {"source": "rollbook://another/y", "data": {"worker": "w-0-0", "incarnation": 99}}
    stream.put(subject, json.dumps(foreign).encode())
    for garbage in (b"", b"\xff\x00", b"[]", b'{"incarnation": 77}'):
        stream.put(subject, garbage)
    with Publisher(stream.fleet, stream.url) as fresh:
        life = fresh.worker("w-0-0")
        life.up()
        assert life.incarnation_result(DEADLINE) == 9


def test_a_subject_longer_than_one_batch(publisher, stream):
    for _ in range(1100):
        publisher.publish(WorkerDown(worker="w-0-0", incarnation=3, evidence="timeout"))
    assert publisher.flush(3 * DEADLINE).unsent == ()
    with Publisher(stream.fleet, stream.url) as fresh:
        life = fresh.worker("w-0-0")
        life.up()
        assert life.incarnation_result(DEADLINE) == 4


def test_threads_that_number_at_once(stream):
    """Eight publishers, one worker: distinct, consecutive numbers, and the facts of each under its own."""
    publishers = [Publisher(stream.fleet, stream.url, name=f"p{index}") for index in range(8)]
    lives = []
    start = threading.Barrier(8)

    def work(publisher: Publisher) -> None:
        start.wait(DEADLINE)
        for _ in range(3):
            life = publisher.worker("w-0-0")
            life.started()
            life.up()
            lives.append(life)

    threads = [threading.Thread(target=work, args=(publisher,)) for publisher in publishers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    numbers = [life.incarnation_result(2 * DEADLINE) for life in lives]
    for publisher in publishers:
        assert publisher.close(DEADLINE).unsent == ()
    assert sorted(numbers) == list(range(1, 25))
    assert sorted(fact.incarnation for fact in facts(stream)) == sorted([*range(1, 25), *range(1, 25)])


def test_processes_that_number_at_once(stream):
    code = """
        import sys
        from rollbook.adapters.publisher import Publisher
        with Publisher(sys.argv[1], sys.argv[2]) as publisher:
            publisher.worker_down("other-0-0", incarnation=1).result(60)
            print("ready", flush=True)
            sys.stdin.readline()
            life = publisher.worker("w-0-0")
            life.up()
            print(life.incarnation_result(60), flush=True)
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(python_process(code, stream.fleet, stream.url)) for _ in range(8)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        assert sorted(int(process.stdout.readline()) for process in processes) == list(range(1, 9))


def test_down_without_a_number_is_the_current_life(publisher, stream):
    with Publisher(stream.fleet, stream.url) as manager:
        manager.worker("w-0-0").up().result(DEADLINE)
        manager.worker("w-0-0").up().result(DEADLINE)

    last_try = time.monotonic() + DEADLINE
    while True:
        try:
            publisher.worker_down("w-0-0", evidence="actor_dead").result(DEADLINE)
            break
        except IncarnationUnknown:  # for all that the log can tell, life 2 may have begun after the call
            assert time.monotonic() < last_try
    assert [fact.incarnation for fact in facts(stream)] == [1, 2, 2]


@pytest.fixture
def answers_take(publisher, monkeypatch):
    """The log's next answers about the time come in that many seconds late each; those after them at once.

    At once is no time at all, however busy the machine is: the server's clock is this machine's.
    """
    late: list[float] = []
    reader = publisher._core.sender._delivery._reader
    ask = reader.clock

    async def clock():
        await ask()
        return time.time() - time.monotonic() - (late.pop(0) if late else 0.0)

    monkeypatch.setattr(reader, "clock", clock)
    return late


def test_a_life_of_which_one_knew_is_meant_however_long_an_answer_takes(publisher, stream, answers_take):
    """Nobody needs a clock for what this publisher had acknowledged before the call."""
    publisher.publish(WorkerUp(worker="w-0-0", incarnation=1)).result(DEADLINE)
    answers_take += [HOUR] * 99
    publisher.worker_down("w-0-0").result(DEADLINE)
    assert [fact.incarnation for fact in facts(stream)] == [1, 1]


def test_one_quick_answer_is_enough(publisher, stream, answers_take):
    with Publisher(stream.fleet, stream.url) as manager:
        manager.worker("w-0-0").up().result(DEADLINE)
    answers_take += [HOUR, HOUR]
    publisher.worker_down("w-0-0").result(DEADLINE)
    assert [fact.incarnation for fact in facts(stream)] == [1, 1]


def test_one_quick_answer_is_enough_for_an_up_to_count_after_a_down_that_was_there(publisher, stream, answers_take):
    """It was acknowledged, and changed nothing: the fold took it for one whose author had not seen the Down."""
    stream.say(WorkerUp(worker="w-0-0", incarnation=7), WorkerDown(worker="w-0-0", incarnation=7, evidence="timeout"))
    answers_take += [HOUR, HOUR]
    up = publisher.worker_up("w-0-0", incarnation=7).result(DEADLINE)
    assert facts(stream)[-1].seen == up - 1


def test_nobody_is_meant_when_every_answer_takes_too_long(publisher, stream, answers_take):
    with Publisher(stream.fleet, stream.url) as manager:
        manager.worker("w-0-0").up().result(DEADLINE)
    answers_take += [HOUR] * 99
    with pytest.raises(IncarnationUnknown, match="began its life 1 after this fact was published"):
        publisher.worker_down("w-0-0").result(DEADLINE)


def test_down_without_a_number_never_hits_a_life_that_began_later(publisher, stream):
    """I3: the publisher is held up between the call and its question, and a new life begins meanwhile."""
    publisher.publish(WorkerUp(worker="w-0-0", incarnation=1)).result(DEADLINE)
    blocked, go_on = threading.Event(), threading.Event()
    publisher._core.sender.loop.call_soon_threadsafe(lambda: (blocked.set(), go_on.wait(DEADLINE)))
    assert blocked.wait(DEADLINE)
    receipt = publisher.worker_down("w-0-0")
    with Publisher(stream.fleet, stream.url) as manager:
        time.sleep(0.01)  # the log's clock and ours are one on this machine; let them tick
        manager.worker("w-0-0").up().result(DEADLINE)
    go_on.set()
    with pytest.raises(IncarnationUnknown, match="began its life 2 after this fact was published"):
        receipt.result(DEADLINE)
    assert [fact.incarnation for fact in facts(stream)] == [1, 2]


def test_down_of_a_worker_that_nobody_knows(publisher, stream):
    with pytest.raises(IncarnationUnknown, match="the log knows no life of w-0-0"):
        publisher.worker_down("w-0-0").result(DEADLINE)
    assert facts(stream) == []


def test_an_answer_that_takes_too_long_is_none(publisher, monkeypatch):
    monkeypatch.setattr(sender, "ASK_WITHIN", 0.0)
    with pytest.raises(IncarnationUnknown, match="no answer within 0 s"):
        publisher.worker_down("w-0-0").result(DEADLINE)


def test_what_holds_one_worker_up_does_not_hold_up_another(publisher, stream):
    """A first fact that must be numbered holds back only its own worker's next one."""
    life = publisher.worker("w-0-0")
    receipts = [life.started(), publisher.publish(RecoveryStarted(worker="w-1-0", incarnation=1)), life.up()]
    sequences = [receipt.result(DEADLINE) for receipt in receipts]
    assert sequences[0] < sequences[2]
