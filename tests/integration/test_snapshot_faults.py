"""Snapshots in JetStream's object store that are torn, damaged, or cannot be reached."""

import asyncio
import base64
import hashlib
import json
import random

import pytest
from nats.js.api import ObjectMeta
from structlog.testing import capture_logs
from support.nats import DEADLINE

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.projections.ports import LogUnavailable, Snapshot

pytestmark = pytest.mark.integration

NOISE = random.Random(1).randbytes(3_000_000)
"""Is compressed by nothing."""


def snapshot(sequence, body=b"state", digest=None):
    return Snapshot("log", 1, sequence, "id", digest or hashlib.sha256(body).hexdigest(), body)


@pytest.fixture
def bucket(fleet):
    return f"ROLLBOOK_{fleet}_snapshots"


@pytest.fixture
def store(nats_client, fleet):
    return JetStreamSnapshots(nats_client, fleet, keep=3, timeout=DEADLINE)


async def kept(store):
    with capture_logs() as logs:
        found = [one.sequence async for one in store.newest_first()]
    return found, [entry["event"] for entry in logs if entry["log_level"] == "warning"]


async def test_a_damaged_one_is_passed_over(store):
    await store.save(snapshot(1))
    await store.save(snapshot(2, digest="0" * 64))
    assert await kept(store) == ([1], ["snapshot.damaged"])


@pytest.mark.parametrize("said", ["1", "3", "9" * 5000, "٣", ""])
async def test_one_that_says_another_sequence_beside_it_than_in_it_is_passed_over(nats_client, store, bucket, said):
    """Whoever asks for a state up to some sequence must not be handed a later one."""
    await store.save(snapshot(1))
    await store.save(snapshot(2))
    objects = await nats_client.jetstream().object_store(bucket)
    content = (await objects.get("slot-1")).data
    headers = {"Rollbook-Log": ["log"], "Rollbook-Sequence": [said]}
    await objects.put("slot-1", content, ObjectMeta(headers=headers))
    assert await kept(store) == ([1], ["snapshot.damaged"])


async def test_what_is_no_snapshot_is_passed_over(nats_client, store, bucket):
    await store.save(snapshot(1))
    objects = await nats_client.jetstream().object_store(bucket)
    await objects.put("slot-1", b"garbage")
    await objects.put("slot-2", b"")
    assert await kept(store) == ([1], ["snapshot.unreadable"] * 2)


async def test_one_whose_content_is_gone_is_passed_over(nats_client, store, bucket, fleet):
    await store.save(snapshot(1))
    await store.save(snapshot(2, NOISE[:1000]))
    which = {"last_by_subj": f"$O.{bucket}.M.{base64.urlsafe_b64encode(b'slot-1').decode()}"}
    answer = await question(nats_client, f"STREAM.MSG.GET.OBJ_{bucket}", which, timeout=DEADLINE)
    chunks = json.loads(base64.b64decode(answer["message"]["data"]))["nuid"]
    await question(nats_client, f"STREAM.PURGE.OBJ_{bucket}", {"filter": f"$O.{bucket}.C.{chunks}"}, timeout=DEADLINE)
    hasty = JetStreamSnapshots(nats_client, fleet, timeout=1.0)
    assert await kept(hasty) == ([1], ["snapshot.unreadable"])


@pytest.mark.parametrize("calls", [0, 3, 23])  # of 23 pieces and the note that completes them
async def test_a_save_that_is_broken_off_leaves_the_others_and_its_pieces_are_swept_up(
    nats_client, store, bucket, monkeypatch, calls
):
    for sequence in (1, 2, 3):
        await store.save(snapshot(sequence))
    publish, done = store._js.publish, []

    async def broken_off(*arguments, **options):
        if len(done) == calls:
            raise asyncio.CancelledError
        done.append(None)
        return await publish(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store._js, "publish", broken_off)
        with pytest.raises(asyncio.CancelledError):
            await store.save(snapshot(4, NOISE))
    assert await kept(store) == ([3, 2, 1], [])
    await store.save(snapshot(5))
    assert await kept(store) == ([5, 3, 2], [])
    body = {"subjects_filter": ">"}
    info = await question(nats_client, f"STREAM.INFO.OBJ_{bucket}", body, timeout=DEADLINE)
    assert len(info["state"]["subjects"]) == 6


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
