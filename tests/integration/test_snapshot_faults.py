"""Snapshots in JetStream's object store that are torn, damaged, or cannot be reached."""

import asyncio
import base64
import hashlib
import json

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.projections.ports import LogUnavailable, Snapshot

pytestmark = pytest.mark.integration


def snapshot(sequence, body=b"state", digest=None):
    return Snapshot("log", 1, sequence, "id", digest or hashlib.sha256(body).hexdigest(), body)


@pytest.fixture
def bucket(fleet):
    return f"ROLLBOOK_{fleet}_snapshots"


@pytest.fixture
def store(nats_client, fleet):
    return JetStreamSnapshots(nats_client, fleet, timeout=DEADLINE)


async def kept(store):
    with capture_logs() as logs:
        found = [one.sequence async for one in store.newest_first()]
    return found, [entry["event"] for entry in logs if entry["log_level"] == "warning"]


async def test_a_damaged_one_is_passed_over(store):
    await store.save(snapshot(1))
    await store.save(snapshot(2, digest="0" * 64))
    assert await kept(store) == ([1], ["snapshot.damaged"])


async def test_what_is_no_snapshot_is_passed_over(nats_client, store, bucket):
    await store.save(snapshot(1))
    objects = await nats_client.jetstream().object_store(bucket)
    await objects.put("slot-1", b"garbage")
    await objects.put("slot-2", b"")
    assert await kept(store) == ([1], ["snapshot.unreadable"] * 2)


async def test_one_whose_content_is_gone_is_passed_over(nats_client, store, bucket, fleet):
    await store.save(snapshot(1))
    await store.save(snapshot(2, b"x" * 1000))
    which = {"last_by_subj": f"$O.{bucket}.M.{base64.urlsafe_b64encode(b'slot-1').decode()}"}
    answer = await question(nats_client, f"STREAM.MSG.GET.OBJ_{bucket}", which, timeout=DEADLINE)
    chunks = json.loads(base64.b64decode(answer["message"]["data"]))["nuid"]
    await question(nats_client, f"STREAM.PURGE.OBJ_{bucket}", {"filter": f"$O.{bucket}.C.{chunks}"}, timeout=DEADLINE)
    hasty = JetStreamSnapshots(nats_client, fleet, timeout=1.0)
    assert await kept(hasty) == ([1], ["snapshot.unreadable"])


async def test_a_save_that_is_broken_off_leaves_the_others(store):
    for sequence in (1, 2, 3):
        await store.save(snapshot(sequence))
    for wait in (0.0, 0.002, 0.005, 0.01):
        saving = asyncio.create_task(store.save(snapshot(4, b"x" * 3_000_000)))
        await asyncio.wait({saving}, timeout=wait)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)
        found, warnings = await kept(store)
        assert found[-2:] == [3, 2] or found == [3, 2, 1]
        assert warnings == []


async def test_an_outage_is_told(start_nats):
    server = start_nats()
    client = await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)
    store = JetStreamSnapshots(client, "f", timeout=0.5)
    server.kill()
    with pytest.raises(LogUnavailable):
        await store.save(snapshot(1))
    with pytest.raises(LogUnavailable):
        await kept(store)
    await client.close()
