"""I8 with NATS down at start, restarted under load, hung, and gone at exit: nothing lost, doubled or out of order."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, defaultdict
from typing import Self

import pytest
from support.stream import FleetStream

from rollbook.adapters.publisher import (
    IncarnationUnknown,
    Life,
    NotSent,
    Publisher,
    Receipt,
    Superseded,
    delivery,
    wire,
)
from rollbook.adapters.publisher.entry import Entry
from rollbook.events import WorkerCordoned, WorkerDown, WorkerStarted, WorkerUp, worker_subject
from rollbook.projections.ports import LogUnavailable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LONG = 90.0


@pytest.fixture
def server(start_nats):
    """Synced before it acknowledges: JetStream's default may lose what it acknowledged when it is killed."""
    return start_nats(jetstream="{ sync_interval: always }")


@pytest.fixture
def stream(server, fleet):
    return FleetStream(server.url, fleet).make()


def test_down_at_start(server, stream):
    server.kill()
    with Publisher(stream.fleet, server.url) as publisher:
        life = publisher.worker("w-0-0")
        receipts = [life.started(), publisher.worker_down("w-1-0", incarnation=1), life.up()]
        assert len(publisher.flush(0.3).unsent) == 3
        wait_until(lambda: "no NATS server answered" in (publisher.stats().last_error or ""))
        server.start()
        sequences = [receipt.result(LONG) for receipt in receipts]
        assert sorted(sequences) == [1, 2, 3]
        assert sequences[0] < sequences[2]
        assert life.incarnation == 1


class Load:
    """Threads that publish plain facts, new lives and verdicts, until told to stop."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.lives: list[Life] = []
        self.verdicts: list[Receipt] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(4)]
        self._threads.append(threading.Thread(target=self._check))

    def __enter__(self) -> Self:
        self.publisher.worker_up("plain-0-0", incarnation=1)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LONG)
            assert not thread.is_alive()

    def _publish(self, number: int) -> None:
        index = 0
        while not self._stop.wait(0.05):
            for rank in range(5):
                self.publisher.publish(WorkerStarted(worker=f"plain-{number}-{rank}", incarnation=1, pid=index))
            if index % 5 == 0:
                life = self.publisher.worker(f"life-{number % 2}-0")
                life.started(pid=index)
                life.up()
                self.lives.append(life)
            index += 1

    def _check(self) -> None:
        while not self._stop.wait(0.02):
            try:
                with self.publisher.probe("plain-0-0", timeout=1) as probe:
                    self.verdicts.append(probe.suspected())
            except (LogUnavailable, IncarnationUnknown):
                continue


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_restarted_under_load(server, stream, how):
    publisher = Publisher(stream.fleet, server.url, limit=1_000_000)
    with Load(publisher) as load:
        for restarts in range(2):
            acknowledged = publisher.stats().acknowledged
            wait_until(lambda: publisher.stats().reconnects >= restarts)  # noqa: B023 - called at once
            wait_until(lambda: publisher.stats().acknowledged > acknowledged + 100)  # noqa: B023 - called at once
            server.stop(how)
            wait_until(lambda: publisher.stats().waiting > 200)
            server.start()
    assert publisher.flush(LONG).unsent == ()
    stats = publisher.stats()
    assert stats.reconnects >= 2
    assert (stats.waiting, stats.refused) == (0, 0)
    publisher.close()

    lines = stream.lines()
    assert max(Counter(line.id for line in lines).values()) == 1
    assert len(lines) == stats.acknowledged == stats.accepted - stats.superseded
    check_plain_order(lines)
    check_lives(lines, load.lives)
    assert all(isinstance(verdict.result(0), int | Superseded) for verdict in load.verdicts)


def check_plain_order(lines):
    by_worker = defaultdict(list)
    for line in lines:
        if line.fact.worker.startswith("plain") and isinstance(line.fact, WorkerStarted):
            by_worker[line.fact.worker].append(line.fact.pid)
    assert len(by_worker) == 20
    for pids in by_worker.values():
        assert pids == list(range(len(pids)))


def check_lives(lines, lives):
    """Every life has one number, the numbers are without gap, and its facts carry it."""
    for worker in ("life-0-0", "life-1-0"):
        facts = [line.fact for line in lines if line.fact.worker == worker]
        started = [fact.incarnation for fact in facts if isinstance(fact, WorkerStarted)]
        assert started == list(range(1, len(started) + 1))
        ups = [fact.incarnation for fact in facts if isinstance(fact, WorkerUp)]
        assert sorted(ups) == started  # two threads share the worker, so another life may begin in between
        assert sorted(life.incarnation for life in lives if life.name == worker) == started


def wait_until(true, seconds=LONG):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_hung_server_means_unknown_and_is_asked_again(server, stream, monkeypatch):
    """The facts reach the stopped server's socket: their answers are overdue, they are sent again, and stored once."""
    monkeypatch.setattr(wire, "ANSWER_WITHIN", 0.3)
    with Publisher(stream.fleet, server.url) as publisher:
        publisher.worker_up("w-0-0", incarnation=1).result(LONG)
        server.pause()
        receipts = [publisher.worker_down(f"w-{index}-0", incarnation=1) for index in range(20)]
        flushed = publisher.flush(2.0)
        assert len(flushed.unsent) == 20
        assert "did not answer in time" in flushed.unsent[0].reason
        server.resume()
        sequences = [receipt.result(LONG) for receipt in receipts]
    lines = stream.lines()
    assert len(lines) == 21
    assert {line.id for line in lines} >= {receipt.id for receipt in receipts}
    assert sorted(sequences) == list(range(2, 22))


def test_a_server_without_room_is_told_with_what_to_do(start_nats, fleet):
    server = start_nats(jetstream="{ max_file_store: 60000 }")
    FleetStream(server.url, fleet).make()
    with Publisher(fleet, server.url) as publisher:
        for number in range(100):
            publisher.worker_down(f"w-{number}-0", incarnation=1, reason="x" * 900)
        wait_until(lambda: "the server has no room for it. Free space" in (publisher.stats().last_error or ""))
        assert publisher.close(0).unsent


def test_a_hung_server_does_not_number_twice(server, stream):
    with Publisher(stream.fleet, server.url) as publisher:
        publisher.worker_up("w-0-0", incarnation=1).result(LONG)
        server.pause()
        lives = [publisher.worker(f"w-{index}-0") for index in range(5)]
        for life in lives:
            life.up()
        assert len(publisher.flush(3.0).unsent) == 5
        server.resume()
        assert [life.incarnation_result(LONG) for life in lives] == [2, 1, 1, 1, 1]
        assert publisher.flush(LONG).unsent == ()
    assert len(stream.lines()) == 6


def test_a_repeated_verdict_is_found_by_its_id(server, stream):
    """The server stored the verdict and was killed before it could say so: the retry is refused, and looks."""
    with Publisher(stream.fleet, server.url) as publisher:
        publisher.worker_up("w-0-0", incarnation=1).result(LONG)
        with publisher.probe("w-0-0", timeout=LONG) as probe:
            verdict = probe.down()
            sequence = verdict.result(LONG)
            # The same entry once more, as after a lost acknowledgement.
            (line,) = [line for line in stream.lines() if line.sequence == sequence]
            entry = _entry_of(publisher, line, probe)
            again = publisher._core.sender.submit(publisher._core.sender._delivery.deliver(entry)).result(LONG)
    assert again == sequence
    assert len(stream.lines()) == 2


def test_a_fact_first_sent_long_ago_is_looked_for(server, stream, monkeypatch):
    """Beyond the duplicate window the server would store it again."""
    monkeypatch.setattr(delivery, "SAFE_REPEAT", -1.0)
    with Publisher(stream.fleet, server.url) as publisher:
        receipt = publisher.worker_up("w-0-0", incarnation=1)
        sequence = receipt.result(LONG)
        line = stream.lines()[-1]
        entry = _entry_of(publisher, line, None)
        assert not publisher._core.sender._delivery.is_plain(entry, time.monotonic())
        assert publisher._core.sender.submit(publisher._core.sender._delivery.deliver(entry)).result(LONG) == sequence
    assert len(stream.lines()) == 1


def test_gone_at_exit(server, stream):
    publisher = Publisher(stream.fleet, server.url)
    sent = publisher.worker_up("w-0-0", incarnation=1)
    assert sent.result(LONG) == 1
    server.kill()
    wait_until(lambda: not publisher.stats().connected)
    receipts = [publisher.worker_down("w-0-0", incarnation=1), publisher.worker("w-1-0").up()]
    closed = publisher.close(timeout=0.2)
    assert [unsent.id for unsent in closed.unsent] == [receipt.id for receipt in receipts]
    assert [type(unsent.fact).__name__ for unsent in closed.unsent] == ["WorkerDown", "WorkerUp"]
    for receipt in receipts:
        with pytest.raises(NotSent, match="closed before"):
            receipt.result()
    server.start()
    assert len(stream.lines()) == 1


def test_an_operator_fact_right_after_the_stored_verdict_does_not_void_it(server, stream):
    """The retry looks for itself first."""
    with Publisher(stream.fleet, server.url) as publisher, Publisher(stream.fleet, server.url) as other:
        publisher.worker_up("w-0-0", incarnation=1).result(LONG)
        with publisher.probe("w-0-0", timeout=LONG) as probe:
            sequence = probe.down().result(LONG)
            line = stream.lines()[-1]
            other.publish(WorkerCordoned(worker="w-0-0", by="me", why="so")).result(LONG)
            entry = _entry_of(publisher, line, probe)
            assert (
                publisher._core.sender.submit(publisher._core.sender._delivery.deliver(entry)).result(LONG) == sequence
            )


def _entry_of(publisher, line, probe):
    """The entry whose fact is stored at `line`, as the sender holds it when it does not know that."""
    return Entry(
        Receipt(publisher._core._book, line.id),
        line.fact,
        time.monotonic(),
        fence=probe._fence if probe is not None else None,
        subject=worker_subject(publisher.fleet, line.fact.worker),
        time=line.recorded.time,
        attempts=2,
        first_sent=time.monotonic(),
    )


def test_waiting_facts_of_two_workers_survive_a_lost_connection_in_order(server, stream):
    """The first of two is retried, and the second waits for it; the other worker's facts do not."""
    with Publisher(stream.fleet, server.url) as publisher:
        publisher.worker_up("w-0-0", incarnation=1).result(LONG)
        server.kill()
        receipts = []
        for index in range(30):
            for worker in ("w-0-0", "w-1-0"):
                fact = WorkerDown(worker=worker, incarnation=1, evidence="timeout", reason=str(index))
                receipts.append(publisher.publish(fact))
        server.start()
        for receipt in receipts:
            receipt.result(LONG)
    for worker in ("w-0-0", "w-1-0"):
        subject = worker_subject(stream.fleet, worker)
        downs = [line.fact for line in stream.lines() if line.subject == subject and isinstance(line.fact, WorkerDown)]
        assert [fact.reason for fact in downs] == [str(index) for index in range(30)]


def test_closing_does_not_wait_for_a_server_that_hangs(server, stream):
    """More than the socket takes is on its way, so that a write is held up."""
    publisher = Publisher(stream.fleet, server.url)
    publisher.worker_up("w-0-0", incarnation=1).result(LONG)
    server.pause()
    for index in range(60):
        publisher.worker_down(f"w-{index}-0", incarnation=1, evidence="timeout", reason="x" * 200_000)
    publisher.flush(1)
    begin = time.monotonic()
    closed = publisher.close(timeout=0)
    assert time.monotonic() - begin < 20  # far below the 30 s after which the connection itself counts as dead
    assert len(closed.unsent) == 60
    server.resume()
