"""The Ray manager on a real Ray and a real NATS: lives begin, end and are numbered, whoever is killed."""

import asyncio
import os
import re
import signal
import socket
import urllib.error
import urllib.request

import msgspec
import pytest
from support.process import python_process
from support.ray import DEMO, SECONDS, demo_spec, facts_about, facts_once, gone, is_alive, told
from support.stream import FleetStream
from support.until import until

from rollbook.adapters.publisher import Publisher
from rollbook.adapters.ray.border import ActorGone
from rollbook.adapters.ray.claims import KeptElsewhere
from rollbook.adapters.ray.host import CONCURRENCY, Identity, WorkerHost
from rollbook.adapters.ray.manager import FleetMismatch, RayWorkerManager, WorkersNotUp
from rollbook.adapters.ray.records import Record, Records
from rollbook.adapters.ray.seat import Neighbour, Seat
from rollbook.adapters.ray.spec import InvalidSpec
from rollbook.adapters.ray.store import RayStore
from rollbook.events import RecoveryFailed, WorkerDown, WorkerStarted
from rollbook.projections.ports import HostAndPort
from rollbook.projections.recovery.ports import Termination

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

W = "rollout-0-0"


def ask(address):
    """Who answers there: worker, incarnation and pid, as the headers say."""
    with urllib.request.urlopen(f"http://{address}/health", timeout=SECONDS) as answer:
        return tuple(answer.headers[f"X-Rollbook-{word}"] for word in ("Worker", "Incarnation", "Pid"))


async def state_of(manager, worker, seen):
    """Its state, once `seen` is true of it."""

    async def look():
        return manager.locate([worker], seconds=SECONDS).get(worker)

    return await until(look, lambda state: state is not None and seen(state), SECONDS)


async def next_life(manager, worker, former):
    """Its state, once a life after `former` serves."""
    return await state_of(manager, worker, lambda now: now.stage == "serving" and now.incarnation > former.incarnation)


def manager_pid(manager):
    return manager.describe(seconds=SECONDS).pid


async def test_lives_are_numbered_by_the_log_and_say_who_they_are(launch, stream, fleet, nats_server):
    async with Publisher(fleet, nats_server.url, name="somebody-else") as publisher:
        await publisher.worker_down("rollout-1-0", incarnation=7)
    manager = launch(demo_spec(W), demo_spec("rollout-1-0"))
    first, second = manager.wait_until_up(seconds=SECONDS)
    assert (first.incarnation, second.incarnation) == (1, 8)
    facts = await facts_once(stream, W, "Up 1")
    assert told(facts) == ["Started 1", "Up 1"]
    assert isinstance(facts[0], WorkerStarted)
    assert (facts[0].pid, facts[0].node) == (first.pid, first.node)
    assert told(await facts_once(stream, "rollout-1-0", "Up 8")) == ["Down 7", "Started 8", "Up 8"]
    assert ask(manager.get_worker_addr(W)) == (W, "1", str(first.pid))
    assert manager.get_worker_addr("rollout-1-0") == second.addresses["primary"]

    same = launch(demo_spec(W), demo_spec("rollout-2-0"))
    assert [state.name for state in same.wait_until_up(seconds=SECONDS)] == [W, "rollout-1-0", "rollout-2-0"]
    assert same.locate([W, "rollout-9-0"])[W].pid == first.pid


async def test_a_killed_worker_is_down_at_once_and_lives_again_on_its_url(launch, stream):
    """I3: the URL is the same, the identity is not."""
    manager = launch(demo_spec(W))
    (first,) = manager.wait_until_up(seconds=SECONDS)
    os.kill(first.pid, signal.SIGKILL)
    second = await next_life(manager, W, first)
    assert second.addresses == first.addresses
    assert ask(manager.get_worker_addr(W)) == (W, "2", str(second.pid))
    facts = await facts_once(stream, W, "Up 2")
    assert told(facts) == ["Started 1", "Up 1", "Down 1", "RecoveryStarted 1", "Started 2", "Up 2"]
    assert isinstance(facts[2], WorkerDown)
    assert facts[2].evidence == "actor_dead"
    assert "worker process has died" in facts[2].reason
    assert second.restarts == 1


async def test_a_worker_that_ends_in_order_says_why_and_may_stop_first(launch, stream, tmp_path):
    manager = launch(demo_spec(W, actor="support.ray_workers:Supervisor", kwargs={"folder": str(tmp_path)}))
    (first,) = manager.wait_until_up(seconds=SECONDS)
    (tmp_path / "end-1").write_text("its server exited with code 9")
    second = await next_life(manager, W, first)
    assert (tmp_path / "stopped-1").exists()
    os.kill(second.pid, signal.SIGTERM)
    third = await next_life(manager, W, second)
    assert (tmp_path / "stopped-2").exists()
    assert third.addresses == first.addresses
    downs = [fact for fact in await facts_once(stream, W, "Up 3") if isinstance(fact, WorkerDown)]
    assert [(down.evidence, down.reason) for down in downs] == [
        ("exited", "its server exited with code 9"),
        ("exited", "it received SIGTERM"),
    ]


async def test_a_former_port_that_is_taken_is_let_go(launch, local_ray, fleet):
    spec = demo_spec(W)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.2", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        Records(fleet, RayStore()).save(Record(specs=(spec,), detached=False, ports={W: {"primary": taken}}))
        (state,) = launch(spec).wait_until_up(seconds=SECONDS)
        assert state.addresses["primary"].port != taken


async def test_workers_that_cannot_start_say_why_and_disturb_nobody(launch, stream):
    bad = {
        "nowhere-0-0": ({"actor": "no.such.module:Worker"}, "importing no.such.module:Worker raised ModuleNotFound"),
        "broken-0-0": ({"actor": "support.ray_workers:Broken"}, "ValueError: no weights at that path"),
        "hangs-0-0": ({"actor": "support.ray_workers:Hangs", "start_seconds": 1}, "no answer within 1 s"),
        "deaf-0-0": ({"actor": "support.ray_workers:Deaf", "start_seconds": 10}, "it was not ready within 10 s"),
        # The second try may find the first one still waiting for CPUs.
        "nocpu-0-0": (
            {"ray_options": {"num_cpus": 4096}, "process_seconds": 1},
            "no answer within 1 s|its actor name is taken by",
        ),
    }
    specs = [demo_spec(name, max_restarts=1, **fields) for name, (fields, _) in bad.items()]
    manager = launch(demo_spec(W), *specs)
    good = await state_of(manager, W, lambda state: state.stage == "serving")
    for name, (_, reason) in bad.items():
        state = await state_of(manager, name, lambda state: state.stage == "given_up")
        assert re.search(reason, state.reason), name
        assert "given up after 1 restart" in state.reason
        if name == "nocpu-0-0":
            assert "; Ray was asked for CPU 4096; no node has CPU 4096: the closest of 1 has CPU 4" in state.reason
            # There never was a process, so there is no life for the log to number.
            assert facts_about(stream, name) == []
            continue
        facts = await facts_once(stream, name, "RecoveryFailed 2")
        assert told(facts) == ["Started 1", "Down 1", "RecoveryStarted 1", "Started 2", "Down 2", "RecoveryFailed 2"]
        assert [reason in fact.reason for fact in facts if isinstance(fact, WorkerDown | RecoveryFailed)] == [True] * 3
    assert manager.locate([W])[W] == good
    assert told(facts_about(stream, W)) == ["Started 1", "Up 1"]
    with pytest.raises(WorkersNotUp, match=r"5 of 6 workers do not serve: .*nowhere-0-0 is given_up: importing"):
        manager.wait_until_up(seconds=SECONDS)


async def test_a_killed_manager_comes_back_and_renumbers_only_the_dead(launch, stream):
    """I2: a life that goes on keeps its number; one that ended while nobody looked is over."""
    manager = launch(demo_spec(W), demo_spec("rollout-1-0"))
    alive, dead = manager.wait_until_up(seconds=SECONDS)
    first = manager_pid(manager)
    os.kill(first, signal.SIGKILL)
    os.kill(dead.pid, signal.SIGKILL)

    async def look():
        return manager_pid(manager)

    await until(look, lambda pid: pid != first, SECONDS)
    risen = await next_life(manager, dead.name, dead)
    assert risen.incarnation == 2
    facts = await facts_once(stream, dead.name, "Up 2")
    assert told(facts) == ["Started 1", "Up 1", "Down 1", "RecoveryStarted 1", "Started 2", "Up 2"]
    kept = await state_of(manager, W, lambda state: state.stage == "serving")
    assert (kept.pid, kept.incarnation, kept.addresses) == (alive.pid, 1, alive.addresses)
    assert set(told(facts_about(stream, W))) == {"Started 1", "Up 1"}

    os.kill(alive.pid, signal.SIGKILL)
    assert (await next_life(manager, W, alive)).incarnation == 2


async def test_a_worker_that_hangs_when_its_manager_comes_back_is_over_in_the_log_too(launch, stream):
    """Found by a chaos run: it was killed in silence, and its life stood in the log, and in the router, for ever."""
    manager = launch(demo_spec(W, restart="recoverer", process_seconds=600.0))
    [state] = manager.wait_until_up(seconds=SECONDS)
    os.kill(state.pid, signal.SIGSTOP)
    os.kill(manager_pid(manager), signal.SIGKILL)
    facts = await facts_once(stream, W, "Down 1")
    assert told(facts) == ["Started 1", "Up 1", "Down 1"]
    assert "no answer within 20 s" in facts[-1].reason
    await gone(state.pid)


async def test_i3_who_hangs_and_is_terminated_is_gone_before_the_next_life_begins(launch, stream):
    """Ray calls its actor dead at once, and kills the process 5 s later: it had its port, and its GPU, for as long."""
    manager = launch(demo_spec(W))
    [state] = manager.wait_until_up(seconds=SECONDS)
    os.kill(state.pid, signal.SIGSTOP)
    assert await asyncio.to_thread(manager.terminate, W, 1) is Termination.TERMINATED
    again = await next_life(manager, W, state)
    assert not is_alive(state.pid)
    assert again.addresses == state.addresses


async def test_detached_workers_outlive_their_manager_and_are_found_by_the_next(launch, local_ray, stream):
    import ray

    manager = launch(demo_spec(W), demo_spec("rollout-1-0"), detached=True)
    first, second = manager.wait_until_up(seconds=SECONDS)
    ray.kill(ray.get_actor(manager.name, namespace=manager.namespace))
    os.kill(second.pid, signal.SIGKILL)
    await gone(second.pid)
    with pytest.raises(ActorGone, match="there is no actor"):
        RayWorkerManager.get_handle(manager.name)
    assert ask(first.addresses["primary"]) == (W, "1", str(first.pid))

    manager = launch(demo_spec("rollout-1-0"), detached=True)
    states = {state.name: state for state in manager.wait_until_up(seconds=SECONDS)}
    assert (states[W].pid, states[W].incarnation) == (first.pid, 1)
    assert states["rollout-1-0"].incarnation == 2
    assert states["rollout-1-0"].addresses == second.addresses
    await facts_once(stream, "rollout-1-0", "Up 2")
    with pytest.raises(FleetMismatch, match="detached: True"):
        launch(demo_spec(W))


async def no_manager(name):
    """Wait until Ray knows none of this name."""

    async def look():
        try:
            return RayWorkerManager.get_handle(name)
        except ActorGone:
            return None

    await until(look, lambda found: found is None, SECONDS)


async def at_once(*launches):
    """What each of them gives, or how it is refused."""
    return await asyncio.gather(*(asyncio.to_thread(one) for one in launches), return_exceptions=True)


async def test_i3_of_two_managers_that_are_launched_at_one_moment_with_the_same_workers_one_is_refused(
    launch, stream, fleet, local_ray
):
    names = [f"rollbook-{fleet}", f"rollbook-{fleet}/two"]
    mine, more, other = W, "rollout-1-0", "rollout-2-0"
    launched = await at_once(
        lambda: launch(demo_spec(mine), demo_spec(more), name=names[0]),
        lambda: launch(demo_spec(other), demo_spec(more), demo_spec(mine), name=names[1]),
    )
    [refused] = [one for one in launched if isinstance(one, Exception)]
    [manager] = [one for one in launched if isinstance(one, RayWorkerManager)]
    [second] = {*names} - {manager.name}
    because = f"manager {second!r} cannot keep worker rollout-.* of fleet {fleet!r}: manager {manager.name!r} "
    assert isinstance(refused, KeptElsewhere)
    assert re.match(because, str(refused))
    states = {state.name: state for state in manager.wait_until_up(seconds=SECONDS)}
    await no_manager(second)

    # What the first does not have, the second may. What it has it keeps, also while Ray starts it again.
    beside = launch(demo_spec("rollout-3-0"), name=second)
    [apart] = beside.wait_until_up(seconds=SECONDS)
    os.kill(manager_pid(manager), signal.SIGKILL)
    with pytest.raises(KeptElsewhere, match=because):
        launch(demo_spec("rollout-4-0"), demo_spec(more, cell="9"), name=second)
    assert beside.list_workers(seconds=SECONDS) == [apart]
    kept = manager.wait_until_up(seconds=SECONDS)
    assert {state.name: state.pid for state in kept} == {name: state.pid for name, state in states.items()}

    # What it has let go of is free.
    manager.stop(seconds=SECONDS)
    assert is_alive(apart.pid)
    launch(demo_spec(more), name=second).wait_until_up(seconds=SECONDS)
    assert [state.incarnation for state in beside.list_workers(seconds=SECONDS)] == [1, 2]
    facts = told(await facts_once(stream, more, "Up 2"))
    assert [fact for fact in facts if fact != "Up 1"] == ["Started 1", "Down 1", "Started 2", "Up 2"]


async def test_i3_what_a_manager_that_is_gone_left_alive_goes_to_one_of_those_that_are_launched_at_one_moment(
    launch, stream, fleet, local_ray
):
    import ray

    first = launch(demo_spec(W), demo_spec("rollout-1-0"), detached=True)
    states = {state.name: state.pid for state in first.wait_until_up(seconds=SECONDS)}
    beside = launch(demo_spec("rollout-2-0"), detached=True, name=f"rollbook-{fleet}/beside")
    assert [state.name for state in beside.wait_until_up(seconds=SECONDS)] == ["rollout-2-0"]
    ray.kill(ray.get_actor(first.name, namespace=first.namespace))
    await no_manager(first.name)

    launched = await at_once(
        lambda: launch(demo_spec("rollout-1-0"), detached=True, name=f"rollbook-{fleet}/two"),
        lambda: launch(demo_spec(W), demo_spec("rollout-1-0"), detached=True, name=f"rollbook-{fleet}/three"),
    )
    [refused] = [one for one in launched if isinstance(one, Exception)]
    assert isinstance(refused, KeptElsewhere)
    [heir] = [one for one in launched if isinstance(one, RayWorkerManager)]
    assert {state.name: state.pid for state in heir.wait_until_up(seconds=SECONDS)} == states
    assert told(await facts_once(stream, W, "Up 1"))[:2] == ["Started 1", "Up 1"]
    # Names of Ray's actors are unique within a namespace only; the log knows none.
    with pytest.raises(KeptElsewhere, match=rf"manager '{heir.name}' \(namespace 'rollbook'\) keeps it"):
        launch(demo_spec("rollout-1-0"), detached=True, namespace=f"beside-{fleet}")


async def test_without_its_manager_a_fleet_that_is_not_detached_ends(launch, local_ray):
    import ray

    manager = launch(demo_spec(W))
    (state,) = manager.wait_until_up(seconds=SECONDS)
    assert ask(state.addresses["primary"]) == (W, "1", str(state.pid))
    ray.kill(ray.get_actor(manager.name, namespace=manager.namespace))
    await gone(state.pid)
    with pytest.raises(urllib.error.URLError):
        ask(state.addresses["primary"])
    with pytest.raises(ActorGone, match="there is no actor"):
        RayWorkerManager.get_handle(manager.name)


async def test_a_fleet_that_is_not_detached_ends_with_its_driver(local_ray, stream, fleet, nats_server):
    code = """
        import sys, ray
        from rollbook.adapters.ray.manager import RayWorkerManager
        from rollbook.adapters.ray.spec import ServeWorkerSpec
        ray_address, fleet, nats, actor = sys.argv[1:]
        ray.init(address=ray_address, configure_logging=False, log_to_driver=False)
        spec = ServeWorkerSpec(name="rollout-0-0", actor=actor, ray_options={"num_cpus": 0})
        # Nothing holds what launch returns: the fleet lives on all the same.
        RayWorkerManager.launch([spec], fleet=fleet, environ={"ROLLBOOK_NATS_URL": nats})
        (state,) = RayWorkerManager.get_handle(f"rollbook-{fleet}").wait_until_up(seconds=90)
        print(state.pid, flush=True)
        sys.stdin.read()
    """
    with python_process(code, local_ray, fleet, nats_server.url, DEMO) as driver:
        pid = int(driver.stdout.readline())
        assert is_alive(pid)
        driver.kill()
        await gone(pid)


async def test_a_log_that_cannot_number_a_life_costs_no_worker(launch, start_nats, fleet):
    """I8: what happened is said when the log is back; until then the process waits for its number."""
    server = start_nats()
    port = server.port
    server.kill()
    manager = launch(demo_spec(W), environ={"ROLLBOOK_NATS_URL": f"nats://127.0.0.1:{port}"})
    waiting = await state_of(manager, W, lambda state: state.stage == "waiting")
    assert "has not numbered" in waiting.reason
    assert not waiting.alive
    assert is_alive(waiting.pid)

    server.start()
    own = FleetStream(server.url, fleet).make()
    state = await state_of(manager, W, lambda state: state.stage == "serving")
    assert (state.pid, state.incarnation) == (waiting.pid, 1)
    await facts_once(own, W, "Up 1")

    # A life that ends before it had its number is told of all the same, and the next one is another.
    server.kill()
    os.kill(state.pid, signal.SIGKILL)
    unnumbered = await state_of(manager, W, lambda now: now.stage == "waiting" and now.pid != state.pid)
    os.kill(unnumbered.pid, signal.SIGKILL)
    third = await state_of(manager, W, lambda now: now.stage == "waiting" and now.pid != unnumbered.pid)
    server.start()
    last = await state_of(manager, W, lambda state: state.stage == "serving")
    assert (last.pid, last.incarnation) == (third.pid, 3)
    assert [word for word in told(await facts_once(own, W, "Up 3")) if "Recovery" not in word] == [
        "Started 1",
        "Up 1",
        "Down 1",
        "Started 2",
        "Down 2",
        "Started 3",
        "Up 3",
    ]


def test_what_cannot_be_launched_is_refused_before_anything_starts(launch, local_ray, fleet):
    manager = launch(demo_spec(W, max_restarts=0))
    with pytest.raises(InvalidSpec, match="'rollout-1-0' is described twice"):
        launch(demo_spec("rollout-1-0"), demo_spec("rollout-1-0"))
    with pytest.raises(InvalidSpec, match="'rollout-0-0' runs with another description"):
        launch(demo_spec("rollout-1-0"), demo_spec(W, max_restarts=1))
    with pytest.raises(InvalidSpec, match=r"Ray does not take its ray_options: .*num_gpu"):
        launch(demo_spec("rollout-1-0", ray_options={"num_gpu": 1}))
    assert [state.name for state in manager.list_workers(seconds=SECONDS)] == [W]
    with pytest.raises(FleetMismatch, match=f"keeps fleet '{fleet}'"):
        RayWorkerManager.launch([], fleet="another", environ={"ROLLBOOK_NATS_URL": "nats://x"}, name=manager.name)
    with pytest.raises(ActorGone, match=r"there is no actor 'rollbook-nobody' \(namespace 'rollbook'\)"):
        RayWorkerManager.get_handle("rollbook-nobody")


async def test_managers_that_were_restarted_during_a_long_start_keep_nobody_from_being_answered(local_ray, fleet):
    """Each of them asks the worker to begin, and its process has so many threads."""
    import ray

    spec = demo_spec(W, actor="support.ray_workers:Hangs")
    own = Neighbour({"primary": HostAndPort("127.0.0.2", 1)})
    seat = Seat(
        name=W, incarnation=1, rank=0, cell_size=1, cell_incarnation=0, host="127.0.0.2", rank0=W, workers={W: own}
    )
    options = {"num_cpus": 0, "max_concurrency": CONCURRENCY}
    host = ray.remote(WorkerHost).options(**options).remote(fleet, msgspec.json.encode(spec))
    try:
        asked = [host.begin.remote(msgspec.json.encode(seat), 0.1) for _ in range(3 * CONCURRENCY)]
        who = await asyncio.wait_for(host.identity.remote(), SECONDS)
        assert msgspec.json.decode(who, type=Identity).worker == W
        assert len(asked) == 3 * CONCURRENCY
    finally:
        ray.kill(host)


async def test_of_a_launch_that_is_refused_no_manager_is_left(launch, local_ray, fleet):
    with pytest.raises(InvalidSpec, match="Ray does not take its ray_options"):
        launch(demo_spec(W, ray_options={"num_gpu": 1}), detached=True)
    await no_manager(f"rollbook-{fleet}")


async def test_what_is_launched_while_its_manager_is_being_stopped_is_refused_and_not_left_behind(
    launch, local_ray, stream, fleet
):
    import ray

    manager = launch(demo_spec(W, actor="support.ray_workers:Slow"), detached=True)
    manager.wait_until_up(seconds=SECONDS)
    stopping = asyncio.create_task(asyncio.to_thread(manager.stop, seconds=SECONDS))
    await facts_once(stream, W, "Down 1")
    with pytest.raises(ActorGone):
        await asyncio.to_thread(launch, demo_spec("rollout-1-0"), detached=True)
    await stopping
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    assert not [name for name in names if fleet in name]
    assert Records(fleet, RayStore()).load() == {}
    assert RayStore().keys(f"keeper/{fleet}/".encode()) == []


async def test_a_stopped_fleet_is_down_as_planned_and_leaves_nothing(launch, local_ray, stream, fleet, tmp_path):
    import ray

    supervisor = demo_spec(W, actor="support.ray_workers:Supervisor", kwargs={"folder": str(tmp_path)})
    manager = launch(supervisor, demo_spec("rollout-1-0"))
    states = manager.wait_until_up(seconds=SECONDS)
    assert manager.stop("the run is over", seconds=SECONDS) == []
    assert (tmp_path / "stopped-1").exists()
    await gone(*(state.pid for state in states))
    for worker in (W, "rollout-1-0"):
        facts = facts_about(stream, worker)
        assert told(facts) == ["Started 1", "Up 1", "Down 1"]
        assert (facts[-1].evidence, facts[-1].reason) == ("planned", "the run is over")
    assert Records(fleet, RayStore()).load() == {}
    assert RayStore().keys(f"keeper/{fleet}/".encode()) == []
    with pytest.raises(ActorGone):
        manager.list_workers()
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    assert not [name for name in names if fleet in name]
    with pytest.raises(urllib.error.URLError):
        ask(states[0].addresses["primary"])
