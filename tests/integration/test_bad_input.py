"""Whatever lands on the fleet's subjects, the controller goes on: the real bus, the real controller [I9]."""

import asyncio
import contextlib
import json

import msgspec
import pytest

from rollbook.adapters.bootstrap import build, open_reader
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.settings import NatsSettings, Settings, StaticProvider
from rollbook.events import Codec, MessageQuarantined, WorkerUp
from rollbook.projections.log.catchup import state_now

pytestmark = pytest.mark.integration

SECONDS = 30.0


@contextlib.asynccontextmanager
async def controlled(fleet, url, folder):
    settings = Settings(fleet=fleet, provider=StaticProvider(), nats=NatsSettings(url=url))
    async with build(settings, folder / ".rollbook", environ={}) as built:
        running = asyncio.create_task(built.run())
        try:
            async with asyncio.timeout(SECONDS):
                await built.controller.started.wait()
            yield built.controller
        finally:
            built.controller.stop()
            await running


def bad_messages(fleet):
    """Subject, payload, and the reason under which it is quarantined (None: kept, counted and passed over)."""
    codec = Codec(fleet)
    good = codec.draft(
        WorkerUp(worker="rollout-0-0", incarnation=1), id="good", time="2026-01-01T00:00:00Z", publisher="test"
    )
    other = Codec("somebody-else").draft(
        WorkerUp(worker="rollout-0-0", incarnation=1), id="other", time="2026-01-01T00:00:00Z", publisher="test"
    )
    envelope = json.loads(good.payload)
    later = envelope | {"type": "rollbook.worker.up.v2", "id": "later"}
    newer = envelope | {"type": "rollbook.worker.levitated.v1", "id": "newer"}
    huge = envelope | {"id": "huge", "padding": "x" * 950_000}
    negative = envelope | {"id": "negative", "data": {"worker": "rollout-0-0", "incarnation": -1}}
    encode = msgspec.json.encode
    here = f"rollbook.{fleet}.worker.rollout-0-0"
    return [
        (here, b"\x00\xff garbage", "not_json"),
        (here, b"", "empty"),
        (here, b'{"some": "json"}', "wrong_shape"),
        (here, encode(negative), "wrong_shape"),
        (here, encode(huge), "too_large"),
        (here, other.payload, "wrong_fleet"),
        (f"rollbook.{fleet}.worker.rollout-1-0", good.payload, "subject_mismatch"),
        (f"rollbook.{fleet}.proxy.router", good.payload, "subject_mismatch"),
        (here, encode(later), None),
        (here, encode(newer), None),
        (f"rollbook.{fleet}.quarantine", b"garbage on the quarantine itself", None),
    ]


async def quarantined(log, codec):
    """Sequence of the bad message → reasons, as the log has them."""
    found = {}
    last = (await log.state()).last_sequence
    for sequence in range(1, last + 1):
        stored = await log.get(sequence)
        with contextlib.suppress(Exception):
            fact = codec.decode(stored.payload, subject=stored.subject, sequence=sequence).fact
            if isinstance(fact, MessageQuarantined):
                found.setdefault(fact.sequence, []).append(fact.reason)
    return found


async def test_i9_every_bad_message_is_quarantined_once_and_the_fold_goes_on(nats_server, fleet, tmp_path):
    connection = Connection(url=nats_server.url)
    client = await connect(connection, name="tests")
    codec = Codec(fleet)
    try:
        async with controlled(fleet, nats_server.url, tmp_path) as controller:
            expected = {}
            for subject, payload, reason in bad_messages(fleet):
                ack = await client.jetstream().publish(subject, payload)
                if reason is not None:
                    expected[ack.seq] = [reason]
            good = codec.draft(
                WorkerUp(worker="rollout-7-0", incarnation=1),
                id=UuidV7().new(),
                time="2026-01-01T00:00:00Z",
                publisher="test",
            )
            ack = await client.jetstream().publish(good.subject, good.payload)
            async with asyncio.timeout(SECONDS):
                await controller.projector.passed(ack.seq)
                while controller.projector.state.unreadable:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
            state = controller.projector.state
            assert state.roster.workers.keys() == {"rollout-7-0"}
            assert state.quarantined == len(expected) + 1, "what is on the quarantine's own subject is only counted"
            assert state.unknown == {"rollbook.worker.up.v2": 1, "rollbook.worker.levitated.v1": 1}

        async with controlled(fleet, nats_server.url, tmp_path) as controller, open_reader(fleet, connection) as reader:
            assert await quarantined(reader.log, codec) == expected, "and not again by the next controller"
            folded = await state_now(reader.log, reader.snapshots, codec, reader.clock)
            await controller.projector.passed(folded.sequence)
            assert folded.digest() == controller.projector.state.digest(), "I5"
    finally:
        await client.close()
