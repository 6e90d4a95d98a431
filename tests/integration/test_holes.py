"""Holes in a log on a real server: each is named at the start and while running, and there is a way out of it.

Also what a start does with snapshots whose bytes are not what was saved.
"""

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE, NatsServer
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.events import Codec, FleetStarted, WorkerUp, stream_name
from rollbook.events.subjects import worker_subject
from rollbook.projections.leading.controller import Controller
from rollbook.projections.log.catchup import newest_state, state_now
from rollbook.projections.log.projector import LogRewound
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy
from rollbook.projections.ports import HistoryHole, HostAndPort, LogUnavailable
from rollbook.projections.resources import Resources
from rollbook.projections.state.fold import message_id
from rollbook.projections.state.ledger import Told

pytestmark = pytest.mark.integration

FLEET = "f"
STREAM = stream_name(FLEET)
W = "rollout-0-0"
WAYS = r"Two ways out: `rollbook up --relist` .* `rollbook import` "

_ids, _codec = UuidV7(), Codec(FLEET)


async def append(log, *facts):
    """For sure, also while the connection comes back."""
    for fact in facts:
        draft = _codec.draft(fact, id=_ids.new(), time="2026-01-01T00:00:00Z", publisher="test")
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    await log.append([draft])
                except LogUnavailable:
                    await asyncio.sleep(0.05)
                else:
                    break


class Site:
    """A server of the test's own with a fleet's log, one worker, one router, and controllers over them."""

    def __init__(self, server, client):
        self.server = server
        self.client = client
        self.clock = SystemClock()
        self.log = JetStreamLog(client, FLEET, timeout=DEADLINE)
        self.snapshots = JetStreamSnapshots(client, FLEET, timeout=DEADLINE)
        self.proxy = MemoryProxy("a", FLEET, self.clock, random.Random(1))
        self.provider = MemoryProvider(self.clock)
        self.readiness = MemoryReadiness(self.clock)
        self.told = []
        self.removed = []
        self.proxy.on_effect = lambda effect, entry: effect == "removed" and self.removed.append(entry.worker)
        self.policy = Policy(
            fleet=FLEET,
            pools={"rollout": PoolPolicy()},
            proxies={"a": ProxyPolicy(name="a", pools=("rollout",))},
            reconcile=ReconcilePolicy(resync=0.2, call_deadline=1.0),
        )

    async def made(self):
        await provision(self.client, FLEET, timeout=DEADLINE)
        self.provider.place(W, incarnation=1, addresses={"primary": HostAndPort("10.0.0.1", 1)})
        self.readiness.serve("http://10.0.0.1:1")
        await append(self.log, WorkerUp(worker=W, incarnation=1))
        return self

    @contextlib.asynccontextmanager
    async def controller(self, *, relist=False):
        """A running controller; the task of its life. Stopped at the end if it still runs."""
        resources = Resources(
            log=self.log,
            snapshots=self.snapshots,
            leadership=JetStreamLeadership(self.client, FLEET, lease=5.0),
            provider=self.provider,
            readiness=self.readiness,
            clock=self.clock,
            ids=_ids,
            rng=random.Random(1),
            owner="one",
            tell=lambda event, **keys: self.told.append((event, keys)),
        )
        controller = Controller(self.policy, resources, [self.proxy], relist=relist)
        running = asyncio.create_task(controller.run())
        starting = asyncio.create_task(controller.started.wait())
        try:
            async with asyncio.timeout(DEADLINE):
                await asyncio.wait([running, starting], return_when=asyncio.FIRST_COMPLETED)
            yield running
        finally:
            starting.cancel()
            controller.stop()
            await asyncio.gather(running, return_exceptions=True)

    async def registered(self):
        await until(lambda: asyncio.sleep(0, self.proxy.listed), bool)

    async def ran(self):
        """A controller has led, registered the worker and stopped cleanly, with a snapshot."""
        async with self.controller() as running:
            await self.registered()
            await until(self.filed, bool)
        running.result()
        return (await self.log.state()).last_sequence

    async def filed(self):
        """Whether the log says that the worker is registered."""
        record = (await state_now(self.log, self.snapshots, _codec, self.clock)).ledger.look("a")
        return any(life.told is Told.REGISTERED for life in record.registrations.get(W, {}).values())

    async def goes_on(self, running, passes=3):
        """Wait until the controller has read the router back so often from now on: it runs, and goes on running."""

        async def listed():
            assert not running.done()
            return sum(call.verb == "list" for call in self.proxy.calls)

        before = await listed()
        await until(listed, lambda now: now >= before + passes)

    async def error_of_a_start(self):
        async with self.controller() as running:
            return await ended(running)

    async def restart(self, change):
        """Change the store while no server runs over it."""
        self.server.stop()
        change(self.server.directory / "store")
        self.server.start()
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    await self.log.state()
                except LogUnavailable:
                    await asyncio.sleep(0.05)
                else:
                    return

    async def delete(self):
        await question(self.client, f"STREAM.DELETE.{STREAM}", timeout=DEADLINE)
        await provision(self.client, FLEET, timeout=DEADLINE)

    @contextlib.asynccontextmanager
    async def behind_its_back(self):
        """The same store on a server that the controller does not know, and a client there."""
        self.server.stop()
        other = NatsServer(self.server.directory).start()
        client = await connect(Connection(url=other.url), name="tests", timeout=DEADLINE)
        try:
            yield client
        finally:
            await client.close()
            other.stop()
            self.server.start()


async def ended(running):
    async with asyncio.timeout(DEADLINE):
        return (await asyncio.gather(running, return_exceptions=True))[0]


@pytest.fixture
async def site(start_nats):
    server = start_nats(jetstream="{ sync_interval: always }")
    client = await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)
    yield await Site(server, client).made()
    await client.close()


async def purge(client, **body):
    await question(client, f"STREAM.PURGE.{STREAM}", body, timeout=DEADLINE)


# ---------------------------------------------------------------- at the start


async def test_a_purge_before_the_first_snapshot(site):
    await append(site.log, WorkerUp(worker=W, incarnation=2))
    await purge(site.client, seq=2)
    error = await site.error_of_a_start()
    assert isinstance(error, HistoryHole)
    assert error.first_missing == 1
    assert "it begins at 2" in str(error)


async def test_a_purge_of_everything(site):
    last = await site.ran()
    await purge(site.client)
    error = await site.error_of_a_start()
    assert isinstance(error, HistoryHole)
    assert f"it begins at {last + 1}" in str(error)
    assert next(keys["reason"] for event, keys in site.told if event == "snapshot.refused").startswith("the log begins")


async def test_a_purge_that_leaves_what_the_snapshot_needs_is_no_hole(site):
    last = await site.ran()
    await purge(site.client, seq=last)
    async with site.controller() as running:
        await site.registered()
        await site.goes_on(running)
    assert site.removed == []


async def test_a_purge_in_the_middle(site):
    await append(site.log, FleetStarted(run_id="r"), WorkerUp(worker=W, incarnation=1))
    await append(site.log, WorkerUp(worker="rollout-1-0", incarnation=1), WorkerUp(worker=W, incarnation=1))
    await purge(site.client, filter=worker_subject(FLEET, "rollout-1-0"))
    error = await site.error_of_a_start()
    assert isinstance(error, HistoryHole)
    assert "no sequence 4 (it is missing in the middle)" in str(error)
    async with site.controller(relist=True):
        await site.registered()


async def test_a_retention_that_somebody_set(site):
    info = await question(site.client, f"STREAM.INFO.{STREAM}", timeout=DEADLINE)
    for number in range(5):
        await append(site.log, WorkerUp(worker=f"rollout-{number}-0", incarnation=2))
    config = info["config"] | {"max_msgs": 3, "discard": "old"}
    await question(site.client, f"STREAM.UPDATE.{STREAM}", config, timeout=DEADLINE)
    error = await site.error_of_a_start()
    assert isinstance(error, HistoryHole)
    assert "no sequence 1 (it begins at 4)" in str(error)


async def test_a_stream_made_anew_and_the_way_out_of_it(site):
    """[I4]: nobody who serves is removed on the way."""
    last = await site.ran()
    await site.delete()
    error = await site.error_of_a_start()
    assert isinstance(error, HistoryHole)
    assert f"no sequence {last} (a snapshot is of another log that had it; the stream was deleted and made anew" in str(
        error
    )
    for reader in (newest_state(site.log, site.snapshots), state_now(site.log, site.snapshots, _codec, site.clock)):
        with pytest.raises(HistoryHole, match=WAYS):
            await reader
    async with site.controller(relist=True) as running:
        await until(lambda: asyncio.sleep(0, [event for event, _ in site.told]), lambda told: "log.relisted" in told)
        await site.goes_on(running)
    async with site.controller() as running:
        await site.goes_on(running)
    assert site.proxy.listed
    assert site.removed == []
    assert (await state_now(site.log, site.snapshots, _codec, site.clock)).roster.workers[W].incarnation == 1


async def test_an_older_copy(site, tmp_path):
    """What is there is folded, with a warning, and reading back makes the rest right."""
    await site.ran()
    await site.restart(lambda store: shutil.copytree(store, tmp_path / "backup"))
    await append(site.log, WorkerUp(worker="rollout-7-0", incarnation=1))
    await site.ran()

    def put_back(store):
        """The log alone: the snapshots are newer."""
        [log] = store.rglob(f"streams/{STREAM}")
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "backup" / log.relative_to(store), log)

    await site.restart(put_back)
    site.told.clear()
    async with site.controller() as running:
        await site.goes_on(running)
        [told] = [keys["reason"] for event, keys in site.told if event == "snapshot.refused"]
        assert "it lost its tail, or was restored from an older copy" in told
        assert "snapshot.restored" in [event for event, _ in site.told]
    assert "rollout-7-0" not in (await state_now(site.log, site.snapshots, _codec, site.clock)).roster.workers


# ---------------------------------------------------------------- while running


async def test_facts_that_go_before_they_are_folded(site):
    async with site.controller() as running:
        await site.registered()
        async with site.behind_its_back() as client:
            log = JetStreamLog(client, FLEET, timeout=DEADLINE)
            await append(log, *(WorkerUp(worker="rollout-1-0", incarnation=number) for number in range(1, 6)))
            last = (await log.state()).last_sequence
            await purge(client, seq=last)
        error = await ended(running)
    assert isinstance(error, HistoryHole)
    assert error.first_missing == last - 4


async def test_a_stream_made_anew_while_running(site):
    async with site.controller() as running:
        await site.registered()
        await site.delete()
        await append(site.log, *(WorkerUp(worker=W, incarnation=number) for number in range(1, 4)))
        error = await ended(running)
    assert isinstance(error, HistoryHole | LogRewound)
    assert "made anew" in str(error)
    assert "wo ways out" in str(error)
    assert site.removed == []


async def test_an_older_copy_while_running(site, tmp_path):
    await site.restart(lambda store: shutil.copytree(store, tmp_path / "backup"))
    async with site.controller() as running:
        await site.registered()
        await append(site.log, *(WorkerUp(worker="rollout-1-0", incarnation=number) for number in range(1, 6)))
        site.server.stop()
        shutil.rmtree(site.server.directory / "store")
        shutil.copytree(tmp_path / "backup", site.server.directory / "store")
        site.server.start()
        error = await ended(running)
    assert isinstance(error, LogRewound | HistoryHole)
    assert "wo ways out" in str(error)


# ---------------------------------------------------------------- snapshots that are not what was saved


async def kept(site, count):
    """So many snapshots, with facts between them; their sequences, newest first."""
    for _ in range(count):
        await append(site.log, *[WorkerUp(worker=W, incarnation=1)] * 3)
        state = await state_now(site.log, site.snapshots, _codec, site.clock)
        ends = await site.log.state()
        await site.snapshots.save(state.snapshot(ends.identity, message_id(await site.log.get(state.sequence))))
    return [one.sequence async for one in site.snapshots.newest_first()]


async def pieces_of(site, newest):
    """Subjects of the pieces of the newest snapshots, the newest first."""
    written = await site.snapshots._written()
    slots = sorted(written.values(), key=lambda slot: slot.mark.saved, reverse=True)
    return [f"$O.ROLLBOOK_{FLEET}_snapshots.C.{slot.pieces}" for slot in slots[:newest]]


async def restored_at(site):
    with capture_logs() as logs:
        state = await newest_state(site.log, site.snapshots)
    return 0 if state is None else state.sequence, [entry["event"] for entry in logs]


async def test_a_start_skips_what_is_damaged_for_the_one_before_it_and_in_the_end_for_the_whole_log(site):
    sequences = await kept(site, 3)
    whole = (await state_now(site.log, site.snapshots, _codec, site.clock)).encode()
    first, second, third = await pieces_of(site, 3)
    stream = f"OBJ_ROLLBOOK_{FLEET}_snapshots"

    await question(site.client, f"STREAM.PURGE.{stream}", {"filter": first}, timeout=DEADLINE)
    assert await restored_at(site) == (sequences[1], ["snapshot.unreadable"])

    await site.restart(lambda store: spoil(store, second))
    sequence, told = await restored_at(site)
    assert sequence == sequences[2]
    assert told[-1] in {"snapshot.unreadable", "snapshot.damaged"}

    await site.restart(lambda store: spoil(store, third))
    assert (await restored_at(site))[0] == 0
    assert (await state_now(site.log, site.snapshots, _codec, site.clock)).encode() == whole
    async with site.controller() as running:
        await site.registered()
        assert not running.done()


def spoil(store: Path, subject: str) -> None:
    """Turn over bytes on the disk in the middle of what stands on a subject."""
    for file in store.rglob("*.blk"):
        data = bytearray(file.read_bytes())
        at = data.find(subject.encode())
        if at >= 0:
            begin = at + len(subject) + 60
            for index in range(begin, begin + 40):
                data[index] ^= 0xFF
            file.write_bytes(data)
            return
    raise AssertionError(f"nothing stands on {subject}")
