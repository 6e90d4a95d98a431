"""A fact of version 2 beside version 1 in one log, on a real server: folded, shown, kept, archived, and made anew."""

import contextlib

import pytest
from support.nats import DEADLINE

from rollbook.adapters.archive.importing import import_files
from rollbook.adapters.archive.reading import ArchiveFile
from rollbook.adapters.archive.writing import write
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.history import History
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.events import Codec, Draft, RemovalWithheld, stream_name
from rollbook.projections.history.past import LogPast
from rollbook.projections.log.catchup import state_now
from rollbook.projections.state.fold import message_id

pytestmark = pytest.mark.integration


def message(fleet, number, version, pool):
    place = f',"pool":"{pool}"' if pool else ""
    data = f'{{"proxy":"a"{place},"workers":["rollout-{number}-0"],"budget":2}}'
    payload = (
        f'{{"specversion":"1.0","id":"id-{number}","source":"rollbook://{fleet}/test","time":"2026-01-01T00:00:00Z",'
        f'"type":"rollbook.proxy.removal_withheld.v{version}","subject":"a","data":{data}}}'
    )
    return Draft(f"rollbook.{fleet}.proxy.a", f"id-{number}", payload.encode())


WITHHELD = {"": ("rollout-3-0",), "-": ("rollout-2-0",), "rollout": ("rollout-4-0",)}


async def test_both_versions_from_the_log_to_an_archive_and_back(nats_client, fleet, tmp_path):
    """[I5]."""
    await provision(nats_client, fleet, timeout=DEADLINE)
    log = JetStreamLog(nats_client, fleet, timeout=DEADLINE)
    store = JetStreamSnapshots(nats_client, fleet, timeout=DEADLINE)
    written = [(1, 1, "rollout"), (2, 2, "-"), (3, 1, "-"), (4, 2, "rollout")]
    await log.append([message(fleet, *one) for one in written])

    state = await state_now(log, store, Codec(fleet), SystemClock())
    assert state.ledger.look("a").withheld == WITHHELD
    assert not state.unknown

    history = History(fleet, LogPast(log, store))
    facts = [recorded.fact async for recorded in history.facts()]
    assert [(type(fact), fact.pool) for fact in facts] == [
        (RemovalWithheld, pool) for pool in ("rollout", "-", None, "rollout")
    ]
    stored = [one.payload async for one, _ in history.stored()]
    assert stored == [message(fleet, *one).payload for one in written], "what is stored is not touched"

    ends = await log.state()
    await store.save(state.snapshot(ends.identity, message_id(await log.get(4))))
    found = await history.replay()
    assert [check.agrees for check in found.checks] == [True]

    file = tmp_path / "both.jsonl.zst"
    await write(history.past, Codec(fleet), (1, 4), file, identity=ends.identity, written="2026-01-01T00:00:00Z")
    await question(nats_client, f"STREAM.DELETE.{stream_name(fleet)}", timeout=DEADLINE)
    made = await import_files(nats_client, fleet, [ArchiveFile.open(file, fleet)], timeout=DEADLINE)
    assert made.digest == state.digest()
    again = await state_now(log, store, Codec(fleet), SystemClock())
    assert again.digest() == state.digest()
    async with contextlib.aclosing(history.stored()) as messages:
        kinds = [b"removal_withheld.v1" in one.payload async for one, _ in messages]
    assert kinds == [True, False, True, False]
