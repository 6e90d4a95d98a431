"""Reading the log on JetStream when something underneath breaks: servers, consumers, connections, deliveries."""

import asyncio
import contextlib
import shutil

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE
from support.own_log import FLEET, STREAM, SYNCED, append_for_sure, draft, provisioned
from support.until import until

from rollbook.adapters.jetstream import pull
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.projections.ports import HistoryHole, LogUnavailable

pytestmark = pytest.mark.integration


@pytest.fixture
async def server(start_nats):
    return start_nats(jetstream=SYNCED)


@pytest.fixture
async def client(server):
    async with provisioned(server) as client:
        yield client


@pytest.fixture
def log(client, request):
    """It reads by a consumer; or, where a test says `pages`, by questions alone."""
    direct = getattr(request, "param", "consumer") == "pages"
    return JetStreamLog(client, FLEET, timeout=DEADLINE, patience=DEADLINE, direct=direct)


BOTH_WAYS = pytest.mark.parametrize("log", ["consumer", "pages"], indirect=True)


class Reading:
    """Reads for as long as the test runs, and keeps what came."""

    def __init__(self, log, after=0):
        self.got = []
        self.batches = 0
        self._task = asyncio.create_task(self._read(log, after))

    async def _read(self, log, after):
        async with contextlib.aclosing(log.read(after)) as batches:
            async for batch in batches:
                self.got.extend(batch)
                self.batches += 1

    async def have(self, count):
        """Wait until `count` messages came; an error of the reader is the test's."""

        async def look():
            if self._task.done():
                self._task.result()
            return len(self.got)

        await until(look, lambda many: many >= count)

    async def failed(self):
        async with asyncio.timeout(DEADLINE):
            return (await asyncio.gather(self._task, return_exceptions=True))[0]

    async def stop(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def reading(log):
    """Starts readers that end with the test."""
    started = []

    def start(after=0):
        started.append(Reading(log, after))
        return started[-1]

    yield start
    for one in started:
        await one.stop()


async def consumers(client):
    return (await question(client, f"CONSUMER.NAMES.{STREAM}", timeout=DEADLINE))["consumers"]


# ---------------------------------------------------------------- reading goes on


async def test_restarts_of_the_server_lose_and_repeat_nothing(server, log, reading):
    """I8: what was accepted is there once, in order, for writer and reader, over kills of the server."""
    read = reading()
    stop = asyncio.Event()
    written = []

    async def write():
        number = 0
        while not stop.is_set():
            drafts = [draft(b"%d" % (number + offset)) for offset in range(1 + number % 3)]
            sequences = await append_for_sure(log, drafts)
            written.extend(zip(sequences, [one.payload for one in drafts], strict=True))
            number += len(drafts)

    writing = asyncio.create_task(write())
    for _ in range(4):
        before = len(written)

        async def wrote():
            if writing.done():
                writing.result()
            return len(written)

        await until(wrote, lambda many, before=before: many > before + 20)
        server.restart()
    stop.set()
    await writing
    await read.have(len(written))
    assert [sequence for sequence, _ in written] == list(range(1, len(written) + 1))
    assert [(stored.sequence, stored.payload) for stored in read.got] == written


async def test_a_deleted_consumer_is_replaced(client, log, reading):
    read = reading()
    for number in range(5):
        await log.append([draft(), draft()])
        await read.have(2 * number + 2)
        for consumer in await consumers(client):
            await question(client, f"CONSUMER.DELETE.{STREAM}.{consumer}", timeout=DEADLINE)
    await log.append([draft()])
    await read.have(11)
    assert [stored.sequence for stored in read.got] == list(range(1, 12))


async def test_a_lost_connection_is_read_over(client, log, reading):
    read = reading()
    for number in range(1, 6):
        await append_for_sure(log, [draft()])
        await read.have(number)
        await client.force_reconnect()
    await append_for_sure(log, [draft()])
    await read.have(6)
    assert [stored.sequence for stored in read.got] == list(range(1, 7))


async def test_a_silent_server_is_noticed(server, log, reading, monkeypatch):
    monkeypatch.setattr(pull, "HEARTBEAT", 0.1)
    read = reading()
    await log.append([draft()])
    await read.have(1)
    with capture_logs() as logs:
        server.pause()

        async def silent():
            return any("no sign of life" in entry.get("reason", "") for entry in logs)

        await until(silent, bool)
        server.resume()
        await append_for_sure(log, [draft()])
        await read.have(2)
    assert [stored.sequence for stored in read.got] == [1, 2]


@pytest.fixture
def lost(monkeypatch):
    """The one delivery that gets lost on its way: the first of a message that says `lose me`."""
    take, lost = pull.Pull._take, []

    def lossy(self, run):
        for message in run:
            if message[2] == b"lose me" and not lost:
                lost.append(message)
            else:
                take(self, [message])

    monkeypatch.setattr(pull.Pull, "_take", lossy)
    return lost


async def test_a_lost_delivery_is_read_again(log, reading, lost):
    read = reading()
    await log.append([draft(), draft(b"lose me"), draft(), draft()])
    await read.have(4)
    assert [stored.sequence for stored in read.got] == [1, 2, 3, 4]
    assert lost


async def test_a_lost_last_delivery_is_noticed_by_the_heartbeat(log, reading, monkeypatch, lost):
    monkeypatch.setattr(pull, "HEARTBEAT", 0.1)
    read = reading()
    await log.append([draft(), draft(b"lose me")])
    await read.have(2)
    assert lost


@pytest.mark.parametrize("before", [0, 3])
async def test_a_consumer_that_lives_and_delivers_nothing_is_replaced(client, log, reading, monkeypatch, before):
    """Delivered against pending: its heartbeats go on, and the stream holds what it does not deliver."""
    monkeypatch.setattr(pull, "HEARTBEAT", 0.2)
    monkeypatch.setattr(pull, "GRACE", 0.2)
    read = reading()
    for number in range(before):
        await log.append([draft()])
        await read.have(number + 1)
    [consumer] = await until(lambda: consumers(client), bool)
    forever = {"pause_until": "2100-01-01T00:00:00Z"}
    paused = await question(client, f"CONSUMER.PAUSE.{STREAM}.{consumer}", forever, timeout=DEADLINE)
    assert paused["paused"]
    with capture_logs() as logs:
        await log.append([draft()])
        await read.have(before + 1)
    assert [stored.sequence for stored in read.got] == list(range(1, before + 2))
    [entry] = [entry for entry in logs if entry["event"] == "log.read.reopened"]
    assert entry["reason"] == f"the stream holds {before + 1}, {before} is the last that was delivered"


async def test_an_idle_consumer_is_left_alone(client, log, reading, monkeypatch):
    monkeypatch.setattr(pull, "HEARTBEAT", 0.05)
    await log.append([draft(), draft()])
    read = reading()
    await read.have(2)
    [consumer] = await until(lambda: consumers(client), bool)
    looks = []

    async def looked(client, verb, *rest, **options):
        looks.append(verb)
        return await question(client, verb, *rest, **options)

    monkeypatch.setattr(pull, "question", looked)
    with capture_logs() as logs:
        await until(lambda: asyncio.sleep(0, looks.count(f"STREAM.MSG.GET.{STREAM}")), lambda count: count >= 4)
        await log.append([draft()])
        await read.have(3)
    assert await consumers(client) == [consumer]
    assert logs == []


async def test_requests_are_renewed(log, reading, monkeypatch):
    monkeypatch.setattr(pull, "HEARTBEAT", 0.1)
    monkeypatch.setattr(pull, "EXPIRES", 0.2)
    read = reading()
    with capture_logs() as logs:
        for number in range(1, 6):
            await asyncio.sleep(0.25)
            await log.append([draft()])
            await read.have(number)
    assert [entry for entry in logs if entry["event"] == "log.read.reopened"] == []


# ---------------------------------------------------------------- reading ends, and says why


async def read_beyond_a_backup(server, client, log, reading, backup, after=0):
    """Three facts were read, those up to `after` before, and the store is again as it was with two. The server is
    stopped.
    """
    await log.append([draft(), draft()])
    server.stop()
    shutil.copytree(server.directory / "store", backup)
    server.start()
    await append_for_sure(log, [draft(b"lost")])
    read = reading(after)
    if after:
        await until(lambda: consumers(client), len)
    await read.have(3 - after)
    server.stop()
    shutil.rmtree(server.directory / "store")
    shutil.copytree(backup, server.directory / "store")
    return read


@BOTH_WAYS
async def test_a_log_that_lost_its_end_is_not_read_on(server, client, log, reading, tmp_path):
    read = await read_beyond_a_backup(server, client, log, reading, tmp_path / "backup")
    server.start()
    error = await read.failed()
    assert isinstance(error, LogUnavailable)
    assert "ends at 2, but 3 was read already" in str(error)


@pytest.mark.parametrize(("log", "after"), [("consumer", 0), ("consumer", 3), ("pages", 0)], indirect=["log"])
async def test_a_log_whose_end_was_rewritten_is_not_read_on(server, client, log, reading, tmp_path, after):
    """Also by who has read nothing here yet, as after a snapshot."""
    read = await read_beyond_a_backup(server, client, log, reading, tmp_path / "backup", after)
    rewritten = asyncio.Event()
    state = log.state

    async def late():
        await rewritten.wait()
        return await state()

    log.state = late
    server.start()
    await append_for_sure(log, [draft(b"instead"), draft()])
    rewritten.set()
    error = await read.failed()
    assert isinstance(error, HistoryHole)
    assert "no sequence 3 (another message stands there than was read before)" in str(error)


@pytest.mark.parametrize("facts", [0, 3])
@BOTH_WAYS
async def test_a_stream_made_anew_is_not_read_on(client, log, reading, facts):
    read = reading()
    await log.append([draft(), draft()])
    await read.have(2)
    before = await log.state()
    await question(client, f"STREAM.DELETE.{STREAM}", timeout=DEADLINE)
    await provision(client, FLEET, timeout=DEADLINE)
    await append_for_sure(log, [draft() for _ in range(facts)])
    error = await read.failed()
    assert isinstance(error, HistoryHole)
    assert "made anew" in str(error)
    assert (await log.state()).identity != before.identity


async def test_what_was_purged_shows_as_a_gap(client, log, reading):
    await log.append([draft() for _ in range(10)])
    await question(client, f"STREAM.PURGE.{STREAM}", {"seq": 6}, timeout=DEADLINE)
    state = await log.state()
    assert (state.first_sequence, state.last_sequence) == (6, 10)
    assert await log.get(5) is None
    read = reading(after=2)
    await read.have(5)
    assert [stored.sequence for stored in read.got] == [6, 7, 8, 9, 10]
    await question(client, f"STREAM.PURGE.{STREAM}", timeout=DEADLINE)
    state = await log.state()
    assert (state.first_sequence, state.last_sequence) == (11, 10)


async def test_an_outage_is_told_after_a_while(server, client):
    log = JetStreamLog(client, FLEET, timeout=0.3, patience=0.5)
    read = Reading(log)
    await append_for_sure(log, [draft()])
    await read.have(1)
    server.kill()
    assert isinstance(await read.failed(), LogUnavailable)
    for call in (log.append([draft()]), log.append([draft(), draft()]), log.state(), log.get(1), log.last("x")):
        with pytest.raises(LogUnavailable, match=r"no connection to NATS within 0\.3 s"):
            await call
    server.start()
    again = Reading(log, after=1)
    await append_for_sure(log, [draft()])
    await again.have(1)
    await again.stop()


async def test_a_missing_stream_is_told(client):
    log = JetStreamLog(client, "nobody", timeout=DEADLINE, patience=0)
    with pytest.raises(LogUnavailable, match="stream ROLLBOOK_nobody: stream not found"):
        await log.state()
    with pytest.raises(LogUnavailable, match="stream not found"):
        await anext(log.read(0))
    with pytest.raises(LogUnavailable, match="nobody listens there"):
        await log.append([draft(fleet="nobody")])


async def test_a_closed_connection_is_told_at_once(client, log, reading):
    read = reading()
    await log.append([draft()])
    await read.have(1)
    await client.close()
    assert isinstance(await read.failed(), LogUnavailable)
    with pytest.raises(LogUnavailable, match="connection closed"):
        await log.append([draft()])


# ---------------------------------------------------------------- nothing is left behind, nothing piles up


async def test_ending_a_reader_frees_its_consumer(client, log):
    for cancel in (False, True):
        read = Reading(log)
        await append_for_sure(log, [draft()])
        await read.have(1)
        assert len(await consumers(client)) == 1
        if cancel:
            await read.stop()
        else:
            batches = log.read(0)
            await anext(batches)
            await batches.aclose()
            await read.stop()
        await until(lambda: consumers(client), lambda names: not names)
    assert not client.disconnections


@pytest.mark.parametrize("size", [10, 400_000])
async def test_a_slow_reader_gets_no_more_than_it_can_hold(client, log, monkeypatch, size):
    monkeypatch.setattr(pull, "BATCH", 50)
    monkeypatch.setattr(pull, "MAX_BYTES", 1_000_000)
    payload = b"x" * size
    count = 1000 if size < 100 else 40
    for _ in range(count // 10):
        await log.append([draft(payload) for _ in range(10)])
    opened = []
    real = pull.Pull.open

    async def remember(*arguments, **options):
        opened.append(await real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(pull.Pull, "open", remember)
    async with contextlib.aclosing(log.read(0)) as batches:
        got = list(await anext(batches))

        async def info():
            return (await question(client, f"CONSUMER.INFO.{STREAM}.{opened[0]._consumer}", timeout=DEADLINE))[
                "delivered"
            ]

        await asyncio.sleep(0.3)  # time in which too much would come
        held = opened[0]._buffer
        assert len(held) <= 2 * 50
        # A request gives at least one message, of which max_bytes allows two in turn.
        assert sum(len(stored.payload) for stored in held) <= 2 * max(1_000_000, 2 * client.max_payload) + size
        assert (await info())["consumer_seq"] <= len(got) + 2 * 50
        async with asyncio.timeout(DEADLINE):
            while len(got) < count:
                got.extend(await anext(batches))
    assert [stored.sequence for stored in got] == list(range(1, count + 1))
    assert len(opened) == 1


async def test_strangers_bytes_and_names_pass_through(client, log, reading):
    """I9: what anybody put on the subjects reaches the fold."""
    read = reading()
    await client.publish(f"rollbook.{FLEET}.worker.a", b"no headers")
    await client.publish(f"rollbook.{FLEET}.worker.a", b"", headers={"Status": "409", "Nats-Msg-Id": "not ours"})
    await client._send_command(b"PUB rollbook.f.worker.\xff\xfe 2\r\n{}\r\n")
    await log.append([draft()])
    await read.have(4)
    assert [stored.payload for stored in read.got] == [b"no headers", b"", b"{}", b"{}"]
    assert read.got[2].subject == "rollbook.f.worker.\ufffd\ufffd"
