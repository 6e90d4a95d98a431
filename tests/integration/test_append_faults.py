"""I8: appending to the log on JetStream when something underneath breaks, or cannot take what is given."""

import asyncio
import contextlib

import pytest
from support.nats import DEADLINE
from support.own_log import FLEET, STREAM, SYNCED, append_for_sure, draft, provisioned

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.projections.ports import LogMisconfigured, LogUnavailable

pytestmark = pytest.mark.integration


@pytest.fixture
async def server(start_nats):
    return start_nats(jetstream=SYNCED)


@pytest.fixture
async def client(server):
    async with provisioned(server) as client:
        yield client


@pytest.fixture
def log(client):
    return JetStreamLog(client, FLEET, timeout=DEADLINE, patience=DEADLINE)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("expected", [False, True])
async def test_a_lost_answer_can_be_asked_for_again(server, client, count, expected):
    log = JetStreamLog(client, FLEET, timeout=DEADLINE)
    first = await log.append([draft(), draft(worker="b")])
    drafts = [draft(b"%d" % number, "ab"[number % 2]) for number in range(count)]
    expect = {drafts[0].subject: first[0]} if expected else None
    hasty = JetStreamLog(client, FLEET, timeout=0.3)
    server.pause()
    with pytest.raises(LogUnavailable, match=r"within 0\.3 s"):
        await hasty.append(drafts, expect=expect)
    server.resume()
    assert await append_for_sure(log, drafts, expect) == list(range(3, 3 + count))
    assert await append_for_sure(log, drafts, expect) == list(range(3, 3 + count))
    assert (await log.state()).last_sequence == 2 + count


@pytest.mark.parametrize("count", [1, 4])
async def test_a_repetition_is_recognised_after_the_server_was_killed(server, log, count):
    drafts = [draft(b"%d" % number) for number in range(count)]
    sequences = await log.append(drafts, expect={drafts[0].subject: 0})
    server.restart()
    assert await append_for_sure(log, drafts) == sequences
    assert await append_for_sure(log, drafts, {drafts[0].subject: 0}) == sequences


async def test_parts_are_never_stored(server, client, log):
    """All or none, whatever happens between the first message of a batch and the last."""
    drafts = [draft(b"x" * 1000) for _ in range(500)]
    appending = asyncio.create_task(log.append(drafts))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.restart()
    with contextlib.suppress(LogUnavailable):
        await appending
    async with provisioned(server) as client_again:
        again = JetStreamLog(client_again, FLEET, timeout=DEADLINE)
        assert (await again.state()).last_sequence in {0, 500}
        assert await append_for_sure(again, drafts) == list(range(1, 501))


async def test_a_stream_without_batches_is_told(client, log):
    config = (await question(client, f"STREAM.INFO.{STREAM}", timeout=DEADLINE))["config"]
    await question(client, f"STREAM.UPDATE.{STREAM}", config | {"allow_atomic": False}, timeout=DEADLINE)
    with pytest.raises(LogMisconfigured, match="allow_atomic is False and must be True"):
        await log.append([draft(), draft()])
    assert (await log.state()).last_sequence == 0


async def test_a_full_stream_is_told(client, log):
    config = (await question(client, f"STREAM.INFO.{STREAM}", timeout=DEADLINE))["config"]
    await question(client, f"STREAM.UPDATE.{STREAM}", config | {"max_bytes": 3000}, timeout=DEADLINE)
    for drafts in ([draft(b"x" * 4000)], [draft(b"x" * 2000), draft(b"x" * 2000)]):
        with pytest.raises(LogUnavailable, match="maximum bytes exceeded"):
            await log.append(drafts)
    assert (await log.state()).last_sequence == 0


async def test_a_server_that_takes_no_message_of_a_facts_size_is_told(start_nats):
    """Not retried for ever: the server would drop the connection at every attempt."""
    server = start_nats(config="max_payload: 2048")
    async with provisioned(server) as client:
        log = JetStreamLog(client, FLEET, timeout=DEADLINE)
        for drafts in ([draft(b"x" * 2000)], [draft(), draft(b"x" * 3000)]):
            with pytest.raises(LogMisconfigured, match=r"the server's max_payload is 2048\. Raise it there"):
                await log.append(drafts)
        for size in range(1000, 1830, 30):
            await log.append([draft(b"x" * size)], expect={})
            await log.append([draft(b"x" * (size - 120)), draft(b"x" * (size - 120))])
        assert client.stats["reconnects"] == 0


async def fill(log):
    for _ in range(100):
        await log.append([draft(b"x" * 4000)])


async def test_a_server_without_room_is_told_with_what_to_do(start_nats):
    server = start_nats(jetstream="{ max_file_store: 60000 }")
    async with provisioned(server) as client:
        log = JetStreamLog(client, FLEET, timeout=DEADLINE)
        with pytest.raises(LogUnavailable, match=r"\(100\d\d\): the server has no room for it\. Free space"):
            await fill(log)


async def test_what_jetstream_cannot_do_is_an_error_of_the_caller(log):
    with pytest.raises(ValueError, match="1001 facts in one append; JetStream takes 1000"):
        await log.append([draft() for _ in range(1001)])
    with pytest.raises(ValueError, match="2 expectations on 1 facts"):
        await log.append([draft()], expect={"rollbook.f.proxy.p": 0, "rollbook.f.worker.a": 0})
