"""The durable outbox behind a publisher. Guards I8 across the death of the process."""

import signal
import time

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE
from support.process import python_process
from support.stream import FleetStream

from rollbook.adapters.publisher import OutboxInUse, OutboxUnusable, Publisher
from rollbook.events import WorkerDown, worker_subject

pytestmark = pytest.mark.integration


@pytest.fixture
def server(start_nats):
    return start_nats()


@pytest.fixture
def stream(server, fleet):
    return FleetStream(server.url, fleet).make()


def worker_lines(stream, worker):
    return [line for line in stream.lines() if line.subject == worker_subject(stream.fleet, worker)]


def wait_connected(publisher, connected=True):
    until = time.monotonic() + DEADLINE
    while publisher.stats().connected != connected:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_is_persisted_survives_kill_9(server, stream, tmp_path):
    """The process is killed while NATS is away; the next one with the same file sends it: same ids, same order."""
    server.kill()
    code = """
        import sys
        from rollbook.adapters.publisher import Publisher
        publisher = Publisher(sys.argv[1], sys.argv[2], outbox=sys.argv[3])
        life = publisher.worker("life-0-0")
        unnumbered = [life.started(), life.up()]
        receipts = []
        for index in range(40):
            receipts.append(publisher.worker_down("w-0-0", incarnation=1, evidence="timeout", reason=str(index)))
            receipts.append(publisher.worker_down("w-1-0", incarnation=1, evidence="timeout", reason=str(index)))
        assert all(receipt.wait_persisted(60) for receipt in receipts)
        assert not any(receipt.persisted for receipt in unnumbered)
        print(*(receipt.id for receipt in receipts), flush=True)
        sys.stdin.readline()
    """
    with python_process(code, stream.fleet, server.url, str(tmp_path / "outbox")) as process:
        ids = process.stdout.readline().split()
        assert len(ids) == 80
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)
    server.start()
    with capture_logs() as logs, Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as publisher:
        new = publisher.worker_down("w-0-0", incarnation=1, evidence="timeout", reason="new")
        assert new.result(2 * DEADLINE)
        assert publisher.flush(2 * DEADLINE).unsent == ()
        assert publisher.stats().acknowledged == 81
        assert [unsent.what for unsent in publisher.left_unsent] == [
            "WorkerStarted about life-0-0",
            "WorkerUp about life-0-0",
        ]
    assert sum(entry["event"] == "publisher.fact.unsent" for entry in logs) == 2
    lines = stream.lines()
    assert sorted(line.id for line in lines if line.fact.reason != "new") == sorted(ids)
    assert len(lines) == 81
    assert [line.fact.reason for line in worker_lines(stream, "w-0-0")] == [*map(str, range(40)), "new"]
    assert [line.fact.reason for line in worker_lines(stream, "w-1-0")] == [*map(str, range(40))]
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as empty:
        assert empty.left_unsent == ()
        assert empty.stats().waiting == 0


def test_what_was_stored_before_the_death_is_not_stored_again(server, stream, tmp_path):
    """The first process dies between JetStream's acknowledgement and the note of it: the next one looks."""
    publisher = Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox")
    publisher._core.store.forget = lambda entry: None
    receipts = [publisher.worker_down("w-0-0", incarnation=1, reason=str(index)) for index in range(3)]
    assert [receipt.result(DEADLINE) for receipt in receipts] == [1, 2, 3]
    publisher.close()
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as successor:
        assert successor.flush(DEADLINE).unsent == ()
        assert successor.stats().acknowledged == 3
    assert len(stream.lines()) == 3


def test_a_number_makes_a_life_s_facts_fit_to_be_kept(server, stream, tmp_path):
    publisher = Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox")
    life = publisher.worker("w-0-0")
    life.started().result(DEADLINE)
    server.kill()
    wait_connected(publisher, connected=False)
    receipt = life.up()
    assert receipt.wait_persisted(DEADLINE)
    closed = publisher.close(timeout=0)
    assert [unsent.kept for unsent in closed.unsent] == [True]
    assert "it is in the durable outbox" in closed.unsent[0].reason
    server.start()
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as successor:
        assert successor.flush(DEADLINE).unsent == ()
        assert successor.stats().acknowledged == 1
    assert [line.fact.incarnation for line in stream.lines()] == [1, 1]
    assert stream.lines()[1].id == receipt.id


def test_a_kept_up_after_a_kept_down_counts_unless_somebody_spoke(server, stream, tmp_path):
    """As within one process: the author knew its own Down, and nothing that came in between."""
    server.kill()
    publisher = Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox")
    for call in (publisher.worker_down, publisher.worker_up):
        call("w-0-0", incarnation=1, **({"evidence": "timeout"} if call == publisher.worker_down else {}))
    assert all(unsent.kept for unsent in publisher.close(timeout=0).unsent)
    server.start()
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as successor:
        assert successor.flush(DEADLINE).unsent == ()
        assert successor.stats().acknowledged == 2
    down, up = stream.lines()
    assert isinstance(down.fact, WorkerDown)
    assert up.fact.seen == down.sequence
    assert up.recorded.source == down.recorded.source


def test_one_file_per_publisher_and_fleet(server, stream, tmp_path):
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as publisher:
        with pytest.raises(OutboxInUse):
            Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox")
        server.kill()
        wait_connected(publisher, connected=False)
        publisher.worker_up("w-0-0", incarnation=1)
        publisher.close(timeout=0)
    with pytest.raises(OutboxUnusable, match="fleet 'another' needs its own file"):
        Publisher("another", server.url, outbox=tmp_path / "outbox")
    server.start()
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as successor:
        assert successor.flush(DEADLINE).unsent == ()
        assert successor.stats().acknowledged == 1


def test_a_verdict_is_never_sent_by_another_process(server, stream, tmp_path):
    publisher = Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox")
    publisher.worker_up("w-0-0", incarnation=1).result(DEADLINE)
    with publisher.probe("w-0-0", timeout=DEADLINE) as probe:
        server.kill()
        wait_connected(publisher, connected=False)
        verdict = probe.down()
        assert not verdict.wait_persisted(0.2)
        (unsent,) = publisher.close(timeout=0).unsent
    assert not unsent.kept
    server.start()
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as successor:
        assert [one.id for one in successor.left_unsent] == [unsent.id]
        assert successor.stats().waiting == 0
    assert len(stream.lines()) == 1


def test_acknowledged_counts_as_persisted(server, stream, tmp_path):
    with Publisher(stream.fleet, server.url, outbox=tmp_path / "outbox") as publisher:
        receipt = publisher.worker_up("w-0-0")
        receipt.result(DEADLINE)
        assert receipt.persisted
