"""No program's wall clock matters: budget, back-off, claims and suspensions go by the log's and by elapsed time."""

import asyncio
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core import CODEC
from support.fleet import Fleet, HookedLog, drafted, on_virtual_time
from support.fleet import W as WORKER
from support.recovering import NAMES, POLICY, Scene, W

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import EPOCH, LoopClock
from rollbook.events import RecoveryFailed, RecoveryStarted, WorkerResumed, WorkerSuspended, WorkerUp
from rollbook.events.times import rfc3339
from rollbook.projections.leading.terms import Terms
from rollbook.projections.log.logtime import LogTime
from rollbook.projections.log.projector import Projector

HOUR, DAY = 3600.0, 86_400.0
WRONG = [-3 * DAY, -HOUR, HOUR, 3 * DAY]


class WrongClock(LoopClock):
    """A machine whose wall clock is set to whatever somebody likes, at any moment."""

    wrong = 0.0

    def now(self):
        return super().now() + self.wrong


# ---------------------------------------------------------------- the log's clock


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)), min_size=1))
def test_the_logs_clock_is_never_ahead_of_it_and_never_set_back(heard):
    """Each stamp is as old as its way here was long."""

    async def schedule():
        clock = LoopClock()
        time, last = LogTime(clock), 0.0
        assert time.now() == 0.0
        for pause, way in heard:
            await asyncio.sleep(pause)
            time.heard(clock.now() - way)
            time.heard(0.0)
            assert last <= time.now() <= clock.now() + 1e-3
            last = time.now()

    virtual.run(schedule())


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize("wrong", WRONG)
@on_virtual_time
async def test_i1_a_recoverer_whose_clock_is_set_between_two_attempts_goes_on_restarting(wrong):
    scene, clock = Scene(msgspec.structs.replace(POLICY, backoff_first=8.0)), WrongClock()
    await scene.up()
    scene.recover("a", clock)
    scene.manager.doomed = {W}
    await scene.manager.kill(W)
    await scene.until(lambda: scene.facts(RecoveryFailed))
    clock.wrong = wrong
    scene.manager.doomed = set()
    began = scene.clock.monotonic()
    await scene.until(scene.well, 60)
    assert scene.clock.monotonic() - began == pytest.approx(8, abs=3)


@pytest.mark.parametrize("wrong", WRONG)
@on_virtual_time
async def test_a_crash_loop_is_one_whatever_the_clocks_of_the_recoverers_say(wrong):
    scene, clock = Scene(), WrongClock()
    clock.wrong = wrong
    await scene.up()
    processes = [scene.recover("a"), scene.recover("b", clock)]
    scene.manager.doomed = {W}
    await scene.manager.kill(W)
    for _ in range(100):
        await asyncio.sleep(5)
        clock.wrong = -clock.wrong
    assert W in scene.follower.state.roster.cordons
    assert [one.fact.attempt for one in scene.facts(RecoveryStarted)] == [1, 2, 3, 4]
    assert not any(one.done() for one in processes)


@on_virtual_time
async def test_attempts_leave_the_window_in_a_log_in_which_nothing_else_is_said():
    """Nothing comes in that would tell the time: the monotonic clock goes on."""
    scene, clock = Scene(), WrongClock()
    await scene.up()
    scene.recover("a", clock)
    scene.manager.unable = {W}
    await scene.manager.kill(W)
    await scene.until(lambda: len(scene.facts(RecoveryFailed)) == 3)
    scene.manager.unable = set()
    await scene.until(scene.well)
    clock.wrong = -DAY
    await asyncio.sleep(POLICY.window)
    await scene.manager.kill(W)
    await scene.until(lambda: scene.well() and scene.worker().incarnation > 2, 30)
    assert scene.facts(RecoveryStarted)[-1].fact.attempt == 1


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("whose", ["recoverer", "leader"])
@on_virtual_time
async def test_a_claim_lasts_as_long_as_it_says_by_any_clock(whose, wrong):
    scene, clock = Scene(), WrongClock()
    await scene.up()
    await scene.lead(clock if whose == "leader" else None)
    clock.wrong = wrong if whose == "recoverer" else 0.0
    scene.manager.seconds = 1000.0
    scene.recover("a", clock if whose == "recoverer" else None)
    await scene.manager.kill(W)
    await scene.until(lambda: scene.facts(RecoveryStarted))
    scene.processes["a"].kill()
    clock.wrong = wrong
    await asyncio.sleep(POLICY.claim - 2)
    assert scene.facts(RecoveryFailed) == []
    await asyncio.sleep(5)
    (failed,) = scene.facts(RecoveryFailed)
    assert "the claim of a is over" in failed.fact.reason


@pytest.mark.parametrize("wrong", WRONG)
@on_virtual_time
async def test_a_claim_whose_author_had_a_wrong_clock_of_its_own_lasts_as_long_as_it_says(wrong):
    """A manager in another language, or a recoverer of an earlier version."""
    scene = Scene()
    await scene.up()
    await scene.lead()
    now = scene.clock.now() + wrong
    await scene.say(RecoveryStarted(worker=W, incarnation=1, at=rfc3339(now), until=rfc3339(now + 20)))
    await asyncio.sleep(18)
    assert scene.facts(RecoveryFailed) == []
    await asyncio.sleep(5)
    assert len(scene.facts(RecoveryFailed)) == 1


# ---------------------------------------------------------------- suspensions


@pytest.mark.parametrize("later", WRONG)
@pytest.mark.parametrize("wrong", WRONG)
@on_virtual_time
async def test_a_suspension_lasts_as_long_as_it_says_whatever_its_author_and_the_leader_take_the_time_for(wrong, later):
    fleet = Fleet()
    clock = fleet.clock = WrongClock()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    until = rfc3339(fleet.clock.now() + wrong + 30)
    await fleet.say(WorkerSuspended(worker=WORKER, incarnation=1, until=until, ttl=30.0))
    began = clock.monotonic()
    await asyncio.sleep(10)
    clock.wrong = later
    await asyncio.sleep(15)
    assert fleet.facts(WorkerResumed) == []
    await fleet.registered()
    assert clock.monotonic() - began == pytest.approx(30, abs=3)


@on_virtual_time
async def test_a_suspension_that_says_only_how_long_ends_then():
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.say(WorkerSuspended(worker=WORKER, incarnation=1, ttl=30.0))
    began = fleet.clock.monotonic()
    await fleet.until(lambda: fleet.facts(WorkerResumed), 60)
    assert fleet.clock.monotonic() - began == pytest.approx(30, abs=3)


@on_virtual_time
async def test_what_was_stored_while_the_logs_own_clock_was_ahead_tells_nobody_the_time():
    """A server that begins before its machine has asked for the time: who starts later folds stamps of tomorrow."""
    fleet = Fleet()
    clock = WrongClock()
    fleet.log = HookedLog(clock, fleet.rng)
    clock.wrong = DAY
    await fleet.up()
    await fleet.say(WorkerUp(worker="rollout-1-0", incarnation=1))
    clock.wrong = 0.0
    await fleet.start()
    assert fleet.controller.projector.time.now() == pytest.approx(clock.now(), abs=1)
    await fleet.say(WorkerSuspended(worker=WORKER, incarnation=1, ttl=30.0))
    began = clock.monotonic()
    await fleet.until(lambda: fleet.facts(WorkerResumed), 60)
    assert clock.monotonic() - began == pytest.approx(30, abs=3)


@on_virtual_time
async def test_who_leads_next_counts_a_suspension_from_its_beginning():
    fleet = Fleet()
    first = await fleet.start("first")
    await fleet.up()
    far = rfc3339(fleet.clock.now() + DAY)
    await fleet.say(WorkerSuspended(worker=WORKER, incarnation=1, until=far, ttl=60.0))
    began = fleet.clock.monotonic()
    await asyncio.sleep(40)
    first.stop()
    await fleet.start("second")
    await fleet.until(lambda: fleet.facts(WorkerResumed), 60)
    assert fleet.clock.monotonic() - began == pytest.approx(60, abs=3)


# ---------------------------------------------------------------- what one fact says


@pytest.mark.parametrize(
    ("fact", "until", "seconds"),
    [
        (WorkerSuspended(worker=W, incarnation=1, until="x", ttl=5.0), "x", 5),
        (WorkerSuspended(worker=W, incarnation=1, until="x"), "x", math.inf),
        (WorkerSuspended(worker=W, incarnation=1, until="x", ttl=-1e300), "x", 0),
        (RecoveryStarted(worker=W, incarnation=1, at=rfc3339(100.0), until=rfc3339(105.0)), rfc3339(105.0), 5),
        (RecoveryStarted(worker=W, incarnation=1, at="noon", until="tea time"), "tea time", math.inf),
        (RecoveryStarted(worker=W, incarnation=1, until=rfc3339(1.0)), rfc3339(1.0), 0),
        (WorkerUp(worker=W, incarnation=1), rfc3339(EPOCH + 20), 20),
    ],
)
@on_virtual_time
async def test_when_a_term_is_over(fact, until, seconds):
    """By its length; else by the moment that it names; else never, or at once for a claim."""
    scene = Scene()
    following = Projector(scene.log, CODEC, scene.clock)
    (sequence,) = await scene.log.append([drafted(fact, "id")])
    folding = asyncio.create_task(following.run())
    await following.passed(sequence)
    terms = Terms(scene.log, CODEC, following, scene.clock)
    said = {W: (sequence, until)}
    if seconds:
        await terms.over(said)
        await asyncio.sleep(min(seconds, DAY) - 1)
        assert await terms.over(said) == []
        assert await terms.over({}) == []
        await asyncio.sleep(1.1)
    assert await terms.over(said) == ([W] if seconds < math.inf else [])
    at_once = Terms(scene.log, CODEC, following, scene.clock, unreadable=-math.inf)
    assert await at_once.over({W: (sequence, "x"), NAMES[1]: (1000, "x")})
    folding.cancel()
