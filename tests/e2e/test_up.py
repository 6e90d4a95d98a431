"""`rollbook up` and `rollbook status` as an operator runs them: real processes, a real router, the embedded server."""

import json
import signal
import subprocess
import urllib.request

import pytest
from support.programs import PATIENCE, ROLLBOOK, demo_workers, environment, wait_until
from support.routers import running_router

pytestmark = [pytest.mark.e2e, pytest.mark.router]


class Folder:
    """A folder with a `rollbook.toml`, and the commands run in it."""

    def __init__(self, path):
        self.path = path
        self.controllers = []

    def configure(self, router, workers, nats="", fleet="math-rl"):
        tables = "".join(f'[provider.workers.{name}]\nprimary = "{at}"\n' for name, at in workers.items())
        self.path.mkdir(exist_ok=True)
        (self.path / "rollbook.toml").write_text(
            f'fleet = "{fleet}"\n{nats}[provider]\nkind = "static"\n{tables}[pools.rollout]\n'
            f'[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "{router}"\npools = ["rollout"]\n'
            "[reconcile]\nresync = 0.5\n"
        )

    def run(self, *arguments):
        command = [*ROLLBOOK, *arguments]
        return subprocess.run(
            command, cwd=self.path, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def up(self):
        log = (self.path / f"up-{len(self.controllers)}.log").open("w")
        command = [*ROLLBOOK, "up"]
        process = subprocess.Popen(command, cwd=self.path, env=environment(), stdout=log, stderr=log)
        log.close()
        self.controllers.append(process)
        name = self.path / f"up-{len(self.controllers) - 1}.log"
        wait_until(lambda: "controller.started" in name.read_text() or process.poll() is not None)
        return process, name

    def status(self):
        ended = self.run("status", "--json")
        return ended.returncode, json.loads(ended.stdout) if ended.stdout else ended.stderr

    def registered(self):
        """Worker → state at the proxy, as `status --json` tells."""
        return {worker["name"]: worker["registrations"][0]["state"] for worker in self.status()[1]["workers"]}


def listed(router):
    with urllib.request.urlopen(f"{router}/workers", timeout=10) as answer:
        return {worker["url"]: worker["id"] for worker in json.load(answer)["workers"]}


def remove_by_hand(router, worker_id):
    urllib.request.urlopen(urllib.request.Request(f"{router}/workers/{worker_id}", method="DELETE"), timeout=10).close()


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router


@pytest.fixture(scope="module")
def workers():
    with demo_workers(("rollout-0-0", "rollout-1-0")) as workers:
        yield workers


@pytest.fixture
def folder(tmp_path, router):
    folder = Folder(tmp_path / "fleet")
    yield folder
    for process in folder.controllers:
        process.kill()
        process.wait()
    for worker_id in listed(router.url).values():
        remove_by_hand(router.url, worker_id)
    wait_until(lambda: not listed(router.url))


def test_i1_a_fleet_from_up_to_a_clean_stop(folder, router, workers):
    folder.configure(router.url, workers)
    process, log = folder.up()
    for name in workers:
        assert folder.run("publish", "up", name).returncode == 0
    urls = {f"http://{address}" for address in workers.values()}
    wait_until(lambda: listed(router.url).keys() == urls)

    wait_until(lambda: folder.status()[0] == 0)
    _, status = folder.status()
    assert status["converged"] is True
    assert status["fleet"] == "math-rl"
    assert {worker["name"]: worker["address"] for worker in status["workers"]} == workers
    assert {worker["phase"] for worker in status["workers"]} == {"serving"}
    assert status["proxies"][0] | {"version": None} == {
        "name": "router-a",
        "kind": "sglang",
        "reachable": True,
        "reason": None,
        "registered": 2,
        "wanted": 2,
        "foreign": [],
        "failing": [],
        "withheld": [],
        "unsupported": [],
        "unpaired": {},
        "version": None,
    }

    assert folder.run("publish", "down", "rollout-1-0", "--reason", "out of memory").returncode == 0
    wait_until(lambda: len(listed(router.url)) == 1)
    wait_until(lambda: folder.status()[0] == 0)
    plain = folder.run("status")
    assert "router-a: out (serving: down (operator: out of memory))" in plain.stdout
    assert "converged" in plain.stdout

    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    said = log.read_text()
    assert "snapshot.saved" in said
    assert "leader.released" in said
    assert "Traceback" not in said
    assert folder.run("status").returncode == 1, "its server is gone, and the command says so"


def test_i1_drift_is_exit_2_until_a_controller_mends_it(folder, router, workers, nats_server, fleet):
    folder.configure(router.url, workers, f'[nats]\nurl = "{nats_server.url}"\n', fleet)
    process, _ = folder.up()
    folder.run("publish", "up", "rollout-0-0")
    wait_until(lambda: len(listed(router.url)) == 1)
    wait_until(lambda: folder.registered() == {"rollout-0-0": "registered"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0

    [worker_id] = listed(router.url).values()
    remove_by_hand(router.url, worker_id)
    wait_until(lambda: not listed(router.url))
    code, status = folder.status()
    assert code == 2
    assert status["converged"] is False
    assert status["workers"][0]["registrations"][0]["state"] == "missing"
    assert "DRIFT" in folder.run("status").stdout

    folder.up()
    wait_until(lambda: len(listed(router.url)) == 1)
    wait_until(lambda: folder.status()[0] == 0)


def test_i5_killed_and_started_again_it_goes_on_from_its_log(folder, router, workers):
    folder.configure(router.url, workers)
    process, _ = folder.up()
    folder.run("publish", "up", "rollout-0-0")
    wait_until(lambda: len(listed(router.url)) == 1)
    wait_until(lambda: folder.registered() == {"rollout-0-0": "registered"})
    process.kill()
    process.wait()

    folder.up()
    assert folder.run("publish", "up", "rollout-1-0").returncode == 0
    wait_until(lambda: len(listed(router.url)) == 2)
    wait_until(lambda: folder.registered() == {"rollout-0-0": "registered", "rollout-1-0": "registered"})


def test_a_second_controller_of_the_same_folder_is_refused(folder, router, workers):
    """Its embedded server has one owner. Controllers of one server stand by for each other: test_takeover.py."""
    folder.configure(router.url, workers)
    folder.up()
    second = folder.run("up")
    assert second.returncode == 1
    assert "Traceback" not in second.stderr
    assert "already" in second.stderr or "in use" in second.stderr


def test_a_server_that_is_not_there_is_one_clear_sentence(folder, router, workers):
    folder.configure(router.url, workers, '[nats]\nurl = "nats://127.0.0.1:1"\n')
    for command in (["up"], ["status"], ["log"]):
        ended = folder.run(*command)
        assert ended.returncode == 1
        assert "127.0.0.1:1" in ended.stderr
        assert "Traceback" not in ended.stderr
