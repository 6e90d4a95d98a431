"""What every `SnapshotStore` must do, asked of the one in memory and of JetStream's object store on a real server."""

import hashlib

import pytest
from support.nats import DEADLINE

from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.projections.ports import Snapshot


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.integration)])
async def store(request, fleet, nats_server):
    if request.param == "memory":
        yield MemorySnapshots(keep=3)
        return
    client = await connect(Connection(url=nats_server.url), name="tests", timeout=DEADLINE)
    yield JetStreamSnapshots(client, fleet, keep=3, timeout=DEADLINE)
    await client.close()


def snapshot(sequence, body=b"state", identity="log"):
    return Snapshot(identity, 1, sequence, f"id-{sequence}", hashlib.sha256(body).hexdigest(), body)


async def kept(store):
    return [one async for one in store.newest_first()]


async def test_an_empty_store_has_none(store):
    assert await kept(store) == []


async def test_gives_back_what_was_saved_newest_first(store):
    first, second = snapshot(10, b"a"), snapshot(20, b"b\x00\xff")
    await store.save(first)
    assert await kept(store) == [first]
    await store.save(second)
    assert await kept(store) == [second, first]


async def test_keeps_the_newest_three(store):
    saved = [snapshot(sequence, b"%d" % sequence) for sequence in range(1, 9)]
    for one in saved:
        await store.save(one)
    assert await kept(store) == saved[:4:-1]


async def test_newest_is_what_was_saved_last_also_after_the_log_was_replaced(store):
    for sequence in (1000, 2000, 3000):
        await store.save(snapshot(sequence, identity="old"))
    await store.save(snapshot(5, identity="new"))
    assert [(one.identity, one.sequence) for one in await kept(store)] == [("new", 5), ("old", 3000), ("old", 2000)]


@pytest.mark.parametrize("size", [0, 5_000_000])
async def test_any_size(store, size):
    one = snapshot(1, bytes(range(256)) * (size // 256))
    await store.save(one)
    assert await kept(store) == [one]
