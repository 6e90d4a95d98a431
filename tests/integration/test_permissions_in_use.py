"""deploy/nats-roles.conf on a real nats-server: each role does all that its commands and its library need."""

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request

import msgspec
import pytest
from support.nats import DEADLINE
from support.ports import free_ports
from support.roles import (
    FLEET,
    PASSWORDS,
    ROLES,
    W,
    append,
    as_role,
    connection,
    fleets_stream,
    messages,
    server_with_roles,
)
from support.until import until
from support.xtuner import group

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.health import HealthMonitor, HealthPolicy
from rollbook.adapters.health.heartbeats import hearing
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.client import NotPermitted
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.listeners.validating import NotValidated
from rollbook.adapters.listeners.xtuner import XtunerListener
from rollbook.adapters.memory.manager import MemoryWorkerManager
from rollbook.adapters.publisher import Publisher, Superseded
from rollbook.adapters.recovery import WorkerRecovery, planned_stop
from rollbook.adapters.static import StaticProvider
from rollbook.adapters.weights import weight_update
from rollbook.events import (
    Codec,
    FleetStarted,
    Registered,
    WorkerCordoned,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import HostAndPort
from rollbook.projections.state.leases import Leases
from rollbook.projections.state.observers import Observers

pytestmark = pytest.mark.integration

OUTCOME = Registered(proxy="router-a", worker=W, incarnation=1, url="http://10.0.0.1:1")


@pytest.fixture
def server(start_nats, monkeypatch):
    return server_with_roles(start_nats, monkeypatch)


@pytest.fixture
async def stream(server):
    async with fleets_stream(server) as client:
        yield client


async def test_a_publisher_publishes_numbers_probes_and_keeps_an_outbox(server, stream, tmp_path):
    async with Publisher(FLEET, connection(server, "publisher"), outbox=tmp_path / "outbox") as publisher:
        await publisher.publish(FleetStarted(run_id="r1"))
        life = publisher.worker("rollout-1-0")
        await life.started()
        await life.up()
        assert life.incarnation == 1
        again = publisher.worker("rollout-1-0")
        await again.up()
        assert again.incarnation == 2
        async with publisher.probe("rollout-1-0") as probe:
            verdict = probe.down(evidence="timeout")
        assert isinstance(await verdict, int)
        async with publisher.probe("rollout-1-0") as probe:
            await append(stream, WorkerUp(worker="rollout-1-0", incarnation=3))
            verdict = probe.down(evidence="timeout")
        assert isinstance(await verdict, Superseded)
        await publisher.worker_down("rollout-1-0", reason="asked of the log")
        assert not (await publisher.aflush(DEADLINE)).unsent


async def test_a_publisher_that_may_not_keeps_the_fact_and_says_why(server, stream, tmp_path):
    before = await messages(stream)
    async with Publisher(FLEET, connection(server, "publisher"), outbox=tmp_path / "outbox") as publisher:
        receipt = publisher.publish(OUTCOME)
        fine = publisher.worker_up(W, incarnation=2)
        assert await asyncio.wait_for(fine, DEADLINE) == before + 1  # another subject: it is not held up
        told = await until(
            lambda: asyncio.sleep(0, publisher.stats().last_error), lambda told: told and "does not permit" in told
        )
        assert f"rollbook.{FLEET}.proxy.router-a" in told
        assert not receipt.done
        left = await publisher.aclose(0)
    assert [one.kept for one in left.unsent] == [True]


async def test_a_lease_is_renewed_as_a_publisher(server, stream):
    leases = Leases()

    async def heard():
        return leases._heard.get("rollout-1-0")

    async with (
        hearing(stream, FLEET, Observers(), leases, SystemClock()),
        Publisher(FLEET, connection(server, "publisher"), name="worker") as publisher,
    ):
        await publisher.worker_up("rollout-1-0", lease=1.0)
        first = await until(heard, bool)
        again = await until(heard, lambda one: one[1] > first[1])
    assert (first[0], again[0]) == (1, 1)


async def test_a_monitor_watches_and_is_heard_as_a_publisher(server, stream):
    pools = {"rollout": PoolPolicy(health=HealthPolicy(interval=0.1, first_wait=0.0))}
    down = asyncio.Event()

    def check(_):
        return "not well" if down.is_set() else True

    provider = StaticProvider({W: {"primary": HostAndPort("127.0.0.1", 1)}})
    monitor = HealthMonitor(
        FLEET, connection(server, "publisher"), provider, pools, checks={"rollout": check}, name="watch"
    )
    observers = Observers()

    async def heard():
        return observers.names()

    async with hearing(stream, FLEET, observers, Leases(), SystemClock()):
        watching = asyncio.create_task(monitor.run())
        try:
            await until(heard, lambda names: names == ["watch"])
            down.set()
            codec, log = Codec(FLEET), JetStreamLog(stream, FLEET)

            async def last():
                stored = await log.get(await messages(stream))
                return codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)

            told = await until(last, lambda recorded: isinstance(recorded.fact, WorkerDown))
            assert told.source == f"rollbook://{FLEET}/watch"
            assert (told.fact.worker, told.fact.incarnation) == (W, 1)
            assert "not well" in told.fact.reason
        finally:
            await end(watching)
        await until(heard, lambda names: names == [])


async def test_a_recoverer_restarts_and_stops_as_a_publisher(server, stream):
    codec, log = Codec(FLEET), JetStreamLog(stream, FLEET)

    async def last():
        stored = await log.get(await messages(stream))
        return codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence).fact

    as_publisher = connection(server, "publisher")
    async with Publisher(FLEET, as_publisher, name="manager") as publisher:
        manager = MemoryWorkerManager(SystemClock(), publisher.publish, [W], incarnation=1)
        recovering = asyncio.create_task(WorkerRecovery(FLEET, as_publisher, manager, {"rollout": PoolPolicy()}).run())
        try:
            await append(stream, WorkerDown(worker=W, incarnation=1, evidence="exited"))
            await until(last, lambda fact: isinstance(fact, WorkerUp) and fact.incarnation == 2)
            stopped = await planned_stop(W, fleet=FLEET, connection=as_publisher, manager=manager, reason="scale down")
        finally:
            await end(recovering)
        down = await until(last, lambda fact: isinstance(fact, WorkerDown))
    assert (stopped.workers, stopped.left) == ((W,), {})
    assert (down.incarnation, down.evidence) == (2, "planned")


def without_snapshots(config):
    """The roles, where a publisher may not read the snapshots."""
    before, publishers, after = re.split(r"(^  ROLLBOOK_PUBLISHERS: .*?^  }$)", config, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in publishers.splitlines() if "_snapshots" not in line]
    assert len(lines) < len(publishers.splitlines())
    return before + "\n".join(lines) + after


@pytest.mark.parametrize("config", [ROLES, without_snapshots(ROLES)], ids=["all", "without snapshots"])
async def test_a_trainer_updates_weights_as_a_publisher(start_nats, monkeypatch, config):
    server = server_with_roles(start_nats, monkeypatch, config)
    async with (
        fleets_stream(server),
        Publisher(FLEET, connection(server, "publisher"), name="trainer") as publisher,
        weight_update(publisher, "rollout", version=7, suspend=60) as update,
    ):
        update.loaded(*update.workers)
    assert (update.outcome.ready, update.outcome.complete) == ((W,), True)


async def test_a_controller_leads_folds_acts_and_answers_operators_and_readers(server, tmp_path):
    from rollbook.adapters.jetstream.leadership import JetStreamLeadership
    from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
    from rollbook.adapters.memory.proxy import MemoryProxy
    from rollbook.adapters.memory.readiness import MemoryReadiness
    from rollbook.adapters.service.client import Controllers, NoController
    from rollbook.adapters.service.messages import PLAN, RECONCILE, STATUS, PlanRequest, ReconcileRequest, Request
    from rollbook.adapters.service.server import service
    from rollbook.adapters.service.verbs import HANDLERS
    from rollbook.adapters.static import StaticProvider
    from rollbook.projections.leading.controller import Controller
    from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy
    from rollbook.projections.ports import HostAndPort
    from rollbook.projections.resources import Resources

    clock = SystemClock()
    router = MemoryProxy("router-a", FLEET, clock, random.Random(1))
    readiness = MemoryReadiness(clock)
    readiness.serve("http://10.0.0.1:1")
    policy = Policy(
        fleet=FLEET,
        pools={"rollout": PoolPolicy()},
        proxies={"router-a": ProxyPolicy(name="router-a", pools=("rollout",))},
        reconcile=ReconcilePolicy(resync=0.2, call_deadline=1.0),
    )
    async with as_role(server, "controller") as client, as_role(server, "reader") as reading:
        await provision(client, FLEET, timeout=DEADLINE)
        with pytest.raises(NoController):
            await Controllers(reading, FLEET).ask(PLAN, PlanRequest())
        snapshots = JetStreamSnapshots(client, FLEET)
        resources = Resources(
            log=JetStreamLog(client, FLEET),
            snapshots=snapshots,
            leadership=JetStreamLeadership(client, FLEET),
            provider=StaticProvider({W: {"primary": HostAndPort("10.0.0.1", 1)}}),
            readiness=readiness,
            clock=clock,
            ids=UuidV7(),
            rng=random.Random(1),
            owner="one",
        )
        controller = Controller(policy, resources, [router], [service(client, HANDLERS)])
        running = asyncio.create_task(controller.run())
        try:
            async with Publisher(FLEET, connection(server, "publisher")) as publisher:
                await publisher.worker_up(W)
            await until(lambda: asyncio.sleep(0, len(router.listed)), lambda count: count == 1)
            controllers = Controllers(reading, FLEET)
            status = await until(
                lambda: controllers.ask(STATUS, Request()), lambda status: status.proxies[0].registered == 1
            )
            assert status.workers[0].name == W
            await controllers.ask(PLAN, PlanRequest())
            with pytest.raises(NotPermitted, match=rf"publish to rollbook-rpc.{FLEET}.reconcile"):
                await controllers.ask(RECONCILE, ReconcileRequest(by="mallory"))
            async with as_role(server, "operator") as deciding:
                done = await Controllers(deciding, FLEET).ask(RECONCILE, ReconcileRequest(by="ann"))
                assert done.finished
                await append(deciding, WorkerCordoned(worker=W, by="ann", why="because"))
            await until(lambda: asyncio.sleep(0, len(router.listed)), lambda count: count == 0)
        finally:
            controller.stop()
            await running
        kept = [one.sequence async for one in JetStreamSnapshots(reading, FLEET).newest_first()]
        assert kept, "a reader starts from the snapshot that the controller left"
        told = [one async for one in take(JetStreamLog(reading, FLEET, direct=True), kept[0])]
        assert len(told) >= kept[0]


async def take(log, count):
    async with contextlib.aclosing(log.read(0)) as batches:
        seen = 0
        async for batch in batches:
            for stored in batch:
                seen += 1
                yield stored
            if seen >= count:
                return


# ---------------------------------------------------------------- the command line of each role


def environment(server, role):
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "NO_COLOR": "1",
        "ROLLBOOK_FLEET": FLEET,
        "ROLLBOOK_NATS_URL": server.url,
        "ROLLBOOK_NATS_USER": role,
        "ROLLBOOK_NATS_PASSWORD": PASSWORDS[role],
    }


def rollbook(server, role, folder, *arguments):
    command = [sys.executable, "-m", "rollbook.adapters.cli.main", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(server, role), capture_output=True, text=True, check=False, timeout=90
    )


async def test_the_commands_of_each_role(server, stream, tmp_path):
    async def run(role, *arguments):
        return await asyncio.to_thread(rollbook, server, role, tmp_path, *arguments)

    log = await run("reader", "log", "--json")
    assert log.returncode == 0, log.stderr
    assert [json.loads(line)["type"] for line in log.stdout.splitlines()] == ["rollbook.worker.up.v1"]
    cordon = await run("reader", "cordon", W, "--reason", "x")
    assert cordon.returncode == 1
    assert f"does not permit user 'reader' to publish to rollbook.{FLEET}.operator.worker.{W}" in cordon.stderr
    cordon = await run("publisher", "cordon", W, "--reason", "x")
    assert cordon.returncode == 1
    assert "does not permit user 'publisher'" in cordon.stderr
    cordon = await run("operator", "cordon", W, "--reason", "x")
    assert (cordon.returncode, cordon.stdout.strip()) == (0, "2"), cordon.stderr
    up = await run("reader", "publish", "up", W, "--timeout", "3s")
    assert up.returncode == 3
    assert f"does not permit user 'reader' to publish to rollbook.{FLEET}.worker.{W}" in up.stderr
    up = await run("publisher", "publish", "up", W)
    assert (up.returncode, up.stdout.strip()) == (0, "3"), up.stderr
    end = await run("operator", "end", "--yes")
    assert end.returncode == 0, end.stderr
    wait = await run("reader", "wait", "--worker", W, "--for", "gone", "--timeout", "30")
    assert wait.returncode == 0, wait.stderr


def start_up(server, folder):
    command = [sys.executable, "-m", "rollbook.adapters.cli.main", "up"]
    with (folder / "up.log").open("w") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment(server, "controller"), stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
    except OSError as exc:
        return 0, str(exc)


async def test_up_runs_as_the_controller_and_shows_itself(server, tmp_path):
    [port] = free_ports(1)
    (tmp_path / "rollbook.toml").write_text(
        f'fleet = "{FLEET}"\n[nats]\nurl = "{server.url}"\n[provider]\nkind = "static"\n[pools.rollout]\n'
        '[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "http://127.0.0.1:1"\npools = ["rollout"]\n'
        f'[web]\nlisten = "127.0.0.1:{port}"\n'
    )
    process = start_up(server, tmp_path)

    async def run(role, *arguments):
        return await asyncio.to_thread(rollbook, server, role, tmp_path, *arguments)

    try:
        at = f"http://127.0.0.1:{port}"
        told = await until(lambda: asyncio.to_thread(get, f"{at}/readyz"), lambda told: '"leading"' in told[1])
        assert told[0] == 200, (tmp_path / "up.log").read_text()
        async with Publisher(FLEET, connection(server, "publisher")) as publisher:
            await publisher.worker_up(W)
        metrics = await until(
            lambda: asyncio.to_thread(get, f"{at}/metrics"),
            lambda told: (
                'rollbook_facts_total{type="worker.up"} 1.0' in told[1]
                and 'rollbook_proxy_reachable{proxy="router-a"} 0.0' in told[1]
            ),
        )
        assert "rollbook_leader 1.0" in metrics[1]
        assert W not in metrics[1]
        status = await run("reader", "status", "--json")
        assert (status.returncode, json.loads(status.stdout)["workers"][0]["name"]) == (2, W), status.stderr
        plan = await run("reader", "plan", "--json")
        assert (plan.returncode, list(json.loads(plan.stdout)["unreachable"])) == (1, ["router-a"]), plan.stderr
        verify = await run("reader", "verify")
        assert verify.returncode == 1
        assert f"does not permit user 'reader' to publish to rollbook-rpc.{FLEET}.verify" in verify.stderr
        verify = await run("operator", "verify")
        assert (verify.returncode, "NOT READ BACK" in verify.stdout) == (1, True), verify.stderr
        doctor = await run("controller", "doctor", "--json")
        checks = {check["check"]: check["state"] for check in json.loads(doctor.stdout)["checks"]}
        assert (checks["permissions"], checks["leadership"], checks["ready"]) == ("ok", "ok", "ok"), doctor.stdout
        assert checks["proxy router-a"] == "failed"
        assert doctor.returncode == 1
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0, (tmp_path / "up.log").read_text()
        assert "snapshot.saved" in (tmp_path / "up.log").read_text()
        assert "permissions violation" not in (tmp_path / "up.log").read_text()
    finally:
        process.kill()
        process.wait()


async def test_a_frameworks_listener_needs_no_more_than_a_publisher_except_to_verify(server, stream):
    listener = await asyncio.to_thread(XtunerListener, FLEET, connection(server, "publisher"))
    try:
        assert await asyncio.to_thread(listener.wait_until_followed, DEADLINE)
        listener.on_worker_group_inactive(group(0))  # life 1, which it knows from the log
        listener.on_worker_group_recovered(group(0))
        assert await listener.publisher.aflush(DEADLINE)
        facts = JetStreamLog(stream, FLEET)
        last = await facts.last(f"rollbook.{FLEET}.worker.{W}")
        assert b'"incarnation":2' in last.payload
        await append(stream, msgspec.structs.replace(OUTCOME, incarnation=2))
        with pytest.raises(NotValidated, match=r"nobody verified the proxies: NATS does not permit user 'publisher'"):
            listener.validate_registered_workers_to_proxy(DEADLINE)  # on a loop's thread, as XTuner's async actor does
    finally:
        await asyncio.to_thread(listener.close)
