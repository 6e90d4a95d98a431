"""The publisher on a real server: what arrives, in which order, from whom, and what a refusal looks like."""

import asyncio
import threading
from collections import defaultdict

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE
from support.stream import FleetStream, in_thread

from rollbook.adapters.publisher import Publisher, Refused
from rollbook.events import (
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerStarted,
    WorkerUp,
    worker_subject,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def publisher(stream):
    with Publisher(stream.fleet, stream.url, name="tests") as made:
        yield made


def test_every_family_arrives(publisher, stream):
    receipts = [
        publisher.publish(WorkerUp(worker="w-0-0", incarnation=4, pool="x")),
        publisher.publish(WeightsPublished(pool="w", version=3)),
        publisher.publish(WorkerCordoned(worker="w-0-0", by="me", why="so")),
    ]
    sequences = [receipt.result(DEADLINE) for receipt in receipts]
    lines = {line.sequence: line for line in stream.lines()}
    assert sorted(sequences) == [1, 2, 3]
    for receipt, sequence in zip(receipts, sequences, strict=True):
        assert lines[sequence].id == receipt.id
        assert lines[sequence].recorded.source == f"rollbook://{stream.fleet}/tests"
    assert lines[sequences[0]].fact == WorkerUp(worker="w-0-0", incarnation=4, pool="x")
    assert lines[sequences[2]].subject == f"rollbook.{stream.fleet}.operator.worker.w-0-0"


def test_seen_is_what_the_publisher_knew_at_the_call(publisher, stream):
    first = publisher.worker_down("w-0-0", incarnation=1, evidence="timeout").result(DEADLINE)
    publisher.publish(WeightsPublished(pool="w", version=1)).result(DEADLINE)
    publisher.worker_up("w-0-0", incarnation=1).result(DEADLINE)
    publisher.publish(WorkerDown(worker="w-0-0", incarnation=1, evidence="timeout", seen=7)).result(DEADLINE)
    assert [line.fact.seen for line in stream.lines() if "worker.w-0-0" in line.subject] == [0, first, 7]


def test_an_up_after_ones_own_unacknowledged_down_counts(publisher, stream):
    """All three are called before anything is acknowledged: the Up must carry the Down's sequence."""
    receipts = [
        publisher.worker_up("w-0-0", incarnation=1),
        publisher.worker_down("w-0-0", incarnation=1, evidence="timeout"),
        publisher.worker_up("w-0-0", incarnation=1),
    ]
    sequences = [receipt.result(DEADLINE) for receipt in receipts]
    assert sequences == [1, 2, 3]
    assert stream.lines()[2].fact.seen == 2


def test_a_late_up_does_not_claim_to_know_what_others_said(start_nats, fleet):
    """I2: this publisher's Down and Up were called before somebody else's Down, and arrive after it."""
    server = start_nats()
    stream = FleetStream(server.url, fleet).make()
    server.kill()
    with Publisher(fleet, server.url) as late:
        receipts = [
            late.worker_down("w-0-0", incarnation=1, evidence="timeout"),
            late.worker_up("w-0-0", incarnation=1),
        ]
        late.flush(0.01)
        blocked, go_on = threading.Event(), threading.Event()
        late._core.sender.loop.call_soon_threadsafe(lambda: (blocked.set(), go_on.wait(DEADLINE)))
        assert blocked.wait(DEADLINE)
        server.start()
        with Publisher(fleet, server.url) as other:
            other.worker_down("w-0-0", incarnation=1, evidence="actor_dead").result(DEADLINE)
        go_on.set()
        assert [receipt.result(DEADLINE) for receipt in receipts] == [2, 3]
    assert stream.lines()[2].fact.seen == 0


def test_the_first_up_of_a_publisher_knows_what_the_log_knew(publisher, stream):
    """A monitor that was restarted can say that the worker which its predecessor took down is up.

    The log's clock is known to within a round trip, and the answer errs on the side of not knowing: then try again.
    """
    down = publisher.worker_down("w-0-0", incarnation=5, evidence="timeout").result(DEADLINE)
    for _ in range(50):
        with Publisher(stream.fleet, stream.url) as successor:
            successor.worker_up("w-0-0", incarnation=5).result(DEADLINE)
        if stream.lines()[-1].fact.seen >= down:
            return
    pytest.fail("no successor knew of the Down")


def test_the_first_up_does_not_know_what_came_after_the_call(start_nats, fleet):
    """I2: it was called before the Down, by a publisher that could not connect."""
    server = start_nats()
    stream = FleetStream(server.url, fleet).make()
    with Publisher(fleet, server.url) as other:
        before = other.publish(WorkerUp(worker="w-0-0", incarnation=1)).result(DEADLINE)
        with Publisher(fleet, server.url) as late:
            blocked, go_on = threading.Event(), threading.Event()
            late._core.sender.loop.call_soon_threadsafe(lambda: (blocked.set(), go_on.wait(DEADLINE)))
            assert blocked.wait(DEADLINE)
            receipt = late.worker_up("w-0-0", incarnation=1)
            other.worker_down("w-0-0", incarnation=1, evidence="actor_dead").result(DEADLINE)
            go_on.set()
            receipt.result(DEADLINE)
    assert stream.lines()[-1].fact.seen <= before


def test_threads_keep_their_order_per_worker(publisher, stream):
    """I8: eight threads, each with workers of its own and one that all share."""
    start = threading.Barrier(8)
    shared: list[str] = []

    def work(number: int) -> None:
        start.wait(DEADLINE)
        for index in range(50):
            for worker in (f"own-{number}-0", f"own-{number}-1"):
                publisher.publish(WorkerStarted(worker=worker, incarnation=1, pid=index))
            shared.append(publisher.worker_up("shared-0-0", incarnation=1 + index).id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert publisher.flush(DEADLINE).unsent == ()
    lines = stream.lines()
    assert len(lines) == len({line.id for line in lines}) == 8 * 50 * 3
    by_subject = defaultdict(list)
    for line in lines:
        by_subject[line.subject].append(line)
    for number in range(8):
        for rank in (0, 1):
            own = by_subject[worker_subject(stream.fleet, f"own-{number}-{rank}")]
            assert [line.fact.pid for line in own] == list(range(50))
    assert {line.id for line in by_subject[worker_subject(stream.fleet, "shared-0-0")]} == set(shared)
    stats = publisher.stats()
    assert (stats.accepted, stats.acknowledged, stats.waiting, stats.refused) == (1200, 1200, 0, 0)


async def test_from_asyncio(nats_server, fleet):
    stream = in_thread(FleetStream(nats_server.url, fleet).make)
    async with asyncio.timeout(2 * DEADLINE), Publisher(fleet, nats_server.url) as publisher:
        life = publisher.worker("w-0-0")
        started, up = life.started(), life.up()
        assert await life.numbered() == 1
        assert await asyncio.gather(started, up) == [1, 2]
        assert (await publisher.aflush()).unsent == ()
        down = publisher.worker_down("w-0-0")
        assert (await publisher.aclose()).unsent == ()
        assert await down == 3
    assert len(stream.lines()) == 3


def test_more_subjects_than_the_window(publisher, stream):
    receipts = [publisher.worker_up(f"w-{index}-0", incarnation=1, pool="w") for index in range(700)]
    assert publisher.flush(DEADLINE).unsent == ()
    assert sorted(receipt.result(0) for receipt in receipts) == list(range(1, 701))


def test_a_server_that_takes_less_than_we_do(start_nats, fleet):
    """A permanent refusal ends the fact, is reported, and the lane goes on."""
    server = start_nats(config="max_payload: 2000")
    FleetStream(server.url, fleet).make()
    with capture_logs() as logs, Publisher(fleet, server.url) as publisher:
        too_large = publisher.worker_down("w-0-0", incarnation=1, reason="x" * 2000)
        numbered = publisher.worker("w-1-0").down(reason="x" * 2000)
        after = publisher.worker_up("w-0-0", incarnation=2)
        assert after.result(DEADLINE) == 1
        for receipt in (too_large, numbered):
            with pytest.raises(Refused, match="this NATS takes 1488; make it smaller"):
                receipt.result(DEADLINE)
        assert publisher.stats().refused == 2
    assert [entry["event"] for entry in logs].count("publisher.fact.unsent") == 2


def test_a_stream_that_is_not_made_yet_is_waited_for(nats_server, fleet):
    with capture_logs() as logs, Publisher(fleet, nats_server.url) as publisher:
        receipts = [publisher.worker_up("w-0-0"), publisher.worker_down("w-1-0", incarnation=1)]
        wait_connected(publisher)
        assert len(publisher.flush(1).unsent) == 2
        assert "stream" in publisher.stats().last_error
        FleetStream(nats_server.url, fleet).make()
        assert {receipt.result(DEADLINE) for receipt in receipts} == {1, 2}
        assert publisher.stats().last_error is None
    assert {"publisher.held_up", "publisher.flowing"} <= {entry["event"] for entry in logs}


def test_credentials_that_are_refused_hold_the_facts_up(start_nats, fleet):
    server = start_nats(config='authorization { token: "s3cret" }')
    wrong = f"nats://wr0ng@127.0.0.1:{server.port}"
    with capture_logs() as logs:
        publisher = Publisher(fleet, wrong)
        receipt = publisher.worker_up("w-0-0", incarnation=1)
        while publisher.stats().last_error is None:
            publisher.flush(0.05)
        assert "refused a token; set ROLLBOOK_NATS_TOKEN" in publisher.stats().last_error
        assert not receipt.done
        (unsent,) = publisher.close(0).unsent
    assert "refused a token" in unsent.reason
    assert "wr0ng" not in str(logs) + str(unsent)


def wait_connected(publisher: Publisher) -> None:
    for _ in range(int(DEADLINE / 0.02)):
        if publisher.stats().connected:
            return
        publisher._core.sender.submit(asyncio.sleep(0.02)).result()
    pytest.fail("not connected")
