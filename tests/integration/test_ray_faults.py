"""A Ray of two nodes under a real controller and a real router: what dies, and who notices, evicts and comes back.

One cluster, one controller process and one router for all: that they outlive each fault is what is tried here. The
tests build on each other, in order.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from support.programs import PATIENCE, ROLLBOOK, environment, wait_until
from support.ray import facts_about, told
from support.ray_cluster import HEAD, SECOND, two_nodes
from support.ray_cluster import environment as ray_environment
from support.routers import running_router
from support.stream import FleetStream

from rollbook.adapters.publisher import Publisher
from rollbook.events import Deregistering, FleetObserved, Registered, WorkerDown, WorkerStarted
from rollbook.projections.state.roster import Roster

pytestmark = [pytest.mark.ray, pytest.mark.router, pytest.mark.integration, pytest.mark.timeout(600)]

FLEET = f"faults-{os.getpid()}"
A, B, PINNED = "rollout-0-0", "rollout-1-0", "rollout-2-0"

DRIVER = """
import sys
import ray
from rollbook.adapters.ray.manager import RayWorkerManager
from support.ray import demo_spec

address, fleet, url, *names = sys.argv[1:]
ray.init(address=address, configure_logging=False, log_to_driver=False)
specs = [
    demo_spec(name, ray_options={"num_cpus": 1, "scheduling_strategy": "SPREAD"})
    if name != "rollout-2-0"
    else demo_spec(name, process_seconds=600.0, ray_options={"num_cpus": 0, "resources": {"second": 0.1}})
    for name in names
]
manager = RayWorkerManager.launch(
    specs, fleet=fleet, environ={"ROLLBOOK_NATS_URL": url}, detached=True, observe_seconds=3.0, seconds=120.0
)
manager.wait_until_up(seconds=120.0)
"""

ATTACHING = """
import sys
import msgspec, ray
from rollbook.adapters.ray.manager import RayWorkerManager

ray.init(address=sys.argv[1], configure_logging=False, log_to_driver=False)
states = RayWorkerManager.get_handle(f"rollbook-{sys.argv[2]}", seconds=60.0).list_workers(seconds=60.0)
print(msgspec.json.encode({state.name: state for state in states}).decode())
"""


def run(code, *arguments):
    """A driver: its end is part of what is tried."""
    line = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300, env=ray_environment())
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


class Scene:
    """All that outlives the faults."""

    def __init__(self, cluster, stream, router, folder, controller):
        self.cluster = cluster
        self.stream = stream
        self.router = router
        self.folder = folder
        self.controller = controller

    def launch(self, *names):
        run(DRIVER, self.cluster.address, FLEET, self.stream.url, *names)

    def states(self):
        return json.loads(run(ATTACHING, self.cluster.address, FLEET))

    def routed(self):
        with urllib.request.urlopen(f"{self.router}/workers", timeout=10) as answer:
            return {worker["url"] for worker in json.load(answer)["workers"]}

    def facts(self, kind):
        return [
            line.recorded.fact for line in self.stream.lines() if line.recorded and type(line.recorded.fact) is kind
        ]

    def life(self, worker):
        """The number of its newest life, where that was started and its process."""
        started = [fact for fact in facts_about(self.stream, worker) if type(fact) is WorkerStarted][-1]
        return started.incarnation, started.node, started.pid

    def registered(self, worker, incarnation):
        """The URL that was registered for that life, once the router lists it."""

        def look():
            urls = [
                fact.url
                for fact in self.facts(Registered)
                if (fact.worker, fact.incarnation) == (worker, incarnation) and fact.url in self.routed()
            ]
            return urls[-1] if urls else None

        return wait_until(look)

    def status(self):
        line = [*ROLLBOOK, "status"]
        ended = subprocess.run(
            line, cwd=self.folder, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        return ended.stdout + ended.stderr

    def log(self):
        return (self.folder / "up.log").read_text()


@contextlib.contextmanager
def controlling(folder, stream, router, address):
    (folder / "rollbook.toml").write_text(
        f'fleet = "{FLEET}"\n[nats]\nurl = "{stream.url}"\n[provider]\nkind = "ray"\naddress = "{address}"\n'
        f'[pools.rollout]\n[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "{router}"\n'
        'pools = ["rollout"]\n[reconcile]\nresync = 0.5\n'
    )
    with (folder / "up.log").open("w") as log:
        controller = subprocess.Popen([*ROLLBOOK, "up"], cwd=folder, env=environment(), stdout=log, stderr=log)
    try:
        wait_until(lambda: "controller.started" in (folder / "up.log").read_text() or controller.poll() is not None)
        assert controller.poll() is None, (folder / "up.log").read_text()
        yield controller
    finally:
        controller.kill()
        controller.wait()


@pytest.fixture(scope="module")
def scene(nats_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(two_nodes(cpus=2))
        stream = FleetStream(nats_server.url, FLEET).make()
        router = stack.enter_context(running_router(tmp_path_factory.mktemp("router"))).url
        controller = stack.enter_context(controlling(folder, stream, router, cluster.address))
        made = Scene(cluster, stream, router, folder, controller)
        made.launch(A, B, PINNED)
        yield made


def test_the_driver_is_gone_and_manager_and_workers_live_on_and_another_process_attaches(scene):
    states = scene.states()
    assert {name: state["stage"] for name, state in states.items()} == dict.fromkeys((A, B, PINNED), "serving")
    urls = {scene.registered(name, 1) for name in (A, B, PINNED)}
    assert urls == scene.routed()
    assert states[PINNED]["node"] == SECOND
    assert scene.facts(WorkerDown) == []


def test_an_actor_that_dies_is_down_by_rays_word_and_its_next_life_is_registered(scene):
    incarnation, _, pid = scene.life(A)
    os.kill(pid, signal.SIGKILL)
    scene.registered(A, incarnation + 1)
    facts = [fact for fact in facts_about(scene.stream, A) if fact.incarnation == incarnation]
    assert [fact.evidence for fact in facts if type(fact) is WorkerDown] == ["actor_dead"]
    assert scene.life(A)[0] == incarnation + 1


def test_the_workers_of_a_node_that_dies_are_down_and_their_next_lives_registered_where_they_are(scene):
    """I2, I6: at the address that the next life has, not at that of the one before."""
    before = {name: scene.life(name) for name in (A, B, PINNED)}
    lost = [name for name, (_, node, _) in before.items() if node == SECOND]
    assert PINNED in lost
    scene.cluster.kill(SECOND)
    for name in lost:
        incarnation = before[name][0]
        wait_until(
            lambda name=name, incarnation=incarnation: f"Down {incarnation}" in told(facts_about(scene.stream, name))
        )
        [down] = [
            fact
            for fact in facts_about(scene.stream, name)
            if type(fact) is WorkerDown and fact.incarnation == incarnation
        ]
        assert down.evidence == "actor_dead"
        if name != PINNED:
            assert HEAD in scene.registered(name, incarnation + 1)
            assert scene.life(name)[1] == HEAD
    wait_until(lambda: all(HEAD in url for url in scene.routed()) and len(scene.routed()) == 2)
    for name in {A, B} - set(lost):
        assert scene.life(name) == before[name]

    # The one that can live only there waits for the node to come back, and nobody says that it lives.
    scene.cluster.start(SECOND)
    assert SECOND in scene.registered(PINNED, before[PINNED][0] + 1)


def test_while_the_head_is_gone_nobody_is_evicted_and_with_another_one_the_controller_goes_on(scene):
    """Unknown is never no; I1."""
    wait_until(lambda: len(scene.routed()) == 3)
    routed, before = scene.routed(), len(scene.facts(Deregistering))
    scene.cluster.kill(HEAD)
    with Publisher(FLEET, scene.stream.url, name="somebody-else") as publisher:
        # Whoever is new is asked for, and so the provider is.
        newcomer = publisher.worker("rollout-7-0")
        newcomer.up()
        wait_until(lambda: "the head of the Ray cluster at" in scene.status())
        newcomer.down(evidence="exited")
    assert scene.controller.poll() is None
    assert scene.routed() == routed
    assert len(scene.facts(Deregistering)) == before

    scene.cluster.kill(SECOND)
    scene.cluster.start(HEAD)
    lives = {name: scene.life(name)[0] for name in (A, B)}
    scene.launch(A, B)
    for name in (A, B):
        assert scene.life(name)[0] > lives[name]
        assert HEAD in scene.registered(name, scene.life(name)[0])
    assert scene.controller.poll() is None
    assert "provider.ray.cluster_replaced" in scene.log()
    # Of whom nobody said anything it is not known that he is dead.
    assert any(SECOND in url for url in scene.routed())


def test_no_listing_of_all_that_said_that_one_who_lived_was_down(scene):
    """I3: neither of a manager that was restarted, nor of one that has not found everybody yet."""
    assert scene.facts(FleetObserved) != []
    roster = Roster()
    for line in scene.stream.lines():
        if line.recorded:
            roster.apply(line.recorded)
            assert all(worker.evidence != "not_observed" for worker in roster.workers.values()), line
