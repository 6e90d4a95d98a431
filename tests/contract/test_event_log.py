"""What every `EventLog` must do, asked of the one in memory and of JetStream on a real server."""

import asyncio
import contextlib
import itertools
import random

import pytest
from support.nats import DEADLINE

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.memory.log import MemoryLog
from rollbook.events import Draft
from rollbook.projections.ports import AppendConflict

_ids = UuidV7()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("jetstream", marks=pytest.mark.integration),
        pytest.param("jetstream without consumers", marks=pytest.mark.integration),
    ]
)
async def log(request, fleet, nats_server):
    if request.param == "memory":
        yield MemoryLog(SystemClock(), random.Random(1))
        return
    client = await connect(Connection(url=nats_server.url), name="tests", timeout=DEADLINE)
    await provision(client, fleet, timeout=DEADLINE)
    yield JetStreamLog(client, fleet, timeout=DEADLINE, direct=request.param.endswith("without consumers"))
    await client.close()


@pytest.fixture
def draft(fleet):
    """Makes drafts with new ids about the worker that is named."""

    def make(worker="a", payload=b"{}", *, family="worker"):
        return Draft(f"rollbook.{fleet}.{family}.{worker}", _ids.new(), payload)

    return make


async def collect(log, after, count):
    """`count` messages, or the test fails at its deadline."""
    got = []
    async with asyncio.timeout(DEADLINE), contextlib.aclosing(log.read(after)) as batches:
        async for batch in batches:
            assert batch, "a batch is never empty"
            got.extend(batch)
            if len(got) >= count:
                return got
    pytest.fail("reading ended by itself")


# ---------------------------------------------------------------- appending


async def test_an_empty_log_has_no_sequences(log, draft):
    state = await log.state()
    assert (state.first_sequence, state.last_sequence) == (1, 0)
    assert await log.get(0) is None
    assert await log.get(1) is None
    assert await log.last(draft().subject) is None
    assert await log.append([]) == []


async def test_appends_one_and_gives_its_bytes_back(log, draft):
    one = draft("a", b'{"x": "\xc3\xa9"}')
    assert await log.append([one]) == [1]
    stored = await log.get(1)
    assert (stored.sequence, stored.subject, stored.payload) == (1, one.subject, one.payload)
    assert await log.last(one.subject) == stored
    assert abs(stored.stored_at - SystemClock().now()) < 3600
    state = await log.state()
    assert state.last_sequence == 1
    assert stored.stored_at <= state.at < stored.stored_at + 3600


async def test_appends_many_over_several_subjects_in_order(log, draft):
    drafts = [draft(worker, worker.encode()) for worker in ("a", "b", "a", "c", "a")]
    assert await log.append(drafts) == [1, 2, 3, 4, 5]
    assert [(await log.get(sequence)).payload for sequence in range(1, 6)] == [one.payload for one in drafts]
    assert (await log.last(drafts[0].subject)).sequence == 5
    assert (await log.last(drafts[1].subject)).sequence == 2


async def test_the_largest_append_is_a_thousand(log, draft):
    drafts = [draft(f"w{number}", b"%d" % number) for number in range(1000)]
    assert await log.append(drafts) == list(range(1, 1001))


async def test_appends_at_once_are_each_stored_once(log, draft):
    drafts = [draft(f"w{number % 7}") for number in range(200)]
    sequences = await asyncio.gather(*(log.append([one]) for one in drafts))
    assert sorted(itertools.chain(*sequences)) == list(range(1, 201))


# ---------------------------------------------------------------- repeating: I8


async def test_an_id_is_stored_once(log, draft):
    one = draft()
    assert await log.append([one]) == [1]
    await log.append([draft()])
    assert await log.append([one]) == [1]
    assert (await log.state()).last_sequence == 2


async def test_a_repeated_batch_is_stored_once(log, draft):
    batch = [draft("a"), draft("b"), draft("a")]
    await log.append([draft("a")])
    assert await log.append(batch) == [2, 3, 4]
    assert await log.append(batch) == [2, 3, 4]
    assert (await log.state()).last_sequence == 4


async def test_what_is_missing_of_a_batch_is_stored(log, draft):
    known, new = [draft("a"), draft("b")], [draft("c"), draft("a")]
    await log.append(known)
    assert await log.append([new[0], known[1], new[1], known[0]]) == [3, 2, 4, 1]


async def test_an_id_twice_in_one_append_is_stored_once(log, draft):
    one, other = draft("a"), draft("b")
    assert await log.append([one, other, one]) == [1, 2, 1]
    assert (await log.state()).last_sequence == 2


@pytest.mark.parametrize("count", [1, 3])
async def test_a_repeated_append_with_expectations_is_no_conflict(log, draft, count):
    before = draft("a")
    await log.append([before])
    drafts = [draft("a") for _ in range(count)]
    expect = {before.subject: 1}
    sequences = await log.append(drafts, expect=expect)
    await log.append([draft("a"), draft("b")])
    assert await log.append(drafts, expect=expect) == sequences
    assert (await log.state()).last_sequence == 1 + count + 2


# ---------------------------------------------------------------- expecting


async def test_a_right_expectation_is_stored(log, draft):
    first, second, other = draft("a"), draft("a"), draft("b")
    assert await log.append([first], expect={first.subject: 0}) == [1]
    await log.append([other])
    assert await log.append([second], expect={first.subject: 1}) == [3]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_wrong_expectation_stores_nothing(log, draft, count):
    await log.append([draft("a"), draft("a")])
    drafts = [draft("a") for _ in range(count)]
    with pytest.raises(AppendConflict) as conflict:
        await log.append(drafts, expect={drafts[0].subject: 1})
    told = conflict.value
    assert (told.subject, told.expected, told.found) == (drafts[0].subject, 1, 2)
    assert (await log.state()).last_sequence == 2
    assert await log.append(drafts, expect={drafts[0].subject: 2}) == list(range(3, 3 + count))


async def test_every_subject_of_a_batch_can_be_expected(log, draft):
    await log.append([draft("a"), draft("b")])
    a, b, a2, c = draft("a"), draft("b"), draft("a"), draft("c")
    with pytest.raises(AppendConflict) as conflict:
        await log.append([a, b, a2, c], expect={a.subject: 1, b.subject: 1, c.subject: 0})
    assert (conflict.value.subject, conflict.value.found) == (b.subject, 2)
    assert await log.append([a, b, a2, c], expect={a.subject: 1, b.subject: 2, c.subject: 0}) == [3, 4, 5, 6]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_subject_that_is_not_written_to_can_be_expected(log, draft, count):
    fence = draft("p", family="proxy")
    await log.append([fence])
    drafts = [draft("a") for _ in range(count)]
    with pytest.raises(AppendConflict) as conflict:
        await log.append(drafts, expect={fence.subject: 0})
    assert (conflict.value.subject, conflict.value.found) == (fence.subject, 1)
    assert await log.append(drafts, expect={fence.subject: 1}) == list(range(2, 2 + count))


@pytest.mark.parametrize("count", [1, 2])
async def test_of_those_who_expect_the_same_one_wins(log, draft, count):
    subject = draft("a").subject
    racers = [[draft("a") for _ in range(count)] for _ in range(10)]
    results = await asyncio.gather(*(log.append(one, expect={subject: 0}) for one in racers), return_exceptions=True)
    won = [result for result in results if isinstance(result, list)]
    assert won == [list(range(1, count + 1))]
    assert all(isinstance(result, (list, AppendConflict)) for result in results)
    assert (await log.state()).last_sequence == count


# ---------------------------------------------------------------- reading


async def test_reads_in_order_from_anywhere(log, draft):
    drafts = [draft(f"w{number % 5}", b"%d" % number) for number in range(1, 3001)]
    for start in range(0, 3000, 1000):
        await log.append(drafts[start : start + 1000])
    everything = await collect(log, 0, 3000)
    assert [stored.sequence for stored in everything] == list(range(1, 3001))
    assert [stored.payload for stored in everything] == [one.payload for one in drafts]
    assert [stored.subject for stored in everything] == [one.subject for one in drafts]
    tail = await collect(log, 2990, 10)
    assert tail == everything[2990:]
    assert await log.get(1500) == everything[1499]


async def test_goes_on_as_facts_arrive(log, draft):
    reading = asyncio.create_task(collect(log, 0, 50))
    for number in range(50):
        await log.append([draft(payload=b"%d" % number)])
    assert [stored.payload for stored in await reading] == [b"%d" % number for number in range(50)]


async def test_two_readers_do_not_share(log, draft):
    readers = [asyncio.create_task(collect(log, 0, 20)) for _ in range(2)]
    for _ in range(4):
        await log.append([draft() for _ in range(5)])
    first, second = await asyncio.gather(*readers)
    assert first == second
    assert [stored.sequence for stored in first] == list(range(1, 21))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00\xff\r\n\r\nPING\r\n", b'{"specversion":', b"\xf0\x28\x8c\x28", b"x" * 900_000],
    ids=["empty", "control", "half", "not utf-8", "900 kB"],
)
async def test_any_bytes_pass_through_untouched(log, draft, payload):
    """I9: what is unreadable reaches the fold as it is."""
    await log.append([draft(payload=payload), draft(payload=payload)])
    assert [stored.payload for stored in await collect(log, 0, 2)] == [payload] * 2
    assert (await log.get(1)).payload == payload


async def test_reading_can_be_cancelled_while_it_waits(log, draft):
    await log.append([draft()])
    seen = asyncio.Event()

    async def read():
        async with contextlib.aclosing(log.read(0)) as batches:
            async for _ in batches:
                seen.set()

    reading = asyncio.create_task(read())
    async with asyncio.timeout(DEADLINE):
        await seen.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_identity_stays(log, draft):
    before = await log.state()
    await log.append([draft()])
    assert (await log.state()).identity == before.identity != ""


# ---------------------------------------------------------------- some subjects only


async def test_reads_only_the_subjects_that_are_asked_for(log, draft, fleet):
    for worker in ("a", "b", "a", "c", "a"):
        await log.append([draft(worker, worker.encode())])
    await log.append([draft("p", b"p", family="proxy")])
    some = [f"rollbook.{fleet}.worker.a", f"rollbook.{fleet}.proxy.*"]
    got = []
    async with asyncio.timeout(DEADLINE), contextlib.aclosing(log.read(1, some)) as batches:
        async for batch in batches:
            got.extend(batch)
            if len(got) == 3:
                break
        await log.append([draft("b", b"not this"), draft("a", b"late")])
        got.extend(await anext(batches))
    assert [(one.sequence, one.payload) for one in got] == [(3, b"a"), (5, b"a"), (6, b"p"), (8, b"late")]


async def test_the_last_message_of_several_subjects(log, draft, fleet):
    await log.append([draft("a", b"1"), draft("b", b"2"), draft("p", b"3", family="proxy")])
    assert (await log.last(f"rollbook.{fleet}.worker.*")).payload == b"2"
    assert await log.last(f"rollbook.{fleet}.operator.worker.*") is None
