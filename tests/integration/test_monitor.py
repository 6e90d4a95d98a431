"""The monitor on a real log: as a task, as a thread, as a process, and several at once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager

import pytest
from support.controlled import controlled
from support.nats import DEADLINE
from support.process import python_process
from support.stream import FleetStream
from support.until import until
from support.workers import HttpWorker, http_worker

from rollbook.adapters.bootstrap import open_reader
from rollbook.adapters.health import HealthMonitor, HealthPolicy, MonitorThread, Outcome
from rollbook.adapters.health.monitoring import MonitorMisconfigured
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.service.client import Controllers
from rollbook.adapters.service.messages import STATUS, Request
from rollbook.adapters.static import StaticProvider
from rollbook.events import ObserverSilent, WorkerDown, WorkerSuspected, WorkerUp
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import HostAndPort, LogError

pytestmark = pytest.mark.integration

W = "rollout-0-0"
QUICK = HealthPolicy(interval=0.1, timeout=20.0, first_wait=0.0, success_threshold=1)


@pytest.fixture
def publisher(stream):
    with Publisher(stream.fleet, stream.url, name="trainer") as made:
        yield made


def provider(url, name=W):
    return StaticProvider({name: {"primary": HostAndPort("127.0.0.1", int(url.rpartition(":")[2]))}})


def monitor_of(stream, url, policy=QUICK, **options):
    return HealthMonitor(stream.fleet, stream.url, provider(url), {"rollout": PoolPolicy(health=policy)}, **options)


@asynccontextmanager
async def running(*monitors):
    tasks = [asyncio.create_task(monitor.run()) for monitor in monitors]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end(*tasks)


def facts(stream, *kinds):
    return [line.fact for line in stream.lines() if isinstance(line.fact, kinds)]


async def told(stream, *kinds):
    """Wait until the log ends in facts of these kinds, in order."""

    async def look():
        return await asyncio.to_thread(lambda: [type(line.fact) for line in stream.lines()])

    await until(look, lambda seen: seen[-len(kinds) :] == list(kinds))


async def asked(monitor, more=1):
    """Wait until it has asked so many times more."""
    before = monitor.stats.probes

    async def look():
        return monitor.stats.probes

    await until(look, lambda now: now >= before + more)


async def test_a_worker_that_dies_and_returns(stream, publisher):
    async with http_worker() as worker:
        monitor = monitor_of(stream, worker.url, name="watch")
        async with running(monitor):
            await publisher.worker_up(W, incarnation=1)
            await asked(monitor, 3)
            await worker.stop()
            await told(stream, WorkerUp, WorkerSuspected, WorkerDown)
            await worker.start()
            await told(stream, WorkerDown, WorkerUp)
            await asked(monitor, 3)
    up, suspected, down, again = [line.recorded for line in stream.lines()]
    assert (down.fact.evidence, down.fact.seen) == ("refused", suspected.sequence)
    assert again.fact.seen == down.sequence
    assert {one.source for one in (suspected, down, again)} == {f"rollbook://{stream.fleet}/watch"}
    assert up.fact.incarnation == again.fact.incarnation == 1


async def test_busy_is_no_death_and_has_its_own_threshold(stream, publisher):
    policy = HealthPolicy(interval=0.1, first_wait=0.0, unhealthy_threshold=1, dead_threshold=1, busy_threshold=5)
    async with http_worker() as worker:
        monitor = monitor_of(stream, worker.url, policy)
        async with running(monitor):
            await publisher.worker_up(W, incarnation=1)
            await asked(monitor)
            worker.healthy = False
            await told(stream, WorkerSuspected, WorkerDown)
    (down,) = facts(stream, WorkerDown)
    assert down.evidence == "unhealthy"
    assert down.reason.endswith("answered 503 (5 times)")


class SlowWorker(HttpWorker):
    """Its health page answers when `held` is set, and notes who is waiting."""

    def __init__(self):
        super().__init__()
        self.held = asyncio.Event()
        self.asked = 0

    async def _health(self, request):
        self.asked += 1
        await self.held.wait()
        self.healthy = False
        return await super()._health(request)


async def test_a_slow_probe_never_shoots_a_restarted_worker(stream, publisher):  # I3
    """The probe of life 1 hangs at the real server; life 2 begins on the same URL; then the old probe fails."""
    policy = HealthPolicy(
        interval=0.1, timeout=60.0, first_wait=0.0, busy_threshold=1, unhealthy_threshold=1, dead_threshold=1
    )
    old = SlowWorker()
    await old.start()
    monitor = monitor_of(stream, old.url, policy)

    async def waiting():
        return old.asked

    try:
        async with running(monitor):
            await publisher.worker_up(W, incarnation=1)
            await until(waiting, lambda count: count == 1)
            await publisher.worker_up(W, incarnation=2)  # acknowledged: the log has it, whoever has read it or not
            old.held.set()
            await asked(monitor)
            old.held.clear()
            assert facts(stream, WorkerDown, WorkerSuspected) == []
            await until(waiting, lambda count: count == 2)
            old.held.set()
            await told(stream, WorkerUp, WorkerDown)  # of life 2, after a probe of life 2
    finally:
        await old.stop()
    (down,) = facts(stream, WorkerDown)
    assert down.incarnation == 2


async def test_two_monitors_do_no_harm(stream, publisher):
    async with http_worker() as worker:
        first, second = monitor_of(stream, worker.url, name="one"), monitor_of(stream, worker.url, name="two")
        async with running(first, second):
            await publisher.worker_up(W, incarnation=1)
            for _ in range(3):
                await asked(first, 2)
                await asked(second, 2)
                await worker.stop()
                await told(stream, WorkerUp, WorkerSuspected, WorkerDown)
                await worker.start()
                await told(stream, WorkerDown, WorkerUp)
            await asked(first, 3)
            await asked(second, 3)
    assert len(stream.lines()) == 1 + 3 * 3


async def test_it_outlives_an_outage_of_nats(start_nats, fleet):
    server = start_nats()
    stream = FleetStream(server.url, fleet).make()
    async with http_worker() as worker:
        monitor = monitor_of(stream, worker.url)
        async with running(monitor):
            async with Publisher(fleet, server.url, name="trainer") as publisher:
                await publisher.worker_up(W, incarnation=1)
            await asked(monitor, 2)
            server.kill()
            await worker.stop()
            await asked(monitor, 2)
            server.start()
            await told(stream, WorkerDown)
    (down,) = facts(stream, WorkerDown)
    assert (down.worker, down.incarnation, down.evidence) == (W, 1, "refused")


async def test_a_callable_on_a_thread_of_synchronous_code(stream, publisher):
    seen, well = [], threading.Event()

    def check(subject):
        seen.append((subject.name, subject.incarnation))
        return True if well.is_set() else "not yet"

    await publisher.worker_up(W, incarnation=4)
    monitor = monitor_of(stream, "http://h:1", checks={"rollout": check})
    thread = MonitorThread(monitor)
    with thread:
        await told(stream, WorkerSuspected, WorkerDown)
        well.set()
        await told(stream, WorkerDown, WorkerUp)
        assert thread.running
    assert not thread.running
    assert set(seen) == {(W, 4)}
    assert facts(stream, WorkerDown)[0].reason == "not yet (3 times)"


def test_a_thread_that_cannot_watch_says_so_when_it_is_stopped(nats_server, fleet):
    stream = FleetStream(nats_server.url, fleet)  # never made
    thread = MonitorThread(monitor_of(stream, "http://h:1")).start()
    until_dead = time.monotonic() + DEADLINE
    while thread.running and time.monotonic() < until_dead:
        time.sleep(0.01)
    with pytest.raises(LogError):
        thread.stop()


def test_what_cannot_be_watched_is_refused(fleet):
    off = {"rollout": PoolPolicy(health=HealthPolicy(probe="off"))}
    with pytest.raises(MonitorMisconfigured, match="no pool is to be watched"):
        HealthMonitor(fleet, "nats://h:4222", StaticProvider({}), off)
    with pytest.raises(MonitorMisconfigured, match="not among the pools"):
        HealthMonitor(fleet, "nats://h:4222", StaticProvider({}), {"a": PoolPolicy()}, checks={"b": print})
    with pytest.raises(MonitorMisconfigured, match=r"pool 'rollout', whose health\.probe is 'off'"):
        HealthMonitor(fleet, "nats://h:4222", StaticProvider({}), off | {"a": PoolPolicy()}, checks={"rollout": print})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_watches_and_stops_cleanly(stream, publisher, tmp_path, number):
    async with http_worker() as worker:
        (tmp_path / "rollbook.toml").write_text(
            f'fleet = "{stream.fleet}"\n[nats]\nurl = "{stream.url}"\n'
            f'[provider]\nkind = "static"\n[provider.workers.{W}]\nprimary = "{worker.url.removeprefix("http://")}"\n'
            "[pools.rollout]\nrequires_proxy = false\n[pools.rollout.health]\ninterval = 0.1\nfirst_wait = 0\n"
        )
        command = [sys.executable, "-m", "rollbook.adapters.cli.main", "monitor", "--name", "watch"]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            await publisher.worker_up(W, incarnation=1)
            await worker.stop()
            try:
                await told(stream, WorkerUp, WorkerSuspected, WorkerDown)
            except AssertionError as exc:
                raise AssertionError((tmp_path / "log").read_text()) from exc
            process.send_signal(number)
            code = await asyncio.to_thread(process.wait, DEADLINE)
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)
    text = (tmp_path / "log").read_text()
    assert code == 0, text
    assert '"event": "monitor.verdict"' in text
    assert "Traceback" not in text


async def status_of(built):
    async with open_reader(built.controller.policy.fleet, built.nats) as reader:
        return await Controllers(reader.client, built.controller.policy.fleet).ask(STATUS, Request())


MONITOR = """
import asyncio, sys
from rollbook.adapters.health import HealthMonitor
from rollbook.adapters.static import StaticProvider
from rollbook.projections.policy import PoolPolicy

monitor = HealthMonitor(sys.argv[1], sys.argv[2], StaticProvider({}), {"rollout": PoolPolicy()}, name=sys.argv[3])
asyncio.run(monitor.run())
"""


async def test_a_monitor_that_dies_is_noticed_and_one_that_leaves_is_not(stream, publisher, tmp_path):
    async with controlled(stream, tmp_path) as built:
        observers = built.controller.leading.resources.observers

        async def names():
            return observers.names()

        await publisher.worker_up(W, incarnation=1)
        with python_process(MONITOR, stream.fleet, stream.url, "dies") as process:
            async with running(monitor_of(stream, "http://h:1", HealthPolicy(), name="leaves")):
                await until(names, lambda found: found == ["dies", "leaves"])
            await until(names, lambda found: found == ["dies"])
            process.kill()
        await told(stream, WorkerUp, ObserverSilent)
        status = await status_of(built)
    assert facts(stream, ObserverSilent)[0].observer == "dies"
    assert len(stream.lines()) == 2
    assert [one.phase for one in status.workers] == ["serving"]
    assert any(note.startswith("observer dies has been silent for ") for note in status.notes)


def test_outcomes_are_words_for_people():
    assert [str(one) for one in Outcome] == ["ok", "gone", "refused", "slow", "busy", "unhealthy", "unknown"]
