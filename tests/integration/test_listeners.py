"""The listeners over a real log: one fact for each worker, about the life of the moment of the call."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import pytest
from support.stream import FleetStream
from support.xtuner import group, pair

from rollbook.adapters.listeners.follow import Follow
from rollbook.adapters.listeners.miles import MilesHook
from rollbook.adapters.listeners.xtuner import XtunerListener
from rollbook.adapters.publisher import Publisher
from rollbook.events import RollbookError, WorkerDown, WorkerFact, WorkerResumed, WorkerSuspended, WorkerUp
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase

pytestmark = pytest.mark.integration

W = "rollout-3-0"
GROUP = group(3)


@pytest.fixture
def listener(stream):
    with XtunerListener(stream.fleet, stream.url) as made:
        assert made.wait_until_followed(30)
        yield made


@pytest.fixture
def other(stream):
    """Whoever else speaks of the workers."""
    with Publisher(stream.fleet, stream.url, name="other") as made:
        yield made


def told(stream):
    return [
        (type(line.fact).__name__.removeprefix("Worker"), line.fact.worker, line.fact.incarnation)
        for line in stream.lines()
        if line.recorded is not None and isinstance(line.fact, WorkerFact)
    ]


def followed(listener, incarnation, name=W):
    deadline = time.monotonic() + 30
    while listener._follow.look(name).incarnation < incarnation:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_life_begins_ends_and_begins_again(stream, listener):
    listener.on_worker_groups_started([GROUP])
    listener.on_worker_group_inactive(GROUP)  # before the log has numbered the life
    listener.on_worker_group_recovered(GROUP)
    listener.on_worker_group_inactive(GROUP)
    assert listener.publisher.flush(30)
    assert told(stream) == [("Up", W, 1), ("Down", W, 1), ("Up", W, 2), ("Down", W, 2)]


def test_inactive_is_about_the_life_that_the_log_has_now_whoever_began_it(stream, listener, other):
    """I3."""
    listener.on_worker_groups_started([GROUP])
    assert listener.publisher.flush(30)
    other.worker(W).up().result(30)
    followed(listener, 2)
    listener.on_worker_group_inactive(GROUP)
    assert listener.publisher.flush(30)
    assert told(stream)[-1] == ("Down", W, 2)


def test_recovered_is_about_the_life_that_somebody_has_begun_since_the_group_was_inactive(stream, listener, other):
    listener.on_worker_groups_started([GROUP])
    listener.on_worker_group_inactive(GROUP)
    assert listener.publisher.flush(30)
    other.worker(W).started().result(30)
    followed(listener, 2)
    listener.on_worker_group_recovered(GROUP)
    assert listener.publisher.flush(30)
    assert told(stream)[-2:] == [("Started", W, 2), ("Up", W, 2)]


def test_a_trainer_that_starts_again_begins_new_lives(stream, listener):
    listener.on_worker_groups_started([GROUP])
    assert listener.publisher.flush(30)
    with XtunerListener(stream.fleet, stream.url) as again:
        again.on_worker_groups_started([GROUP])
        assert again.publisher.flush(30)
    assert told(stream) == [("Up", W, 1), ("Up", W, 2)]


def test_while_nats_is_away_calls_return_and_later_hit_the_life_of_their_moment(start_nats, fleet):
    """I3, I8: also where somebody else begins a life before the fact arrives."""
    server = start_nats()
    stream = FleetStream(server.url, fleet).make()
    with Publisher(fleet, server.url, name="other") as other, XtunerListener(fleet, server.url) as listener:
        other.worker(W).up().result(30)
        followed(listener, 1)
        server.kill()
        listener.on_worker_group_inactive(GROUP)
        server.start()
        assert listener.publisher.flush(60)
    assert told(stream) == [("Up", W, 1), ("Down", W, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_threads_say_through_an_outage_the_log_ends_with_what_each_said_last(start_nats, fleet, seed):
    """I8, I2: health and recovery threads at once, an outage in the middle, the lives of another author in between."""
    server = start_nats()
    stream = FleetStream(server.url, fleet).make()
    groups, last = [group(rank) for rank in range(6)], {}

    def speak(rank):
        rng = random.Random(f"{seed}-{rank}")
        for _ in range(60):
            last[rank] = rng.random() < 0.5
            call = listener.on_worker_group_recovered if last[rank] else listener.on_worker_group_inactive
            call(groups[rank])
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.05)

    with XtunerListener(fleet, server.url) as listener:
        listener.on_worker_groups_started(groups)
        threads = [threading.Thread(target=speak, args=(rank,)) for rank in range(6)]
        for thread in threads:
            thread.start()
        server.restart()
        for thread in threads:
            thread.join()
        assert listener.publisher.flush(60)
    roster = Roster()
    for line in stream.lines():
        roster.apply(line.recorded)
    phases = {rank: roster.workers[f"rollout-{rank}-0"].phase is Phase.SERVING for rank in range(6)}
    assert phases == last


def test_without_any_server_every_call_returns_and_closing_says_what_was_not_sent(fleet):
    listener = XtunerListener(fleet, "nats://127.0.0.1:9")
    listener.on_worker_groups_started([GROUP, pair(4)])
    listener.on_worker_group_inactive(pair(4))
    assert not listener.wait_until_followed(0)
    assert len(listener.close(0.1).unsent) == 5


def test_it_is_made_from_the_environment_and_names_what_is_missing(stream):
    environ = {"ROLLBOOK_FLEET": stream.fleet, "ROLLBOOK_NATS_URL": stream.url}
    with XtunerListener.from_env(environ, pool="judge", evidence="actor_dead") as listener:
        listener.on_worker_groups_started([GROUP])
        listener.on_worker_group_inactive(GROUP)
        assert listener.publisher.flush(30)
    assert told(stream) == [("Up", "judge-3-0", 1), ("Down", "judge-3-0", 1)]
    assert stream.lines()[-1].fact.evidence == "actor_dead"
    with pytest.raises(RollbookError, match="ROLLBOOK_NATS_URL is not set"):
        XtunerListener.from_env({"ROLLBOOK_FLEET": "f"})


def test_a_group_of_several_is_a_cell_with_one_number_for_each_start(stream, listener):
    two = pair(4)
    listener.on_worker_groups_started([two])
    listener.on_worker_group_inactive(two)
    listener.on_worker_group_recovered(two)
    assert listener.publisher.flush(30)
    facts = [line.fact for line in stream.lines()]
    for name in ("rollout-4-0", "rollout-4-1"):  # one worker's facts stand in order; those of several need not
        said = [(fact.cell_size, fact.cell_incarnation, fact.entrypoint) for fact in facts if fact.worker == name]
        assert said == [(2, number, name == "rollout-4-0") for number in (1, 1, 2)]
    with XtunerListener(stream.fleet, stream.url) as again:
        assert again.wait_until_followed(30)
        again.on_worker_groups_started([two])
        assert again.publisher.flush(30)
    assert {line.fact.cell_incarnation for line in stream.lines()[-2:]} == {3}


def test_the_follow_waits_for_a_server_and_a_log_that_come_later(start_nats, fleet):
    server = start_nats()
    follow = Follow(fleet, server.url)
    try:
        assert not follow.wait(0.2)
        stream = FleetStream(server.url, fleet).make()
        with Publisher(stream.fleet, stream.url) as publisher:
            publisher.worker(W).up().result(30)
        assert follow.wait(30)
        followed(SimpleNamespace(_follow=follow), 1)
        assert follow.look(W).alive
    finally:
        follow.stop()


def test_the_hook_of_miles_says_what_the_monitor_and_the_recovery_do(stream):
    engines = SimpleNamespace(nodes_per_engine=1)
    with MilesHook(stream.fleet, stream.url) as hook:
        hook.on_engines_started(engines, [0, 1])
        hook.on_engine_failure(engines, 1)
        hook.on_engines_started(engines, [1])
        hook.on_pause(engines, [0, 1], reason="offload", ttl=60)
        hook.on_resume(engines, [0, 1])
        assert hook.publisher.flush(30)
    facts = [line.fact for line in stream.lines()]
    about = [(type(fact), fact.worker, fact.incarnation) for fact in facts if fact.worker == "rollout-1-0"]
    assert about == [
        (WorkerUp, "rollout-1-0", 1),
        (WorkerDown, "rollout-1-0", 1),
        (WorkerUp, "rollout-1-0", 2),
        (WorkerSuspended, "rollout-1-0", 2),
        (WorkerResumed, "rollout-1-0", 2),
    ]
    assert {fact.evidence for fact in facts if isinstance(fact, WorkerDown)} == {"actor_dead"}


def test_an_engine_of_several_nodes_is_a_cell(stream):
    with MilesHook(stream.fleet, stream.url) as hook:
        hook.on_engines_started(SimpleNamespace(nodes_per_engine=2), [7])
        assert hook.publisher.flush(30)
    facts = [line.fact for line in stream.lines()]
    assert {(fact.worker, fact.cell_size, fact.cell_incarnation) for fact in facts} == {
        ("rollout-7-0", 2, 1),
        ("rollout-7-1", 2, 1),
    }
