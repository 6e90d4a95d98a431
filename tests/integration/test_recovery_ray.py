"""Recoverers on a real Ray and a real NATS: racing for one cell, killed in the middle, in a crash loop."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import pytest
from support.ray import SECONDS, demo_spec, facts_about, told
from support.until import until

from rollbook.adapters.bootstrap import build
from rollbook.adapters.ray.provider import RayWorkerProvider
from rollbook.adapters.recovery import WorkerRecovery
from rollbook.adapters.settings import NatsSettings, RayProvider, Settings
from rollbook.events import RecoveryFailed, RecoveryStarted, WorkerCordoned, WorkerDown, WorkerStarted, WorkerUp
from rollbook.projections.ending import end
from rollbook.projections.policy import PoolPolicy, RecoveryPolicy

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

CELL = ("rollout-0-0", "rollout-0-1")
W = CELL[0]


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
async def leading(stream, tmp_path):
    """A controller without proxies: it ends claims."""
    settings = Settings(
        fleet=stream.fleet, provider=RayProvider(), nats=NatsSettings(url=stream.url), pools=pools(), proxies=()
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


def up(life):
    return lambda facts: f"Up {life}" in told(facts)


def cordoned(recoverers):
    async def look():
        return sum(one.stats.cordoned for one in recoverers)

    return look


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
        for name in CELL:
            facts = await facts_once(stream, name, lambda facts: "Down 1" in told(facts))
            assert told(facts) == ["Started 1", "Up 1", "Draining 1", "Down 1"]
            (down,) = [fact for fact in facts if isinstance(fact, WorkerDown)]
            assert down.evidence == "planned"
        # Who reads the log in order and restarts what died later has seen the stop.
        os.kill(states[other].pid, signal.SIGKILL)
        await facts_once(stream, other, up(2))
        assert one.stats.claimed == 1
    for name in CELL:
        assert told(facts_about(stream, name)) == ["Started 1", "Up 1", "Draining 1", "Down 1"]
