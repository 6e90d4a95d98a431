"""Cells of several workers, and commands, on a real Ray and a real NATS: they start, live and end together."""

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from support.ray import SECONDS, end_fleet, facts_about, facts_once, gone, is_alive, told
from support.until import until

from rollbook.adapters.demo.cluster import ADDRESS
from rollbook.adapters.ray.border import NAMESPACE, RayThread, host_name
from rollbook.adapters.ray.hosts import Hosts
from rollbook.adapters.ray.manager import WorkersNotUp
from rollbook.adapters.ray.ports import PortInfo
from rollbook.adapters.ray.records import Records
from rollbook.adapters.ray.spec import CommandWorkerSpec, InvalidSpec
from rollbook.adapters.ray.store import RayStore
from rollbook.events import RecoveryStarted, WorkerDown, WorkerStarted, WorkerUp
from rollbook.projections.recovery.ports import NotStarted, Termination

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ray.md"
SERVE = f"exec {sys.executable} -S -m http.server {{primary.port}} --bind {{host}}"
FIRST, SECOND = "rollout-0-0", "rollout-0-1"


def spec(name=FIRST, command=SERVE, **fields):
    given = {"ready_path": "/", "ray_options": {"num_cpus": 0}, "process_seconds": SECONDS, "start_seconds": SECONDS}
    return CommandWorkerSpec(name=name, command=command, **given | fields)


def noted(folder):
    """A command that notes its process and its line, and serves."""
    return f"echo $$ > {folder}/{{name}}-{{incarnation}}; echo $SAID > {folder}/said-{{name}}; " + SERVE


async def pid_of(folder, name, incarnation):
    """The process of the command itself."""
    path = folder / f"{name}-{incarnation}"

    async def look():
        return path.read_text().strip() if path.exists() else ""

    return int(await until(look, lambda text: text, SECONDS))


async def states(manager, seen):
    """The states by name, in their order, once `seen` is true of them."""

    async def look():
        found = await asyncio.to_thread(manager.list_workers, seconds=SECONDS)
        return {state.name: state for state in sorted(found, key=lambda state: state.name)}

    return await until(look, seen, SECONDS)


def serving(*lives):
    """Whether all serve, in these lives."""
    return lambda found: [(s.stage, s.incarnation) for s in found.values()] == [("serving", life) for life in lives]


def at_stage(stage):
    return lambda found: all(state.stage == stage for state in found.values())


def rooms(fleet):
    """The placement groups of the fleet that are not removed, by cell."""
    from ray.util.placement_group import placement_group_table

    prefix = host_name(fleet, "")
    return {
        one["name"].removeprefix(prefix): one
        for one in placement_group_table().values()
        if one["name"].startswith(prefix) and one["state"] != "REMOVED"
    }


def actors(fleet):
    import ray

    return [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if f"{fleet}/" in one["name"]]


def is_free(port):
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((ADDRESS, port))
        except OSError:
            return False
        return True


async def test_the_worked_example_of_the_page(local_ray, stream, fleet, nats_server, monkeypatch):
    """[I3] of `terminate`, and every call of the page."""
    monkeypatch.setenv("ROLLBOOK_NATS_URL", nats_server.url)
    code = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    namespace = {"fleet": fleet}
    try:
        await asyncio.to_thread(exec, code, namespace)
        manager = namespace["manager"]
        names = [f"rollout-{cell}-{rank}" for cell in range(2) for rank in range(2)]
        found = await states(manager, serving(2, 2, 2, 2))
        assert list(found) == names
        assert [state.cell_incarnation for state in found.values()] == [2, 2, 2, 2]
        for rank in (0, 1):
            ours = found[f"rollout-1-{rank}"]
            assert ours.addresses.keys() == {"primary", "master", "rpc"}
            assert ours.addresses["master"] == found["rollout-1-0"].addresses["master"]
        assert found["rollout-0-0"].addresses["master"] != found["rollout-1-0"].addresses["master"]
        assert manager.get_worker_url("rollout-1-1", "rpc") == f"http://{found['rollout-1-1'].addresses['rpc']}"
        assert {name: len(room["bundles"]) for name, room in rooms(fleet).items()} == {"rollout/0": 2, "rollout/1": 2}

        # What `terminate` killed is not asked again: another life is never touched.
        assert manager.terminate("rollout-0-1", 1, seconds=SECONDS) is Termination.STALE
        assert manager.terminate("nobody-0-0", 1, seconds=SECONDS) is Termination.ALREADY_GONE
        for name, evidence in (("rollout-0-1", "exited"), ("rollout-1-1", "planned")):
            facts = await facts_once(stream, name, "Up 2")
            assert told(facts) == ["Started 1", "Up 1", "Down 1", "Started 2", "Up 2"]
            assert facts[2].evidence == evidence
            assert {(fact.cell_size, fact.cell_incarnation) for fact in facts} == {(2, 1), (2, 2)}
        facts = await facts_once(stream, "rollout-0-0", "Up 2")
        assert facts[2].reason == "rollout-0-1 of its cell ended: it was terminated to be replaced"
        assert [fact.incarnation for fact in facts if isinstance(fact, RecoveryStarted)] == [1]
        assert manager.stop("the run is over", seconds=SECONDS) == []
        assert rooms(fleet) == {}
        assert actors(fleet) == []
        assert Records(fleet, RayStore()).load() == {}
    finally:
        end_fleet(fleet)


async def test_a_command_and_its_actor_end_with_each_other(launch, stream, tmp_path):
    manager = launch(spec(command=noted(tmp_path), urls={"primary": "http://{host}:{port}/v1/.."}))
    (first,) = await asyncio.to_thread(manager.wait_until_up, seconds=SECONDS)
    command = await pid_of(tmp_path, FIRST, 1)
    assert manager.get_worker_url(FIRST) == f"http://{first.addresses['primary']}/v1/.."

    os.kill(command, signal.SIGKILL)
    found = await states(manager, serving(2))
    assert not is_alive(first.pid)
    assert found[FIRST].addresses == first.addresses
    (down,) = [fact for fact in await facts_once(stream, FIRST, "Up 2") if isinstance(fact, WorkerDown)]
    assert (down.evidence, down.reason) == ("exited", "its command was ended by signal 9 (SIGKILL)")

    command = await pid_of(tmp_path, FIRST, 2)
    os.kill(found[FIRST].pid, signal.SIGKILL)
    await gone(command)
    await states(manager, serving(3))
    *_, down = [fact for fact in await facts_once(stream, FIRST, "Up 3") if isinstance(fact, WorkerDown)]
    assert down.evidence == "actor_dead"

    command = await pid_of(tmp_path, FIRST, 3)
    await asyncio.to_thread(manager.stop, seconds=SECONDS)
    assert not is_alive(command)


async def test_a_rank_that_dies_ends_its_cell_and_every_rank_is_told_of_all(launch, stream, fleet, tmp_path):
    ports = (
        PortInfo(name="master", per="master"),
        PortInfo(),
        PortInfo(name="rpc", count=3),
    )
    said = {"SAID": "{rank}/{cell_size} {cell_incarnation} {master} {rank0.primary} {rpc} {rpc[2].port}"}
    other = spec("judge-0-0", noted(tmp_path), env={"SAID": "{workers.rollout-0-1.primary.url}"})
    manager = launch(*(spec(name, noted(tmp_path), ports=ports, env=said) for name in (SECOND, FIRST)), other)
    await asyncio.to_thread(manager.wait_until_up, seconds=SECONDS)
    found = await states(manager, serving(1, 1, 1))
    assert await Hosts(fleet, NAMESPACE, RayThread(), None).listed() == found.keys()
    master, head = (found[FIRST].addresses[kind] for kind in ("master", "primary"))
    for rank, name in enumerate((FIRST, SECOND)):
        rpc = found[name].addresses["rpc"]
        assert (tmp_path / f"said-{name}").read_text() == f"{rank}/2 1 {master} {head} {rpc} {rpc.port + 2}\n"
        facts = await facts_once(stream, name, "Up 1")
        assert [type(fact) for fact in facts] == [WorkerStarted, WorkerUp]
        assert {(fact.cell_size, fact.cell_incarnation) for fact in facts} == {(2, 1)}
    assert (tmp_path / "said-judge-0-0").read_text() == f"http://{found[SECOND].addresses['primary']}\n"
    commands = [await pid_of(tmp_path, name, 1) for name in (FIRST, SECOND)]

    os.kill(commands[1], signal.SIGKILL)
    later = await states(manager, serving(1, 2, 2))
    await gone(*commands, found[FIRST].pid, found[SECOND].pid)
    assert later["judge-0-0"] == found["judge-0-0"]
    assert [later[name].addresses for name in (FIRST, SECOND)] == [found[name].addresses for name in (FIRST, SECOND)]
    facts = await facts_once(stream, SECOND, "Up 2")
    assert told(facts) == ["Started 1", "Up 1", "Down 1", "Started 2", "Up 2"]
    facts = await facts_once(stream, FIRST, "Up 2")
    assert told(facts) == ["Started 1", "Up 1", "Down 1", "RecoveryStarted 1", "Started 2", "Up 2"]
    assert facts[2].reason == f"{SECOND} of its cell ended: its command was ended by signal 9 (SIGKILL)"
    assert {fact.cell_incarnation for fact in facts[4:]} == {2}

    # A manager that comes back goes on with a cell that is whole, and ends one that is not.
    manager_pid = manager.describe(seconds=SECONDS).pid
    os.kill(manager_pid, signal.SIGKILL)
    os.kill(later[SECOND].pid, signal.SIGKILL)
    last = await states(manager, serving(1, 3, 3))
    assert last["judge-0-0"].pid == found["judge-0-0"].pid
    assert last[FIRST].pid != later[FIRST].pid
    assert [last[name].cell_incarnation for name in (FIRST, SECOND)] == [3, 3]
    facts = await facts_once(stream, FIRST, "Up 3")
    assert [fact.reason for fact in facts if isinstance(fact, WorkerDown)][-1].startswith(f"{SECOND} of its cell ended")


async def test_if_one_rank_does_not_come_to_serve_nothing_is_left_of_any(launch, stream, fleet, tmp_path):
    import ray

    common = {
        "placement": "STRICT_PACK",
        "ray_options": {"num_cpus": 1},
        "max_restarts": 0,
        "ports": (PortInfo(), PortInfo(name="rpc", count=2)),
    }
    deaf = spec(SECOND, f"echo $$ > {tmp_path}/{SECOND}-1; sleep 600 & wait", **common | {"start_seconds": 8.0})
    before = ray.available_resources().get("CPU")
    manager = launch(spec(FIRST, noted(tmp_path), **common), deaf)
    waiting = asyncio.create_task(asyncio.to_thread(manager.wait_until_up, seconds=SECONDS))  # holds up nobody below
    commands = [await pid_of(tmp_path, name, 1) for name in (FIRST, SECOND)]
    starting = await states(manager, lambda found: any(state.addresses for state in found.values()))
    ports = [address.port for state in starting.values() for address in state.addresses.values()]
    assert rooms(fleet)["rollout/0"]["state"] == "CREATED"

    given_up = await states(manager, at_stage("given_up"))
    await gone(*commands, *(state.pid for state in starting.values()))
    assert "it was not ready within 8 s" in given_up[SECOND].reason
    assert rooms(fleet) == {}
    assert actors(fleet) == []
    assert all(map(is_free, ports))
    for name in (FIRST, SECOND):
        assert told(await facts_once(stream, name, "Down 1")) == ["Started 1", "Down 1"]
    assert facts_about(stream, FIRST)[-1].reason.startswith(f"{SECOND} of its cell ended: it was not ready")

    async def cpus():
        return ray.available_resources().get("CPU")

    await until(cpus, lambda now: now == before, SECONDS)
    with pytest.raises(WorkersNotUp, match="2 of 2 workers do not serve"):
        await waiting


async def test_a_port_that_is_taken_and_room_that_nobody_has_are_named(launch, fleet):
    with socket.socket() as stranger:
        stranger.bind((ADDRESS, 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        nowhere = {"placement": "STRICT_PACK", "ray_options": {"num_cpus": 3}, "process_seconds": 3.0}
        static = spec("static-0-0", ports=(PortInfo(port=port),), max_restarts=0)
        manager = launch(
            static,
            *(spec(f"wide-0-{rank}", max_restarts=0, **nowhere) for rank in (0, 1)),
        )
        found = await states(manager, at_stage("given_up"))
    assert f"port 'primary': {port} is in use on this node; free it, or give 0" in found["static-0-0"].reason
    reason = found["wide-0-0"].reason + found["wide-0-1"].reason
    assert "no answer within 3 s, and it is killed" in reason
    assert "Ray was asked for 2 x (CPU 3) (STRICT_PACK); no node has CPU 6: the closest of 1 has CPU 4" in reason
    assert rooms(fleet) == {}
    assert actors(fleet) == []
    with pytest.raises(InvalidSpec, match="cell wide/0 runs with the workers wide-0-0, wide-0-1, not with wide-0-0"):
        launch(spec("wide-0-0", max_restarts=0, **nowhere))
    launch(static)  # once the port is free: what was given up gets another chance
    await states(manager, lambda found: found["static-0-0"].stage == "serving")


async def test_what_was_stopped_stays_stopped_until_it_is_started(launch, stream):
    manager = launch(spec(), spec("rollout-1-0"))
    await asyncio.to_thread(manager.wait_until_up, seconds=SECONDS)
    manager.stop_cells([FIRST], "scale down", seconds=SECONDS)
    manager.stop_cells([FIRST], "again", seconds=SECONDS)
    os.kill(manager.describe(seconds=SECONDS).pid, signal.SIGKILL)
    found = await states(
        manager, lambda found: found["rollout-1-0"].stage == "serving" and found[FIRST].stage == "stopped"
    )
    assert found["rollout-1-0"].incarnation == 1
    assert {state.name for state in manager.wait_until_up(seconds=SECONDS)} == {FIRST, "rollout-1-0"}
    assert told(facts_about(stream, FIRST)) == ["Started 1", "Up 1", "Down 1"]
    with pytest.raises(NotStarted, match="the manager has no worker 'rollout-9-0'; launch it"):
        manager.start_cells([FIRST, "rollout-9-0"])
    manager.start_cells([FIRST, "rollout-1-0"], seconds=SECONDS)
    await states(manager, serving(2, 1))
    assert told(await facts_once(stream, FIRST, "Up 2")) == ["Started 1", "Up 1", "Down 1", "Started 2", "Up 2"]
