"""I7 with real processes: controllers stand by, and a leader is stopped, killed, or wakes up too late."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from support.programs import PATIENCE, ROLLBOOK, demo_workers, environment, wait_until
from support.recorder import recording
from support.routers import running_router

from rollbook.adapters.publisher import Publisher

pytestmark = [pytest.mark.e2e, pytest.mark.router, pytest.mark.timeout(300)]

NAMES = ("rollout-0-0", "rollout-1-0", "rollout-2-0")


class Controller:
    """One `rollbook up`, with a forwarder of its own in front of the router."""

    def __init__(self, path, recorder, config):
        path.mkdir()
        (path / "rollbook.toml").write_text(config.replace("ROUTER", recorder.url))
        self.recorder = recorder
        self._path = path
        self._log = path / "up.log"
        with self._log.open("w") as log:
            command = [*ROLLBOOK, "up"]
            self.process = subprocess.Popen(command, cwd=path, env=environment(), stdout=log, stderr=log)
        self.source = f"-{self.process.pid}"

    def wait_ready(self):
        wait_until(lambda: self.said("controller.started", "controller.standing_by") or self.process.poll() is not None)
        assert self.process.poll() is None, self._log.read_text()

    def said(self, *events):
        """How often it said one of these."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] in events]

    def leads(self):
        return len(self.said("controller.started")) > len(self.said("leader.lost"))

    def send(self, number):
        self.process.send_signal(number)

    def wait_for(self, event, times=1):
        wait_until(lambda: len(self.said(event)) >= times)

    def run(self, *arguments):
        command = [*ROLLBOOK, *arguments]
        ended = subprocess.run(
            command, cwd=self._path, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def facts(self):
        return [json.loads(line) for line in self.run("log", "--json").splitlines()]

    def takeovers(self):
        """Who took the router over, in the order of the log, and under which epochs."""
        taken = [fact for fact in self.facts() if fact["type"] == "rollbook.proxy.leadership_taken.v1"]
        return [fact["data"]["owner"].rpartition("-")[2] for fact in taken], [fact["data"]["epoch"] for fact in taken]


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router


@pytest.fixture(scope="module")
def workers():
    with demo_workers(NAMES) as workers:
        yield workers


class Site:
    """A fleet on a server of the test's own, its router and workers, and the controllers that it starts."""

    def __init__(self, path, server, router, workers, stack):
        self.server = server
        self.router = router
        self.urls = {f"http://{address}": name for name, address in workers.items()}
        self.controllers = []
        self._path = path
        self._stack = stack
        self._tables = "".join(f'[provider.workers.{name}]\nprimary = "{at}"\n' for name, at in workers.items())
        self.publisher = Publisher("math-rl", server.url)
        self._flapping = threading.Event()
        self._flapper = None

    def up(self, lease, call=None):
        config = (
            f'fleet = "math-rl"\n[nats]\nurl = "{self.server.url}"\n[provider]\nkind = "static"\n{self._tables}'
            '[pools.rollout]\n[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "ROUTER"\n'
            'pools = ["rollout"]\n'
            f"[reconcile]\nresync = 0.5\ncall_deadline = {call or lease / 2}\n[leadership]\nlease = {lease}\n"
            '[logs]\nformat = "json"\n'
        )
        recorder = self._stack.enter_context(recording(self.router.url))
        controller = Controller(self._path / f"controller-{len(self.controllers)}", recorder, config)
        self.controllers.append(controller)
        controller.wait_ready()
        return controller

    def listed(self):
        with urllib.request.urlopen(f"{self.router.url}/workers", timeout=10) as answer:
            return {self.urls[worker["url"]]: worker["id"] for worker in json.load(answer)["workers"]}

    def all_up(self):
        for name in NAMES:
            self.publisher.worker_up(name).result(PATIENCE)
        wait_until(lambda: self.listed().keys() == set(NAMES))

    def flap(self):
        """From now on a worker goes down and comes back all the time, so that the leader always has calls to make."""

        def flap():
            count = 0
            while not self._flapping.wait(0.02):
                name = NAMES[count % 2]
                self.publisher.worker_down(name, evidence="exited")
                self.publisher.worker_up(name)
                count += 1

        self._flapper = threading.Thread(target=flap)
        self._flapper.start()

    def end_flapping(self):
        self._flapping.set()
        if self._flapper is not None:
            self._flapper.join(PATIENCE)
            self._flapper = None

    def close(self):
        self.end_flapping()
        for controller in self.controllers:
            controller.process.kill()
            controller.process.wait()
        self.publisher.close(1.0)
        for worker_id in self.listed().values():
            request = urllib.request.Request(f"{self.router.url}/workers/{worker_id}", method="DELETE")
            urllib.request.urlopen(request, timeout=10).close()
        wait_until(lambda: not self.listed())


@pytest.fixture
def site(tmp_path, start_nats, router, workers):
    server = start_nats(jetstream="{ sync_interval: always }")
    with contextlib.ExitStack() as stack:
        site = Site(tmp_path, server, router, workers, stack)
        stack.callback(site.close)
        yield site


def test_i7_after_a_clean_stop_the_standby_acts_long_before_the_lease_would_have_ended(site):
    lease = 120
    one, two = site.up(lease, 3), site.up(lease, 3)
    assert one.leads()
    [standing_by] = two.said("controller.standing_by")
    assert standing_by["led_by"].endswith(one.source)
    assert "is led by" in standing_by["reason"]
    site.all_up()
    one.send(signal.SIGTERM)
    assert one.process.wait(PATIENCE) == 0
    stopped = time.monotonic()
    wait_until(two.leads)
    assert time.monotonic() - stopped < lease / 4
    site.publisher.worker_down("rollout-1-0", evidence="exited").result(PATIENCE)
    wait_until(lambda: site.listed().keys() == {"rollout-0-0", "rollout-2-0"})
    assert [change for change in two.recorder.changes() if change.at < stopped] == []
    owners, epochs = two.takeovers()
    assert owners == [str(one.process.pid), str(two.process.pid)]
    assert epochs == sorted(set(epochs))
    plain = two.run("log", "--type", "proxy.leadership_taken")
    assert len(plain.splitlines()) == 2


def test_i7_after_a_kill_the_standby_acts_once_the_lease_has_ended(site):
    lease = 5
    one, two = site.up(lease), site.up(lease)
    site.all_up()
    one.send(signal.SIGKILL)
    killed = time.monotonic()
    site.publisher.worker_down("rollout-0-0", evidence="exited")
    wait_until(two.leads)
    assert time.monotonic() - killed > lease / 2, "not before the claim of the dead has run out"
    wait_until(lambda: site.listed().keys() == {"rollout-1-0", "rollout-2-0"})
    assert two.takeovers()[0] == [str(one.process.pid), str(two.process.pid)]


def test_i7_a_leader_that_wakes_after_its_lease_calls_nobody_writes_nothing_and_stands_by(site):
    one, two = site.up(2), site.up(2)
    site.all_up()
    site.flap()
    wait_until(lambda: len(one.recorder.changes()) > 20)
    one.send(signal.SIGSTOP)
    wait_until(two.leads)
    wait_until(lambda: len(two.recorder.changes()) > 20)
    slipped = len(one.recorder.changes())
    one.send(signal.SIGCONT)
    one.wait_for("leader.lost")
    one.wait_for("controller.standing_by")
    seen = len(two.recorder.changes())
    wait_until(lambda: len(two.recorder.changes()) > seen + 10)
    site.end_flapping()
    assert site.publisher.flush(PATIENCE)
    wait_until(lambda: site.listed().keys() == set(NAMES))
    assert len(one.recorder.changes()) == slipped
    assert two.leads()
    facts = two.facts()
    taken = next(
        place
        for place, fact in enumerate(facts)
        if fact["type"] == "rollbook.proxy.leadership_taken.v1" and fact["source"].endswith(two.source)
    )
    assert [fact for fact in facts[taken:] if fact["source"].endswith(one.source)] == []

    two.send(signal.SIGKILL)
    wait_until(one.leads)
    site.publisher.worker_down("rollout-2-0", evidence="exited").result(PATIENCE)
    wait_until(lambda: site.listed().keys() == {"rollout-0-0", "rollout-1-0"})
    owners, epochs = one.takeovers()
    assert owners == [str(one.process.pid), str(two.process.pid), str(one.process.pid)]
    assert epochs == sorted(set(epochs))


def test_beside_a_stopped_leader_its_successor_answers_every_question(site):
    one, two = site.up(2), site.up(2)
    site.all_up()
    one.send(signal.SIGSTOP)
    wait_until(two.leads)

    def asked():
        return json.loads(two.run("status", "--json"))["controller"]

    wait_until(lambda: (asked() or "").endswith(two.source))
    assert {asked().rpartition("-")[2] for _ in range(8)} == {str(two.process.pid)}
    assert "0 left" in two.run("reconcile")
    one.send(signal.SIGCONT)
    one.wait_for("controller.standing_by")


def test_an_outage_of_nats_needs_no_supervisor(site):
    one = site.up(2)
    site.all_up()
    site.server.restart()
    site.publisher.worker_down("rollout-0-0", evidence="exited").result(PATIENCE)
    wait_until(lambda: site.listed().keys() == {"rollout-1-0", "rollout-2-0"})

    site.server.kill()
    times = len(one.said("leader.lost"))
    one.wait_for("leader.lost", times + 1)
    down = site.publisher.worker_down("rollout-1-0", evidence="exited", incarnation=1)
    site.server.start()
    down.result(PATIENCE)
    wait_until(lambda: site.listed().keys() == {"rollout-2-0"})
    assert one.process.poll() is None
    one.send(signal.SIGTERM)
    assert one.process.wait(PATIENCE) == 0


def test_i7_the_leases_deleted_under_a_leader_leave_one_writer_and_rising_epochs(site, tmp_path):
    one, two = site.up(2), site.up(2)
    site.all_up()
    site.flap()
    delete_bucket(site.server.url)
    wait_until(lambda: one.said("leader.lost"))
    wait_until(lambda: one.leads() != two.leads())
    site.end_flapping()
    assert site.publisher.flush(PATIENCE)
    wait_until(lambda: site.listed().keys() == set(NAMES))
    owners, epochs = one.takeovers()
    assert len(owners) >= 2
    assert epochs == sorted(set(epochs))
    facts = one.facts()
    writer = ""
    for fact in facts:
        if fact["type"].startswith("rollbook.proxy."):
            if fact["type"] == "rollbook.proxy.leadership_taken.v1":
                writer = fact["source"]
            assert fact["source"] == writer, "outcomes are only of who has taken over last"


def delete_bucket(url):
    code = """
import asyncio, sys
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect

async def main():
    client = await connect(Connection(url=sys.argv[1]), name="saboteur")
    await question(client, "STREAM.DELETE.KV_ROLLBOOK_math-rl_leader", timeout=60)
    await client.close()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code, url], env=environment(), check=True, timeout=PATIENCE)
