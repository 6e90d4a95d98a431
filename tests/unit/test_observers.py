"""Who is heard and who is silent; and that a deaf or stopped process calls nobody silent."""

import asyncio

import pytest
from support.fleet import Fleet, on_virtual_time

from rollbook.events import ObserverSilent, WorkerDown
from rollbook.projections.leading.vigil import vigil
from rollbook.projections.state.observers import FORGET_SECONDS, Heartbeat, Observers

BEAT = Heartbeat(observer="monitor-a", every=2.0, pools=("rollout",))


def heard(at=0.0, beat=BEAT):
    observers = Observers()
    observers.heard(beat, at)
    return observers


def test_three_may_be_missed():
    observers = heard()
    assert observers.silent(7.0) == {}
    assert observers.silent(7.1) == {"monitor-a": 7.1}
    (note,) = observers.notes(37.0)
    told = "observer monitor-a has been silent for 37 s: whether pool rollout is well is unknown to it"
    assert note == f"{told}. Start `rollbook monitor` again, unless another one watches"
    observers.heard(BEAT, 38.0)
    assert observers.silent(40.0) == {}


def test_who_leaves_is_not_silent():
    observers = heard()
    observers.heard(Heartbeat(observer="monitor-a", every=2.0, leaving=True), 1.0)
    assert (observers.names(), observers.silent(100.0)) == ([], {})


def test_who_is_deaf_calls_nobody_silent():
    observers = heard()
    observers.deaf()
    assert observers.silent(100.0) == {}
    observers.listening(100.0)
    assert observers.silent(107.0) == {}
    assert observers.silent(107.5) == {"monitor-a": 7.5}


def test_one_that_was_replaced_is_forgotten():
    observers = heard()
    assert "monitor-a" in observers.silent(FORGET_SECONDS)
    assert observers.silent(FORGET_SECONDS + 1) == {}
    assert observers.names() == []


@pytest.mark.parametrize("every", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_a_heartbeat_that_promises_nonsense_is_not_noted(every):
    assert heard(beat=Heartbeat(observer="x", every=every)).names() == []


def test_names_that_somebody_invents_fill_no_memory():
    observers = heard()
    for number in range(5000):
        observers.heard(Heartbeat(observer=f"x-{number}", every=1.0), 1.0)
    assert len(observers.names()) == 1000


@on_virtual_time
async def test_silence_is_written_once_and_again_after_it_was_heard_again():
    fleet = Fleet()
    fleet.companions = [vigil]
    controller = fleet.make()
    observers = controller._resources.observers
    fleet.make = lambda *_, **__: controller
    controller._witnesses = [observers.witness]
    await fleet.start()
    now = asyncio.get_running_loop().time

    def said():
        return [one.fact for one in fleet.recorded() if isinstance(one.fact, ObserverSilent)]

    try:
        observers.heard(BEAT, now())
        await asyncio.sleep(60)
        (fact,) = said()
        assert fact.observer == "monitor-a"
        assert 7.0 <= fact.silent_seconds <= 9.0
        observers.heard(BEAT, now())
        await asyncio.sleep(3)
        assert len(said()) == 1
        await asyncio.sleep(60)
        assert len(said()) == 2
        assert not [one for one in fleet.recorded() if isinstance(one.fact, WorkerDown)]
    finally:
        await fleet.stop()
