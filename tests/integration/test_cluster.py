"""Three nats-servers, R3: what their leader's death under load costs. Nothing acknowledged, and one election."""

import asyncio
import hashlib
import random
import signal
import threading
import time

import pytest
from support.cluster import running_cluster
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.static import StaticProvider
from rollbook.events import Codec, LeadershipTaken, WorkerStarted, WorkerUp, stream_name
from rollbook.projections.leading.controller import Controller
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy
from rollbook.projections.ports import HostAndPort, LogUnavailable, Snapshot
from rollbook.projections.resources import Resources

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FLEET = "f"
STREAM = stream_name(FLEET)
BUCKET = f"KV_ROLLBOOK_{FLEET}_leader"
OBJECTS = f"OBJ_ROLLBOOK_{FLEET}_snapshots"
PATIENCE = 60.0
LEASE = 5.0
WORKERS = [f"rollout-{number}-0" for number in range(400)]


@pytest.fixture
async def cluster(tmp_path):
    with running_cluster(tmp_path) as cluster:
        client = await cluster.ready()
        await provision(client, FLEET, replicas=3, timeout=PATIENCE)
        cluster.client = client
        yield cluster
        await client.close()


class Load:
    """A thread that publishes facts as a trainer does; each call's duration, and the receipts."""

    def __init__(self, cluster):
        self.receipts = []
        self.slowest = 0.0
        self._stop = threading.Event()
        self._publisher = Publisher(FLEET, Connection(url=cluster.url))
        self._thread = threading.Thread(target=self._publish)

    async def __aenter__(self):
        self._thread.start()
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        await asyncio.to_thread(self._thread.join, PATIENCE)
        await self._publisher.aclose(PATIENCE)

    def _publish(self):
        count = 0
        while not self._stop.wait(0.005):
            began = time.monotonic()
            receipt = self._publisher.publish(WorkerStarted(worker=f"load-{count % 7}-0", incarnation=1, pid=count + 1))
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.receipts.append((count + 1, receipt))
            count += 1

    def acknowledged(self):
        return sum(receipt.done for _, receipt in self.receipts)


class Site:
    """A controller over a router in memory, and workers that come up one after the other."""

    def __init__(self, client):
        self.log = JetStreamLog(client, FLEET)
        clock = SystemClock()
        self.router = MemoryProxy("a", FLEET, clock, random.Random(1))
        readiness = MemoryReadiness(clock)
        for number in range(len(WORKERS)):
            readiness.serve(f"http://10.0.0.1:{8000 + number}")
        self.said = []
        resources = Resources(
            log=self.log,
            snapshots=JetStreamSnapshots(client, FLEET, replicas=3),
            leadership=JetStreamLeadership(client, FLEET, replicas=3, lease=LEASE),
            provider=StaticProvider(
                {name: {"primary": HostAndPort("10.0.0.1", 8000 + number)} for number, name in enumerate(WORKERS)}
            ),
            readiness=readiness,
            clock=clock,
            ids=UuidV7(),
            rng=random.Random(2),
            owner="one",
            tell=lambda event, **keys: self.said.append((event, keys)),
        )
        policy = Policy(
            fleet=FLEET,
            pools={"rollout": PoolPolicy()},
            proxies={"a": ProxyPolicy(name="a", pools=("rollout",))},
            reconcile=ReconcilePolicy(resync=1.0),
        )
        self.controller = Controller(policy, resources, [self.router])
        self.listed = {}

    async def watch(self):
        """When each worker was first listed."""
        while True:
            for entry in self.router.listed:
                self.listed.setdefault(entry.worker, time.monotonic())
            await asyncio.sleep(0.01)


async def come_up(cluster):
    """One worker after the other; what is unknown is said again with the same id."""
    client = await connect(Connection(url=cluster.url), name="ups", timeout=PATIENCE)
    log, ids, codec = JetStreamLog(client, FLEET), UuidV7(), Codec(FLEET)
    try:
        for name in WORKERS:
            fact = WorkerUp(worker=name, incarnation=1)
            draft = codec.draft(fact, id=ids.new(), time="2026-01-01T00:00:00Z", publisher="test")
            while True:
                try:
                    await log.append([draft])
                except LogUnavailable:
                    continue
                break
            await asyncio.sleep(0.05)
    finally:
        await client.close()


async def pids(log):
    """The load that stands in the log, and who took the router over."""
    codec, found, epochs = Codec(FLEET), [], []
    last = (await log.state()).last_sequence
    async for batch in log.read(0):
        for stored in batch:
            fact = codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence).fact
            if isinstance(fact, WorkerStarted) and fact.pid:
                found.append(fact.pid)
            if isinstance(fact, LeadershipTaken):
                epochs.append(fact.epoch)
        if batch[-1].sequence >= last:
            break
    return found, epochs


@pytest.mark.parametrize(
    ("how", "led"), [(signal.SIGKILL, STREAM), (signal.SIGKILL, BUCKET), (signal.SIGTERM, STREAM)], ids=str
)
async def test_the_leader_of_the_log_or_of_the_lease_dies_under_load(cluster, how, led, record_property):
    """I8: nothing acknowledged is lost. The controller stalls for an election and a takeover, and goes on by itself."""
    client = cluster.client
    site = Site(client)
    running = asyncio.create_task(site.controller.run())
    watching = asyncio.create_task(site.watch())
    async with asyncio.timeout(PATIENCE):
        await site.controller.started.wait()
    coming = asyncio.create_task(come_up(cluster))
    try:
        async with Load(cluster) as load:
            await until(_look(load.acknowledged), lambda count: count > 200)
            await until(_look(lambda: len(site.listed)), lambda count: count > 10)
            leader = await until(lambda: cluster.leader(client, led), bool)
            killed = time.monotonic()
            cluster.servers[leader].stop(how)
            at_death = len(load.receipts)
            await until(_look(lambda: len(load.receipts)), lambda count: count > at_death + 200)
            before = set(site.listed)
            await until(_look(lambda: set(site.listed) - before), bool)
            acting_again = min(site.listed[name] for name in set(site.listed) - before) - killed
            acknowledged = load.acknowledged()
            await until(_look(load.acknowledged), lambda count: count > acknowledged + 200)
            cluster.servers[leader].start()
            await until(lambda: _current(client), bool)
        async with asyncio.timeout(PATIENCE):
            await coming
        await until(_look(lambda: len(site.listed)), lambda count: count == len(WORKERS))
        wanted = {pid for pid, receipt in load.receipts if isinstance(await receipt, int)}
        found, epochs = await pids(site.log)
    finally:
        coming.cancel()
        watching.cancel()
        site.controller.stop()
        await asyncio.gather(coming, watching, return_exceptions=True)
        await running
    assert len(wanted) == len(load.receipts)
    assert sorted(found) == sorted(wanted), "nothing acknowledged is lost, and nothing doubled"
    assert load.slowest < 1.0, "publishing waits for nobody"
    assert epochs == sorted(set(epochs))
    assert len(epochs) <= 2, "one takeover at the most"
    record_property("seconds until the controller acted again", round(acting_again, 2))


async def test_what_was_kept_once_is_kept_three_times_when_that_is_wanted(tmp_path):
    with running_cluster(tmp_path) as cluster:
        client = await cluster.ready()
        try:
            for replicas, wanted in ((1, 1), (3, 3), (1, 3)):
                await provision(client, FLEET, replicas=replicas, timeout=PATIENCE)
                leadership = JetStreamLeadership(client, FLEET, replicas=replicas, lease=PATIENCE)
                await patiently(leadership.acquire, "one")
                assert await leadership.release()
                snapshots = JetStreamSnapshots(client, FLEET, replicas=replicas, timeout=PATIENCE)
                body = f"state {replicas}".encode()
                snapshot = Snapshot("log", 1, replicas, "id", hashlib.sha256(body).hexdigest(), body)
                await patiently(snapshots.save, snapshot)
                kept = [await replicas_of(client, name) for name in (STREAM, BUCKET, OBJECTS)]
                assert kept == [wanted] * 3
        finally:
            await client.close()


async def patiently(call, what):
    """A stream that was made or raised a moment ago may have no leader yet."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call(what)
            except LogUnavailable:
                await asyncio.sleep(0.1)


async def replicas_of(client, stream):
    return (await question(client, f"STREAM.INFO.{stream}", timeout=PATIENCE))["config"]["num_replicas"]


def _look(value):
    async def look():
        return value()

    return look


async def _current(client):
    """Whether every replica of the log has all of it."""
    info = await question(client, f"STREAM.INFO.{STREAM}", timeout=PATIENCE)
    replicas = info["cluster"].get("replicas") or []
    return len(replicas) == 2 and all(one.get("current") for one in replicas)
