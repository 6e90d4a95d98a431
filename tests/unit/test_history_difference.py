"""What changed between two moments is what differs between their states, and who did it."""

import pytest
from support.core import CODEC
from support.histories import a_history
from support.past import Told, told

from rollbook.events import (
    Deregistered,
    Deregistering,
    FleetStarted,
    ProxyUnreachable,
    ReconcileHeld,
    Registered,
    Registering,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerForgotten,
    WorkerUp,
)
from rollbook.projections.history.difference import MOST_FACTS, between, compare
from rollbook.projections.history.moments import NoSuchMoment, state_at

W, V = "rollout-0-0", "rollout-1-0"
AT = {"proxy": "a", "worker": W, "incarnation": 1, "url": "http://h:1"}


def changes(item):
    return {one.what: (one.before, one.after) for one in item.changes}


async def test_a_worker_that_went_down_and_what_the_proxy_was_told():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerUp(worker=V, incarnation=1)])
    await past.say(Registering(**AT, cause=1), Registered(**AT, cause=3))
    await past.say(WorkerDown(worker=W, incarnation=1, evidence="exited", reason="oom"))
    await past.say(Deregistering(**AT, cause=5), Deregistered(**AT, cause=6))
    found = await between(past, CODEC, 4, 7)
    assert found.differs
    (worker,) = found.workers
    assert worker.name == W
    assert changes(worker) == {
        "phase": ("serving", "down"),
        "since": ("#1", "#5"),
        "why": (None, "exited: oom"),
        "at a": ("registered #1 http://h:1", None),
    }
    assert [deed.sequence for deed in worker.facts] == [5, 6, 7]
    (proxy,) = found.proxies
    assert changes(proxy) == {"registered": ("1", "0")}
    assert [deed.sequence for deed in proxy.facts] == [6, 7]
    assert found.whole is None


async def test_nothing_changed_between_a_moment_and_itself_nor_by_what_was_ignored():
    past = await told([WorkerUp(worker=W, incarnation=2), WorkerDown(worker=W, incarnation=1, evidence="exited")])
    assert not (await between(past, CODEC, 1, 1)).differs
    assert not (await between(past, CODEC, 1, 2)).differs


async def test_a_worker_that_came_and_one_that_was_forgotten():
    past = await told([WorkerUp(worker=W, incarnation=1), Registering(**AT), Registered(**AT, cause=2)])
    await past.say(WorkerForgotten(worker=W, by="ann", why="gone"), WorkerUp(worker=V, incarnation=1))
    found = {item.name: changes(item) for item in (await between(past, CODEC, 3, 5)).workers}
    assert found[V]["phase"] == (None, "serving")
    assert found[W]["phase"] == ("serving", None)
    assert "at a" not in found[W], "the proxy has been told nothing yet"


async def test_the_fleet_as_a_whole():
    past = await told([FleetStarted(run_id="one"), WorkerUp(worker=W, incarnation=1)])
    await past.say(WeightsPublished(pool="rollout", version=7), ReconcileHeld(by="ann", why="upgrade"))
    await past.say(ProxyUnreachable(proxy="a", reason="refused"), WorkerCordoned(worker=V, by="ann", why="ECC"))
    found = await between(past, CODEC, 2, 6)
    assert changes(found.whole) == {
        "held": (None, "by ann: upgrade (#4)"),
        "weights of rollout": (None, "7"),
        "cordon of rollout-1-0": (None, "by ann: ECC (#6)"),
    }
    assert changes(found.proxies[0])["answers"] == (None, "no (refused)")


async def test_only_the_newest_facts_are_listed_and_the_others_counted():
    past = Told()
    await past.say(WorkerUp(worker=W, incarnation=1))
    for incarnation in range(2, 40):
        await past.say(WorkerUp(worker=W, incarnation=incarnation))
    (worker,) = (await between(past, CODEC, 1, 39)).workers
    assert (len(worker.facts), worker.more_facts) == (MOST_FACTS, 38 - MOST_FACTS)
    assert worker.facts[-1].sequence == 39


async def test_the_later_moment_first_is_refused():
    past = await told([WorkerUp(worker=W, incarnation=1)])
    with pytest.raises(NoSuchMoment, match="name the earlier first"):
        await between(past, CODEC, 1, 0)


@pytest.mark.parametrize("seed", range(4))
async def test_no_difference_is_lost_on_the_way(seed):
    """From A to C differs exactly if the states do, and B between them can be any moment."""
    past = await told(a_history(seed, 120))
    for first, second in ((0, 120), (40, 80), (79, 80)):
        found = await between(past, CODEC, first, second)
        before, after = await state_at(past, CODEC, first), await state_at(past, CODEC, second)
        assert found.workers == tuple(
            type(item)(item.name, item.changes, mine.facts, mine.more_facts)
            for item, mine in zip(compare("f", before, after).workers, found.workers, strict=True)
        )
        assert not compare("f", after, after).differs
