"""What a caller of the publisher meets, with NATS out of reach. Guards I8: never silently gone, never waiting."""

import asyncio
import os
import pickle
import socket
import threading
import time

import pytest
from structlog.testing import capture_logs
from support.process import run_python

from rollbook.adapters.publisher import (
    IncarnationUnknown,
    NotSent,
    OutboxFull,
    Publisher,
    PublisherClosed,
    PublisherError,
    PublisherMisconfigured,
    WouldBlock,
    link,
)
from rollbook.events import (
    InvalidFact,
    InvalidName,
    InvalidSubject,
    WeightsPublished,
    WorkerCordoned,
    WorkerDraining,
    WorkerResumed,
    WorkerRetired,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.ports import LogError, LogUnavailable

SOON = 30


@pytest.fixture(scope="module")
def nowhere() -> str:
    """A URL where nobody answers: the port is taken, and does not listen."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    yield f"nats://127.0.0.1:{taken.getsockname()[1]}"
    taken.close()


@pytest.fixture
def publisher(nowhere):
    made = Publisher("f", nowhere, name="tests", limit=5)
    yield made
    made.close(timeout=0)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", ">", "a\n", "x" * 129, "é"])
def test_a_name_that_cannot_stand_in_a_subject(publisher, name):
    for call in (
        lambda: publisher.worker(name),
        lambda: publisher.worker_started(name),
        lambda: publisher.worker_up(name),
        lambda: publisher.worker_up(name, incarnation=1),
        lambda: publisher.worker_down(name),
        lambda: publisher.worker_down(name, incarnation=1),
        lambda: publisher.probe(name),
        lambda: publisher.publish(WorkerUp(worker=name, incarnation=1)),
        lambda: publisher.publish(WorkerCordoned(worker=name, by="me", why="so")),
    ):
        with pytest.raises(InvalidName, match="use letters, digits"):
            call()
    assert publisher.stats().accepted == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.worker_down("w-0-0", incarnation=0),
        lambda p: p.worker_down("w-0-0", incarnation=True),
        lambda p: p.worker_down("w-0-0", incarnation=2**53),
        lambda p: p.worker_down("w-0-0", incarnation=1, evidence="rumour"),
        lambda p: p.worker_down("w-0-0", incarnation=1, reason=7),
        lambda p: p.worker_down("w-0-0", incarnation=1, reason=None),
        lambda p: p.worker_down("w-0-0", incarnation=1, reason="x" * 1_000_000),
        lambda p: p.worker_down("w-0-0", incarnation=1, reason="\ud800"),
        lambda p: p.worker_down("w-0-0", evidence="rumour"),
        lambda p: p.worker_down("w-0-0", incarnation=1, pool="a.b"),
        lambda p: p.worker_down("w-0-0", incarnation=1, cell_size=2),
        lambda p: p.worker_up("w-0-0", incarnation=0),
        lambda p: p.worker_up("w-0-0", incarnation="7"),
        lambda p: p.worker_up("w-0-0", rank="0"),
        lambda p: p.worker_started("w-0-0", pid="x"),
        lambda p: p.worker("w-0-0").weights_loaded("new"),
        lambda p: p.worker("w-0-0", cell_size=2).up(),
        lambda p: p.publish(WorkerUp(worker="w-0-0", incarnation=0)),
        lambda p: p.publish(WeightsPublished(pool="rollout", version="x")),
    ],
)
def test_a_fact_that_could_never_be_sent_is_refused_at_the_call(publisher, call):
    with pytest.raises(InvalidFact):
        call(publisher)
    assert publisher.stats().waiting == 0


def test_something_that_is_no_fact_of_this_version(publisher):
    from rollbook.events import UnknownFact

    with pytest.raises(InvalidSubject):
        publisher.publish(UnknownFact(type="rollbook.worker.danced.v1", data=b"{}"))


def test_the_caller_gets_a_receipt_at_once(publisher):
    receipt = publisher.worker_up("w-0-0")
    assert not receipt.done
    assert not receipt.persisted
    with pytest.raises(TimeoutError):
        receipt.result(0.01)
    stats = publisher.stats()
    assert (stats.accepted, stats.waiting, stats.acknowledged, stats.connected) == (1, 1, 0, False)


def test_one_too_many_is_told_at_once(publisher):
    kept = [publisher.worker_up(f"w-{index}-0") for index in range(5)]
    with capture_logs() as logs:
        refused = [publisher.worker_up(f"x-{index}-0") for index in range(3)]
    for receipt in refused:
        with pytest.raises(OutboxFull, match="5 facts are waiting already"):
            receipt.result()
    assert [receipt.done for receipt in kept] == [False] * 5
    assert publisher.stats().refused == 3
    assert publisher.stats().waiting == 5
    assert [entry["event"] for entry in logs] == ["publisher.outbox.full"]  # not once per fact


def test_the_limit_holds_for_many_threads_at_once(nowhere):
    with Publisher("f", nowhere, limit=100) as publisher:
        receipts = []
        start = threading.Barrier(8)

        def work(number: int) -> None:
            start.wait(SOON)
            receipts.extend([publisher.worker_up(f"w-{number}-{index}", incarnation=1) for index in range(50)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert sum(isinstance(receipt.error, OutboxFull) for receipt in receipts) == 300
        unsent = publisher.close(timeout=0).unsent
    assert len(unsent) == 100


def test_a_down_without_a_number_is_not_kept_for_later(publisher):
    receipt = publisher.worker_down("w-0-0")
    with pytest.raises(IncarnationUnknown, match=r"NATS was not connected at the call.*pass `incarnation`"):
        receipt.result(SOON)
    assert publisher.stats().waiting == 0
    assert publisher.stats().refused == 1


def test_a_down_of_a_life_of_this_publisher_waits_for_its_number(publisher):
    publisher.worker_up("w-0-0")
    receipt = publisher.worker_down("w-0-0")
    assert not receipt.done
    assert publisher.flush(timeout=0.01).unsent[1].fact.incarnation == 0


def test_a_probe_needs_the_log(publisher):
    with pytest.raises(LogUnavailable, match=r"within 0\.05 s"), publisher.probe("w-0-0", timeout=0.05):
        pytest.fail("entered")
    probe = publisher.probe("w-0-0")
    with pytest.raises(PublisherError, match="inside of `with"):
        probe.down()


def test_a_life_without_facts_has_no_number(publisher):
    life = publisher.worker("w-0-0")
    assert life.incarnation is None
    with pytest.raises(PublisherError, match=r"call started\(\) or up\(\) first"):
        life.incarnation_result(1)
    life.up()
    with pytest.raises(TimeoutError):
        life.incarnation_result(0.01)


def test_a_life_says_by_methods_what_the_page_shows(publisher):
    life = publisher.worker("w-0-0")
    life.suspended(reason="weight update", ttl=30)
    life.resumed(reason="it is done")
    life.draining(reason="scale down", deadline_seconds=5)
    life.retired(reason="it is gone")
    said = [unsent.fact for unsent in publisher.flush(timeout=0).unsent]
    w = {"worker": "w-0-0", "incarnation": said[0].incarnation}
    assert said == [
        WorkerSuspended(**w, reason="weight update", ttl=30),
        WorkerResumed(**w, reason="it is done"),
        WorkerDraining(**w, reason="scale down", deadline_seconds=5),
        WorkerRetired(**w, reason="it is gone"),
    ]


def test_flush_says_what_is_not_sent(publisher):
    receipt = publisher.worker_up("w-0-0", incarnation=3)
    flushed = publisher.flush(timeout=0.01)
    assert not flushed
    assert flushed.sent == 0
    (unsent,) = flushed.unsent
    assert (unsent.id, unsent.what, unsent.fact.incarnation, unsent.kept) == (
        receipt.id,
        "WorkerUp about w-0-0",
        3,
        True,
    )
    assert not receipt.done


def test_close_says_what_is_not_sent_and_ends_it(nowhere):
    publisher = Publisher("f", nowhere)
    receipts = [
        publisher.worker_up("w-0-0", incarnation=3),
        publisher.publish(WeightsPublished(pool="rollout", version=1)),
    ]
    with capture_logs() as logs:
        closed = publisher.close(timeout=0.05)
    assert [unsent.id for unsent in closed.unsent] == [receipt.id for receipt in receipts]
    assert not any(unsent.kept for unsent in closed.unsent)
    for receipt in receipts:
        with pytest.raises(NotSent, match="closed before the log acknowledged it"):
            receipt.result()
    assert [entry["unsent"] for entry in logs if entry["event"] == "publisher.closed.unsent"] == [2]
    assert publisher.close() is closed
    for call in (publisher.flush, lambda: publisher.worker_up("w-0-0"), lambda: publisher.probe("w").__enter__()):
        with pytest.raises(PublisherClosed, match="make a new one"):
            call()


def test_nothing_falls_between_publishing_and_closing(nowhere):
    """Threads publish while another closes: every receipt has an end, and the report names every accepted fact."""
    publisher = Publisher("f", nowhere, limit=1_000_000)
    receipts = []
    ready = threading.Barrier(4)

    def work() -> None:
        ready.wait(SOON)
        try:
            while True:
                receipts.append(publisher.worker_up("w-0-0", incarnation=1))
        except PublisherClosed:
            return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait(SOON)
    while len(receipts) < 100:
        time.sleep(0.001)
    with capture_logs():
        closed = publisher.close(timeout=0)
        for thread in threads:
            thread.join(SOON)
    assert all(receipt.done for receipt in receipts)
    told = {unsent.id for unsent in closed.unsent}
    late = [receipt for receipt in receipts if receipt.id not in told]
    assert len(late) <= 3  # one per thread may have been in the middle of its call; its receipt says so
    assert all(isinstance(receipt.error, NotSent) for receipt in receipts)


async def test_in_asyncio(nowhere):
    async with Publisher("f", nowhere) as publisher:
        receipt = publisher.worker_up("w-0-0", incarnation=1)
        for call in (publisher.flush, publisher.close, lambda: publisher.probe("w-0-0").__enter__()):
            with pytest.raises(WouldBlock):
                call()
        with pytest.raises(LogUnavailable):
            async with publisher.probe("w-0-0", timeout=0.05):
                pytest.fail("entered")
        assert len((await publisher.aflush(0.01)).unsent) == 1
        closed = await publisher.aclose(0.01)
    assert len(closed.unsent) == 1
    with pytest.raises(NotSent):
        await receipt


async def test_the_constructor_does_not_wait(nowhere):
    """It returns while the attempt to connect has not even begun on a blocked loop, and `close` ends the attempt."""
    for _ in range(3):
        publisher = Publisher("f", nowhere)
        assert not publisher.stats().connected
        await publisher.aclose(0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollbook")]


def test_from_env_names_what_is_missing():
    complete = {"ROLLBOOK_FLEET": "f", "ROLLBOOK_NATS_URL": "nats://127.0.0.1:1"}
    for variable in complete:
        with pytest.raises(PublisherMisconfigured, match=f"{variable} is not set.*runtime_env"):
            Publisher.from_env({**complete, variable: ""})
    with pytest.raises(InvalidName, match="name a fleet"):
        Publisher.from_env({**complete, "ROLLBOOK_FLEET": "a b"})
    with pytest.raises(LogError, match="not a NATS URL"):
        Publisher.from_env({**complete, "ROLLBOOK_NATS_URL": "http://x"})
    with pytest.raises(InvalidName, match="name a publisher"):
        Publisher.from_env(complete, name="a.b")
    with pytest.raises(PublisherMisconfigured, match="limit is 0"):
        Publisher.from_env(complete, limit=0)


def test_from_env(tmp_path, nowhere):
    environ = {"ROLLBOOK_FLEET": "f", "ROLLBOOK_NATS_URL": nowhere, "ROLLBOOK_OUTBOX": str(tmp_path / "o")}
    with Publisher.from_env(environ) as publisher:
        assert publisher.fleet == "f"
        assert publisher.name.endswith(f"-{os.getpid()}")
        receipt = publisher.worker_up("w-0-0", incarnation=1)
        assert receipt.wait_persisted(SOON)
        closed = publisher.close(0)
    assert closed.unsent[0].kept


def test_it_stays_in_its_process(publisher):
    with pytest.raises(PublisherError, match="stays in its process"):
        pickle.dumps(publisher)


def test_importing_it_is_cheap():
    run_python(
        """
        import sys
        from rollbook.adapters.publisher import Publisher
        heavy = {"nats", "aiohttp", "ray", "uvloop", "cyclopts"} & set(sys.modules)
        assert not heavy, heavy
        """
    )


def test_at_exit_it_says_what_is_lost(nowhere):
    ended = run_python(
        """
        import sys
        from rollbook.adapters.publisher import Publisher
        Publisher("f", sys.argv[1]).worker_up("w-0-0", incarnation=1)
        """,
        nowhere,
    )
    assert "publisher.closed.unsent" in ended.stdout + ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_and_can_make_its_own(nowhere):
    run_python(
        """
        import os, sys, pytest
        from rollbook.adapters.publisher import Publisher, PublisherForked

        publisher = Publisher("f", sys.argv[1])
        receipt = publisher.worker_up("w-0-0", incarnation=1)
        life = publisher.worker("w-1-0")
        child = os.fork()
        if not child:
            for call in (
                lambda: publisher.worker_down("w-0-0", incarnation=1),
                life.up,
                publisher.flush,
                publisher.close,
                lambda: receipt.result(5),
                lambda: publisher.probe("w-0-0").__enter__(),
            ):
                with pytest.raises(PublisherForked, match="a forked child makes its own"):
                    call()
            own = Publisher("f", sys.argv[1])
            assert not own.worker_up("w-0-0", incarnation=1).done
            assert len(own.close(0).unsent) == 1
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not receipt.done
        publisher.worker_up("w-0-0", incarnation=1)
        assert len(publisher.flush(0.01).unsent) == 2
        assert len(publisher.close(0).unsent) == 2
        """,
        nowhere,
    )


def test_threads_share_one_life(publisher):
    """`worker_up` from two threads at once is one life, not two."""
    start = threading.Barrier(4)
    lives = []

    def work() -> None:
        start.wait(SOON)
        publisher.worker_up("w-0-0")
        lives.append(publisher._lives["w-0-0"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(set(lives)) == 1


def test_when_a_new_life_begins(publisher):
    def current():
        return publisher._lives["w-0-0"]

    publisher.worker_up("w-0-0")
    first = current()
    publisher.worker_down("w-0-0", evidence="unhealthy")
    publisher.worker_up("w-0-0")
    assert current() is first  # the same process serves again
    publisher.worker_down("w-0-0", evidence="exited")
    publisher.worker_up("w-0-0", incarnation=None)
    assert current() is not first
    publisher.worker_started("w-1-0")
    second = publisher._lives["w-1-0"]
    with pytest.raises(InvalidFact):
        publisher.worker_up("w-1-0", incarnation=-1)
    asyncio.run(asyncio.sleep(0))
    assert second.incarnation is None


async def test_whoever_waits_when_it_is_closed_is_told(nowhere):
    publisher = Publisher("f", nowhere)
    probing = asyncio.create_task(publisher.probe("w-0-0", timeout=60).__aenter__())
    publisher.worker_up("w-0-0", incarnation=1)
    flushing = asyncio.create_task(publisher.aflush(60))
    await asyncio.sleep(0.05)
    await publisher.aclose(0)
    for waiting in (probing, flushing):
        with pytest.raises(PublisherClosed, match="closed meanwhile"):
            await waiting
    asked_late = publisher._core.sender.submit(asyncio.sleep(0))
    with pytest.raises(PublisherClosed):
        asked_late.result(SOON)


def test_a_thread_that_dies_leaves_no_receipt_without_an_end(nowhere, monkeypatch):
    """Whatever the reason: facts of before and after are reported, and closing works."""
    publisher = Publisher("f", nowhere)
    before = publisher.worker_up("w-0-0", incarnation=1)
    publisher.flush(0.01)

    async def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(publisher._core.sender, "_send_what_may_go", broken)
    with capture_logs() as logs:
        during = publisher.worker_up("w-1-0", incarnation=1)
        for receipt in (before, during):
            with pytest.raises(NotSent, match="thread failed"):
                receipt.result(SOON)
        publisher._core.sender._thread.join(SOON)
        with pytest.raises(NotSent):
            publisher.worker_up("w-2-0", incarnation=1).result(SOON)
        assert publisher.close().sent == 0
    assert "publisher.thread.failed" in {entry["event"] for entry in logs}


def test_a_connection_that_nobody_keeps_any_more_ends_the_thread_aloud(nowhere, monkeypatch):
    """Otherwise every fact would wait for ever, and nobody would know why."""

    async def broken(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(link.Link, "keep", broken)
    with capture_logs() as logs:
        publisher = Publisher("f", nowhere)
        receipt = publisher.worker_up("w-0-0", incarnation=1)
        with pytest.raises(NotSent):  # it was taken before the thread ended, or after
            receipt.result(SOON)
        publisher.close()
    assert "publisher.thread.failed" in {entry["event"] for entry in logs}
