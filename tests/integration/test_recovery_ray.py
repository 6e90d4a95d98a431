"""Recoverers on a real Ray and a real NATS: racing for one cell, killed in the middle, in a crash loop; with a manager
that is killed in the middle, and one cell at a time. And planned stops."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager, contextmanager

import pytest
from support.ray import SECONDS, demo_spec, facts_about, gone, is_alive, told
from support.routers import running_router
from support.until import until

from rollbook.adapters.bootstrap import build
from rollbook.adapters.ray.provider import RayWorkerProvider
from rollbook.adapters.recovery import WorkerRecovery
from rollbook.adapters.settings import NatsSettings, ProxySettings, RayProvider, Settings
from rollbook.events import (
    Deregistered,
    RecoveryFailed,
    RecoveryStarted,
    Registered,
    WorkerCordoned,
    WorkerDown,
    WorkerDraining,
    WorkerStarted,
    WorkerUp,
)
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy, RecoveryPolicy
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

CELL = ("rollout-0-0", "rollout-0-1")
W = CELL[0]
HOLD_SECONDS = 3.0
"""In which somebody else would begin, if he could: several looks of a recoverer, and a process of Ray."""


def pools(**recovery):
    return {"rollout": PoolPolicy(requires_proxy=False, recovery=RecoveryPolicy(backoff_first=0.2, **recovery))}


def spec(name=W, **fields):
    return demo_spec(name, restart="recoverer", **fields)


@asynccontextmanager
async def recovering(stream, *names, **recovery):
    """Recoverers of these names, and what they counted."""
    provider = await RayWorkerProvider.create(stream.fleet, deadline=SECONDS)
    made = [WorkerRecovery(stream.fleet, stream.url, provider.cells(), pools(**recovery), name=name) for name in names]
    tasks = [asyncio.create_task(one.run()) for one in made]
    try:
        yield made
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end(*tasks)


@asynccontextmanager
async def leading(stream, tmp_path, *proxies):
    """A controller: it ends claims, and registers at these proxies."""
    settings = Settings(
        fleet=stream.fleet, provider=RayProvider(), nats=NatsSettings(url=stream.url), pools=pools(), proxies=proxies
    )
    provider = await RayWorkerProvider.create(stream.fleet, deadline=SECONDS)
    async with build(settings, tmp_path / ".rollbook", environ=os.environ, provider=provider) as built:
        running = asyncio.create_task(built.run())
        try:
            yield
        finally:
            built.controller.stop()
            await running


@contextmanager
def command(stream, local_ray, tmp_path, *arguments, claim=600):
    """`rollbook` with these arguments as a process of its own."""
    config = tmp_path / "rollbook.toml"
    config.write_text(
        f'fleet = "{stream.fleet}"\n[nats]\nurl = "{stream.url}"\n'
        f'[provider]\nkind = "ray"\naddress = "{local_ray}"\n'
        f"[pools.rollout]\nrequires_proxy = false\n[pools.rollout.recovery]\nclaim = {claim}\n"
    )
    path = os.pathsep.join(one for one in sys.path if one)
    line = [sys.executable, "-m", "rollbook.adapters.cli.main", *arguments, "-c", str(config)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}) as process:
        try:
            yield process
        finally:
            process.kill()


async def facts_once(stream, worker, seen):
    async def look():
        return await asyncio.to_thread(facts_about, stream, worker)

    return await until(look, seen, SECONDS)


def folded(stream):
    """What the whole log says of the workers."""
    roster = Roster()
    for line in stream.lines():
        if line.recorded:
            roster.apply(line.recorded)
    return roster.workers


def claimed(stream):
    return [name for name, one in folded(stream).items() if one.restarts is not None and one.restarts.claim is not None]


def up(life):
    return lambda facts: f"Up {life}" in told(facts)


def cordoned(recoverers):
    async def look():
        return sum(one.stats.cordoned for one in recoverers)

    return look


def restored(*recoverers):
    async def look():
        return sum(one.stats.restored for one in recoverers)

    return look


def most_at_a_time(stream, life):
    """How many workers had begun this life and not come up in it, at any moment by the log."""
    starting, most = set(), 0
    for line in stream.lines():
        match line.fact:
            case WorkerStarted(worker=name, incarnation=number) if number == life:
                starting.add(name)
            case WorkerUp(worker=name, incarnation=number) if number == life:
                starting.discard(name)
        most = max(most, len(starting))
    return most


async def started(manager):
    return {state.name: state for state in await asyncio.to_thread(manager.wait_until_up, seconds=SECONDS)}


async def test_i3_two_recoverers_race_for_one_cell_and_it_is_restarted_once(launch, stream):
    states = await started(launch(*map(spec, CELL)))
    async with recovering(stream, "one", "two") as (one, two):
        os.kill(states[CELL[1]].pid, signal.SIGKILL)
        assert "RecoveryStarted 1" not in told(await facts_once(stream, CELL[1], up(2)))
        facts = await facts_once(stream, W, up(2))
    assert one.stats.claimed + two.stats.claimed == 1
    assert [line for line in told(facts) if "Started" in line] == ["Started 1", "RecoveryStarted 1", "Started 2"]
    assert told(facts_about(stream, CELL[1])) == ["Started 1", "Up 1", "Down 1", "Started 2", "Up 2"]
    begun = [one for name in CELL for one in facts_about(stream, name) if isinstance(one, WorkerStarted)]
    assert [(one.cell_size, one.cell_incarnation) for one in begun] == [(2, 1), (2, 2)] * 2
    assert [fact for fact in facts if isinstance(fact, RecoveryFailed)] == []


async def test_i3_a_manager_killed_while_a_recoverer_restarts_through_it_ends_in_one_life(launch, stream, tmp_path):
    """Killed before the life has a number, and again while its code starts."""
    manager = launch(spec(actor="support.ray_workers:Told", kwargs={"folder": str(tmp_path)}))
    states = await started(manager)
    (tmp_path / "told").write_text("hang")

    async def look():
        [state] = await asyncio.to_thread(manager.list_workers, seconds=SECONDS)
        return state, folded(stream)[W], claimed(stream)

    async with recovering(stream, "one") as (one,):
        os.kill(states[W].pid, signal.SIGKILL)
        for word in ("RecoveryStarted", "Started"):
            former = (await asyncio.to_thread(manager.describe, seconds=SECONDS)).pid
            await facts_once(stream, W, lambda facts, word=word: any(line.startswith(word) for line in told(facts)[3:]))
            os.kill(former, signal.SIGKILL)
        (tmp_path / "told").unlink()
        state, worker, _ = await until(look, lambda now: now[0].stage == "serving" and now[2] == [], SECONDS)
        await until(restored(one), lambda count: count == 1, SECONDS)
        assert (one.stats.claimed, one.stats.failed) == (1, 0)
    assert (worker.phase, worker.incarnation) == (Phase.SERVING, state.incarnation)
    facts = facts_about(stream, W)
    begun = [fact for fact in facts if isinstance(fact, WorkerStarted)]
    assert begun[-1].pid == state.pid
    assert is_alive(state.pid)
    await gone(*{fact.pid for fact in begun} - {state.pid})
    assert told(facts)[:4] == ["Started 1", "Up 1", "Down 1", "RecoveryStarted 1"]
    assert told(facts)[-1] == f"Up {state.incarnation}"
    assert sum(isinstance(fact, RecoveryStarted) for fact in facts) == 1


async def test_two_cells_that_are_down_are_restarted_one_after_the_other(launch, stream, tmp_path):
    """`parallel` holds for all recoverers together."""
    cells = ("rollout-0-0", "rollout-1-0")
    for name in cells:
        (tmp_path / name).mkdir()
    told_by = [{"actor": "support.ray_workers:Told", "kwargs": {"folder": str(tmp_path / name)}} for name in cells]
    states = await started(launch(*(spec(name, **fields) for name, fields in zip(cells, told_by, strict=True))))
    for name in cells:
        (tmp_path / name / "told").write_text("hang")
        os.kill(states[name].pid, signal.SIGKILL)
        await facts_once(stream, name, lambda facts: "Down 1" in told(facts))

    async def begun():
        return [name for name in cells if "Started 2" in told(await asyncio.to_thread(facts_about, stream, name))]

    async with recovering(stream, "one", "two", parallel=1) as recoverers:
        [first] = await until(begun, lambda names: names, SECONDS)
        await asyncio.sleep(HOLD_SECONDS)
        assert await begun() == [first]
        for name in sorted(cells, key=lambda name: name != first):
            (tmp_path / name / "told").unlink()
            await facts_once(stream, name, up(2))
        await until(restored(*recoverers), lambda count: count == len(cells), SECONDS)
    assert most_at_a_time(stream, 2) == 1
    assert claimed(stream) == []


async def test_a_recoverer_killed_in_the_middle_leaves_a_claim_that_expires_and_another_takes_it(
    launch, stream, local_ray, tmp_path
):
    actor = {"actor": "support.ray_workers:Told", "kwargs": {"folder": str(tmp_path)}}
    states = await started(launch(spec(**actor, start_seconds=20.0)))
    (tmp_path / "told").write_text("hang")
    async with leading(stream, tmp_path):
        with command(stream, local_ray, tmp_path, "recover", "--name", "first", claim=15) as process:
            os.kill(states[W].pid, signal.SIGKILL)
            await facts_once(stream, W, lambda facts: "RecoveryStarted 1" in told(facts))
            process.send_signal(signal.SIGKILL)
        async with recovering(stream, "second"):
            facts = await facts_once(stream, W, lambda facts: any(isinstance(one, RecoveryFailed) for one in facts))
            (failed,) = [one for one in facts if isinstance(one, RecoveryFailed)]
            assert failed.reason == "the claim of first is over, and the cell is not up"
            # The manager may have been asked already: then that life goes down first, for it does not come to serve.
            await facts_once(stream, W, lambda facts: sum(isinstance(one, RecoveryStarted) for one in facts) == 2)
            (tmp_path / "told").unlink()
            facts = await facts_once(stream, W, lambda facts: isinstance(facts[-1], WorkerUp))
    claims = [line for line in stream.lines() if isinstance(line.fact, RecoveryStarted)]
    assert [one.recorded.source.rpartition("/")[2] for one in claims] == ["first", "second"]
    assert [one.fact.attempt for one in claims] == [1, 2]


async def test_a_crash_loop_ends_in_a_cordon_with_its_reason_and_is_left_alone(launch, stream, tmp_path):
    actor = {"actor": "support.ray_workers:Told", "kwargs": {"folder": str(tmp_path)}}
    states = await started(launch(spec(**actor)))
    (tmp_path / "told").write_text("fail")
    async with recovering(stream, "one", "two", attempts=2) as recoverers:
        os.kill(states[W].pid, signal.SIGKILL)
        facts = await facts_once(stream, W, lambda facts: any(getattr(one, "cordoned", False) for one in facts))
        await until(cordoned(recoverers), lambda count: count == 1, SECONDS)
    *_, last = [one for one in facts if isinstance(one, RecoveryFailed)]
    assert last.reason.startswith("crash loop: 2 restarts within 3600 s, and no end: ")
    assert "no weights at that path" in last.reason
    assert sum(isinstance(one, RecoveryStarted) for one in facts) == 2
    assert not any(isinstance(line.fact, WorkerCordoned) for line in stream.lines())


async def test_a_planned_stop_by_command_is_left_alone_by_recoverers(launch, stream, local_ray, tmp_path):
    other = "rollout-1-0"
    states = await started(launch(*map(spec, (*CELL, other))))
    async with recovering(stream, "one") as (one,):
        with command(stream, local_ray, tmp_path, "stop", W, "--reason", "scale down") as process:
            printed, _ = await asyncio.to_thread(process.communicate, timeout=SECONDS)
        assert (process.returncode, printed.split()) == (0, list(CELL))
        stopped = ["Started 1", "Up 1", "Draining 1", "Down 1"]
        for name in CELL:
            facts = await facts_once(stream, name, lambda facts: "Down 1" in told(facts))
            assert told(facts) == stopped
            (down,) = [fact for fact in facts if isinstance(fact, WorkerDown)]
            assert down.evidence == "planned"
        # Who reads the log in order and restarts what died later has seen the stop.
        os.kill(states[other].pid, signal.SIGKILL)
        await facts_once(stream, other, up(2))
        assert one.stats.claimed == 1
    for name in CELL:
        assert told(facts_about(stream, name)) == stopped
    for name, code in ((W, 0), ("rollout-7-0", 1)):
        with command(stream, local_ray, tmp_path, "start", name) as process:
            printed, _ = await asyncio.to_thread(process.communicate, timeout=SECONDS)
        assert (process.returncode, printed.split()) == (code, [name] if code == 0 else [])
    for name in CELL:
        assert told(await facts_once(stream, name, up(2))) == [*stopped, "Started 2", "Up 2"]


async def test_a_planned_stop_takes_a_cell_from_the_router_before_its_processes_end(
    launch, stream, local_ray, tmp_path
):
    states = await started(launch(*map(spec, CELL)))
    pids = [states[name].pid for name in CELL]

    def routed(router):
        with urllib.request.urlopen(f"{router.url}/workers", timeout=SECONDS) as answer:
            return {worker["url"] for worker in json.load(answer)["workers"]}

    def order(*kinds):
        """Which of these facts about the cell the log has, and in which order."""
        facts = [line.fact for line in stream.lines() if line.recorded and isinstance(line.fact, kinds)]
        return [(type(fact), fact.worker) for fact in facts if fact.worker in CELL]

    (tmp_path / "router").mkdir()
    with running_router(tmp_path / "router") as router:
        proxy = ProxySettings(name="router", kind="sglang", admin_url=router.url, pools=("rollout",))
        async with leading(stream, tmp_path, proxy):
            url = f"http://{states[W].addresses['primary']}"

            async def look():
                return await asyncio.to_thread(routed, router)

            await until(look, lambda now: now == {url}, SECONDS)
            # Listed is not confirmed yet, and a router that stands still from here on would confirm nothing.
            await until(lambda: asyncio.to_thread(order, Registered), lambda told: told == [(Registered, W)], SECONDS)
            seen = []
            with command(stream, local_ray, tmp_path, "stop", W, "--reason", "scale down") as process:
                with router.stopped():
                    draining = [(WorkerDraining, name) for name in CELL]
                    await until(
                        lambda: asyncio.to_thread(order, WorkerDraining), lambda told: told == draining, SECONDS
                    )
                    await asyncio.sleep(HOLD_SECONDS)
                    assert order(Deregistered, WorkerDown) == []
                    assert all(map(is_alive, pids)), "the router may still send them requests"
                while process.poll() is None:
                    # Whoever is not alive any more must not be routed now.
                    alive = [is_alive(pid) for pid in pids]
                    seen.append((all(alive), url in await look()))
            assert process.returncode == 0
            await gone(*pids)
            assert await look() == set()
    assert (False, True) not in seen
    *before, down, last = order(Registered, WorkerDraining, Deregistered, WorkerDown)
    assert before == [(Registered, W), *draining, (Deregistered, W)]
    assert {down, last} == {(WorkerDown, name) for name in CELL}
