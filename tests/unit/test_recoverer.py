"""Recoverers on virtual time: two at once, killed, paused, cut off; and a leader that ends claims."""

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from support.fleet import on_virtual_time
from support.recovering import NAMES, POLICY, Scene, W

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.faults import LogFaults
from rollbook.events import FleetEnded, RecoveryFailed, RecoveryStarted, WorkerCordoned, WorkerDown, WorkerUncordoned
from rollbook.events.times import rfc3339
from rollbook.projections.policy import RecoveryPolicy
from rollbook.projections.recovery.due import shortest_window
from rollbook.projections.state.worker import Phase


@on_virtual_time
async def test_two_recoverers_restart_a_cell_once_and_the_loser_learns_who_won():
    scene = Scene()
    await scene.up()
    scene.recover("a")
    scene.recover("b")
    await scene.manager.kill("rollout-0-1")
    await scene.until(lambda: scene.well() and scene.worker().incarnation == 2)
    await asyncio.sleep(10)
    assert Counter(scene.manager.began)["rollout-0-0", 2] == Counter(scene.manager.began)["rollout-0-1", 2] == 1
    (claim,) = scene.facts(RecoveryStarted)
    winner = claim.source.rpartition("/")[2]
    assert sum(one.stats.claimed for one in scene.recoverers.values()) == 1
    for name, event, keys in scene.told:
        if event == "recovery.not_mine":
            assert (name != winner, keys["by"]) == (True, winner)
    assert scene.facts(RecoveryFailed) == []


@on_virtual_time
async def test_no_more_cells_at_once_than_allowed_by_any_number_of_recoverers():
    scene = Scene(msgspec.structs.replace(POLICY, parallel=1))
    await scene.up()
    scene.most_at_once = 0
    scene.manager.seconds = 2.0
    for name in "abc":
        scene.recover(name)
    for name in NAMES:
        await scene.manager.kill(name)
    await scene.until(lambda: scene.well() and all(one.incarnation == 2 for one in map(scene.worker, NAMES)))
    assert scene.most_at_once == 1


async def overtaken():
    """A scene in which a recoverer waits for its turn, the worker claimed before, and the lives begun before that."""
    scene, other = Scene(msgspec.structs.replace(POLICY, parallel=1)), "rollout-1-0"
    await scene.up()

    def claimed_by_another(fact):
        if not isinstance(fact, RecoveryStarted) or fact.worker != W:
            return []
        scene.log.before = None
        return [RecoveryStarted(worker=other, incarnation=1, until="2030-01-01T00:00:00Z")]

    await scene.manager.kill(W)
    scene.log.before = claimed_by_another
    lives = list(scene.manager.began)
    scene.recover("a")
    await scene.until(lambda: len(scene.facts(RecoveryStarted)) == 2)
    return scene, other, lives


@on_virtual_time
async def test_who_claimed_another_cell_a_moment_later_waits_for_his_turn():
    scene, other, lives = await overtaken()
    await asyncio.sleep(5)
    assert scene.worker().restarts.claim.by == "a"
    assert scene.manager.began == lives
    await scene.say(RecoveryFailed(worker=other, incarnation=1, attempt=1))
    await scene.until(lambda: scene.worker().incarnation == 2 and scene.worker().phase is Phase.SERVING)


@on_virtual_time
async def test_what_is_cordoned_while_it_waits_for_its_turn_is_left_alone_until_it_is_uncordoned():
    (scene, other, lives), rank = await overtaken(), "rollout-0-1"
    await scene.say(WorkerCordoned(worker=rank, by="ann", why="I look at it"))
    await scene.say(RecoveryFailed(worker=other, incarnation=1, attempt=1))
    await scene.until(lambda: scene.worker().restarts.claim is None)
    assert scene.worker().restarts.failure == "rollout-0-1 was cordoned by ann before anything was done: I look at it"
    await asyncio.sleep(60)
    assert scene.manager._lives[rank].alive
    assert [one for one in scene.manager.began[len(lives) :] if one[0] in {W, rank}] == []
    await scene.say(WorkerUncordoned(worker=rank, by="ann", why="seen"))
    await scene.until(scene.well, 30)


@on_virtual_time
async def test_a_recoverer_killed_in_the_middle_leaves_a_claim_that_expires_and_another_takes_it():
    scene = Scene()
    await scene.up()
    await scene.lead()
    scene.manager.seconds = 5.0
    scene.recover("a")
    await scene.manager.kill(W)
    await scene.until(lambda: scene.facts(RecoveryStarted))
    await asyncio.sleep(6)  # one rank of two has begun
    scene.processes["a"].kill()
    scene.manager.seconds = 0.0
    scene.recover("b")
    await scene.manager.kill(W)
    await scene.until(
        lambda: scene.well() and scene.worker().restarts.claim is None and scene.worker().incarnation == 3
    )
    first, second = scene.facts(RecoveryStarted)
    assert [one.source[-1] for one in (first, second)] == ["a", "b"]
    (failed,) = scene.facts(RecoveryFailed)
    assert "the claim of a is over" in failed.fact.reason
    assert (second.fact.attempt, scene.worker("rollout-0-1").phase) == (2, Phase.SERVING)


def claim(worker, attempt, now, seconds):
    at, until = rfc3339(now), rfc3339(now + seconds)
    return RecoveryStarted(worker=worker, incarnation=1, attempt=attempt, at=at, until=until)


@on_virtual_time
async def test_a_claim_that_is_made_while_another_one_is_ended_is_not_over():
    scene = Scene()
    await scene.up()
    await scene.lead()
    first, second = NAMES[0], NAMES[2]
    now = scene.clock.now()
    meanwhile = [RecoveryFailed(worker=second, incarnation=1, attempt=1, reason="x"), claim(second, 2, now, 600)]

    def before(fact):
        if not isinstance(fact, RecoveryFailed):
            return ()
        said = tuple(meanwhile)
        meanwhile.clear()
        return said

    scene.log.before = before
    await scene.say(claim(first, 1, now, 3), claim(second, 1, now, 3))
    await scene.until(lambda: not meanwhile, 10)
    await asyncio.sleep(10)
    assert [one.fact.worker for one in scene.facts(RecoveryFailed)] == [second, first]
    assert scene.worker(first).restarts.claim is None
    assert scene.worker(second).restarts.claim.attempt == 2


@on_virtual_time
async def test_a_recoverer_started_again_under_its_name_lets_go_at_once():
    scene = Scene()
    await scene.up()
    scene.manager.seconds = 1000.0
    scene.recover("a")
    await scene.manager.kill(W)
    await scene.until(lambda: scene.facts(RecoveryStarted))
    scene.processes["a"].kill()
    scene.manager.seconds = 0.0
    scene.recover("a")
    await scene.until(lambda: scene.facts(RecoveryFailed), 5)
    assert "started again" in scene.facts(RecoveryFailed)[0].fact.reason
    await scene.until(scene.well, 20)


@on_virtual_time
async def test_two_that_run_under_one_name_take_nothing_from_each_other():
    """Each took the other's claims for those of its own life before, until every cell that died was cordoned."""
    scene = Scene(msgspec.structs.replace(POLICY, parallel=6))
    await scene.up()
    scene.recover("a")
    first = scene.recoverers["a"]
    await asyncio.sleep(1)
    scene.recover("a")
    scene.manager.seconds = 2.0
    for name in NAMES:
        await scene.manager.kill(name)
    await scene.until(lambda: scene.well() and all(one.incarnation == 2 for one in map(scene.worker, NAMES)), 60)
    await asyncio.sleep(60)
    assert scene.facts(RecoveryFailed) == []
    assert len(scene.facts(RecoveryStarted)) == 3
    assert first.stats.restored + scene.recoverers["a"].stats.restored == 3
    assert any(event == "recovery.namesake" for _, event, _ in scene.told)


@on_virtual_time
async def test_i3_a_recoverer_stopped_beyond_its_claim_wakes_up_and_touches_nothing():
    scene = Scene()
    await scene.up()
    await scene.lead()
    scene.recover("a")
    await scene.manager.kill(W)
    await scene.until(lambda: scene.facts(RecoveryStarted))
    scene.processes["a"].pause()
    await asyncio.sleep(40)
    scene.recover("b")
    await scene.until(lambda: scene.well() and scene.worker().incarnation == 2)
    lives = list(scene.manager.began)
    scene.processes["a"].resume()
    await asyncio.sleep(60)
    assert scene.manager.began == lives
    assert scene.well()


@on_virtual_time
async def test_a_crash_loop_ends_in_a_cordon_with_its_reason():
    scene = Scene()
    await scene.up()
    scene.recover("a")
    scene.recover("b")
    scene.manager.doomed = {"rollout-0-1"}
    await scene.manager.kill("rollout-0-1")
    await scene.until(lambda: W in scene.follower.state.roster.cordons)
    decision = scene.follower.state.roster.cordons[W]
    assert decision.by in {"a", "b"}
    assert decision.why.startswith("crash loop: 4 restarts within 600 s, and no end: rollout-0-1 went down in life 5:")
    attempts = scene.facts(RecoveryStarted)
    assert [one.fact.attempt for one in attempts] == [1, 2, 3, 4]
    assert sum(one.fact.cordoned for one in scene.facts(RecoveryFailed)) == 1
    lives = len(scene.manager.began)
    await asyncio.sleep(3600)
    assert len(scene.manager.began) == lives
    assert not any(life.alive for life in await scene.manager.list_workers() if life.name in NAMES[:2])

    scene.manager.doomed.clear()
    await scene.say(WorkerUncordoned(worker=W, by="ann", why="repaired"))
    await scene.until(scene.well, 30)


@on_virtual_time
async def test_half_a_restart_is_cleaned_up_and_tried_again():
    scene = Scene()
    await scene.up()
    scene.recover("a")
    scene.manager.unable = {"rollout-0-1"}
    await scene.manager.kill("rollout-0-1")
    await scene.until(lambda: len(scene.facts(RecoveryFailed)) == 1)
    assert not any(life.alive for life in await scene.manager.list_workers() if life.name in NAMES[:2])
    scene.manager.unable.clear()
    await scene.until(scene.well)


@on_virtual_time
async def test_a_manager_that_is_away_for_a_while_costs_no_attempt_and_no_worker():
    """It is asked again within the claim: otherwise all attempts would be over, and the cell cordoned, in seconds."""
    scene = Scene()
    await scene.up()
    scene.recover("a")
    scene.manager.available = False
    await scene.say(WorkerDown(worker=W, incarnation=1, evidence="timeout"))
    await asyncio.sleep(POLICY.claim * 0.8)
    scene.manager.available = True
    await scene.until(scene.well)
    assert (scene.worker().incarnation, len(scene.facts(RecoveryStarted))) == (2, 1)
    assert scene.facts(RecoveryFailed) == []
    assert [event for _, event, _ in scene.told].count("recovery.manager_away") == 1


@on_virtual_time
async def test_what_is_cordoned_while_the_manager_is_away_is_left_alone():
    scene = Scene()
    await scene.up()
    scene.recover("a")
    scene.manager.available = False
    await scene.say(WorkerDown(worker=W, incarnation=1, evidence="timeout"))
    await scene.until(lambda: "recovery.manager_away" in [event for _, event, _ in scene.told])
    await scene.say(WorkerCordoned(worker=W, by="ann", why="I look at it"))
    await scene.until(lambda: "recovery.left_alone" in [event for _, event, _ in scene.told])
    scene.manager.available = True
    await asyncio.sleep(POLICY.claim * 2)
    assert {(life.incarnation, life.alive) for life in await scene.manager.list_workers()} == {(1, True)}


@on_virtual_time
async def test_a_manager_that_stays_away_costs_an_attempt_for_each_claim_and_no_worker():
    scene = Scene()
    await scene.up()
    scene.recover("a")
    scene.manager.available = False
    await scene.say(WorkerDown(worker=W, incarnation=1, evidence="timeout"))
    before = scene.clock.now()
    await scene.until(lambda: len(scene.facts(RecoveryFailed)) == 2, POLICY.claim * 3)
    assert scene.clock.now() - before > POLICY.claim * 1.5
    assert "27 s: the manager in memory was made unavailable" in scene.facts(RecoveryFailed)[0].fact.reason
    scene.manager.available = True
    await scene.until(scene.well)
    assert scene.worker().incarnation == 2


@pytest.mark.parametrize("call", ["start_cell", "terminate"])
@on_virtual_time
async def test_a_manager_with_a_defect_costs_an_attempt_and_not_the_recoverer(call):  # I10
    scene = Scene()
    await scene.up()
    scene.recover("a")

    async def broken(*_):
        raise RuntimeError("a defect \udcff" + "x" * 1_000_000)

    setattr(scene.manager, call, broken)
    await scene.manager.kill(W)
    await scene.until(lambda: len(scene.facts(RecoveryFailed)) == 2)
    assert "RuntimeError: a defect" in scene.facts(RecoveryFailed)[0].fact.reason
    delattr(scene.manager, call)
    await scene.until(scene.well)


@on_virtual_time
async def test_a_cell_whose_starts_hang_is_a_crash_loop_too_by_default():
    scene = Scene(RecoveryPolicy())
    await scene.up()
    scene.recover("a")
    scene.manager.seconds = 100_000.0
    await scene.manager.kill(W)
    await scene.until(lambda: W in scene.follower.state.roster.cordons, 10_000)
    assert len(scene.facts(RecoveryStarted)) == RecoveryPolicy().attempts
    assert "it was not up within" in scene.follower.state.roster.cordons[W].why


async def hanging(*_):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "policy",
    [
        RecoveryPolicy(attempts=3, claim=30.0),
        RecoveryPolicy(attempts=5, claim=5.0, backoff_first=20.0, backoff_most=40.0),
        RecoveryPolicy(attempts=8, claim=1.0, backoff_first=0.1),
    ],
)
@on_virtual_time
async def test_the_shortest_window_that_is_allowed_still_ends_a_crash_loop_that_hangs_all_over(policy):
    """With one of `attempts` times `claim` it went on for ever: the first attempt left it as the last one ended."""
    scene = Scene(msgspec.structs.replace(policy, window=shortest_window(policy)))
    await scene.up()
    await scene.lead()
    scene.recover("a")
    scene.manager.terminate = hanging
    await scene.manager.kill(W)
    await scene.until(lambda: W in scene.follower.state.roster.cordons, 1000)
    assert len(scene.facts(RecoveryStarted)) == policy.attempts


@on_virtual_time
async def test_a_manager_that_hangs_for_ever_holds_no_cell_for_ever():
    """Also where it hangs in the clean-up: the claim is let go of, and the cell is tried again."""
    scene = Scene()
    await scene.up()
    await scene.lead()
    scene.recover("a")
    scene.manager.terminate = hanging
    await scene.manager.kill(W)
    await scene.until(lambda: len(scene.facts(RecoveryStarted)) == 2, 200)
    del scene.manager.terminate
    await scene.until(scene.well)


@on_virtual_time
async def test_a_run_that_ends_in_the_middle_is_left_alone():
    scene = Scene()
    await scene.up()
    scene.manager.seconds = 3.0
    scene.recover("a")
    await scene.manager.kill(W)
    await scene.until(lambda: scene.facts(RecoveryStarted))
    await scene.say(FleetEnded(run_id="r"))
    await asyncio.sleep(100)
    assert scene.facts(RecoveryFailed) == []
    assert len(scene.facts(RecoveryStarted)) == 1


@pytest.mark.parametrize("seed", range(12))
def test_simulation_two_recoverers_deaths_kills_pauses_and_a_log_that_loses_answers(seed):
    """At the end everything serves that is not cordoned; no life began twice; no cell was claimed while it was."""

    async def schedule():
        scene = Scene(msgspec.structs.replace(POLICY, attempts=50), seed)
        rng = random.Random(seed)
        await scene.up()
        await scene.lead()
        scene.manager.seconds = 0.5
        scene.recover("a")
        scene.recover("b")
        scene.log.faults = LogFaults(lose_answer=0.05, refuse=0.05, slowest_append=0.2, slowest_delivery=0.5)
        for number in range(60):
            await asyncio.sleep(rng.uniform(0, 5))
            victim = rng.choice(NAMES)
            match rng.randrange(5):
                case 0 | 1:
                    alive = {one.name for one in await scene.manager.list_workers() if one.alive}
                    if victim in alive:
                        await scene.manager.kill(victim)
                case 2:
                    name = rng.choice("ab")
                    scene.processes[name].kill()
                    scene.recover(name if rng.random() < 0.5 else f"{name}{number}")
                    scene.processes[name] = scene.processes.get(f"{name}{number}", scene.processes[name])
                case 3:
                    process = scene.processes[rng.choice("ab")]
                    process.pause()
                    await asyncio.sleep(rng.choice([1, 40]))
                    process.resume()
                case _:
                    scene.manager.doomed = {victim} if rng.random() < 0.5 else set()
        scene.log.faults = LogFaults()
        scene.manager.doomed = set()
        await scene.until(scene.well, 3000)
        assert max(Counter(scene.manager.began).values()) == 1
        assert scene.overlapping == []

    virtual.run(schedule())
