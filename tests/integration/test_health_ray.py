"""Actors asked by name on a real Ray: well, wrong, slow, gone; and a name that never was."""

import asyncio
import time

import pytest

from rollbook.adapters.health import OK, HealthPolicy, Outcome, Subject
from rollbook.adapters.health import ray as health_ray
from rollbook.adapters.health.ray import RayCheck
from rollbook.adapters.ray.border import ActorGone, find
from rollbook.projections.ports import Located

pytestmark = [pytest.mark.integration, pytest.mark.ray]

POLICY = HealthPolicy(probe="ray", actor="engine-{worker}", timeout=10.0)


def subject(name):
    return Subject(name, 1, "rollout", "http://h:1", Located({}, 1), deep=False, due=0.0)


@pytest.fixture
def engine(local_ray):
    import ray

    class Engine:
        def __init__(self):
            self.answer = None

        def say(self, answer):
            self.answer = answer

        async def health(self):
            if isinstance(self.answer, float):
                await asyncio.sleep(self.answer)
            elif self.answer == "raise":
                raise ValueError("CUDA error")
            elif self.answer == "raise ours":
                raise ActorGone("the engine behind it is gone")
            return self.answer

    made = []

    def start(name, namespace="health"):
        actor = ray.remote(Engine).options(name=f"engine-{name}", namespace=namespace, num_cpus=0).remote()
        made.append(actor)
        ray.get(actor.say.remote(None))
        return actor

    yield start
    for actor in made:
        ray.kill(actor)


async def test_what_an_actor_answers_and_how_it_ends(engine, monkeypatch):
    import ray

    check = RayCheck(POLICY, "health")
    actor = await asyncio.to_thread(engine, "rollout-0-0")

    async def ask(name="rollout-0-0", of=check):
        return await of(subject(name))

    assert await ask() == OK
    for answer, outcome in ((True, Outcome.OK), ("no memory", Outcome.UNHEALTHY), ("raise", Outcome.UNHEALTHY)):
        await actor.say.remote(answer)
        assert (await ask()).outcome is outcome
    await actor.say.remote("raise ours")
    said = await ask()
    assert (said.outcome, "ActorGone: the engine behind it is gone" in said.reason) == (Outcome.UNHEALTHY, True)
    await actor.say.remote(1000.0)
    quick = RayCheck(HealthPolicy(probe="ray", actor="engine-{worker}", timeout=2.0), "health")
    assert (await ask(of=quick)).outcome is Outcome.SLOW
    with monkeypatch.context() as slow:  # Ray's head is: the time that is left says nothing about a worker [I3]
        slow.setattr(health_ray, "find", lambda *asked: (time.sleep(1.6), find(*asked))[1])
        assert (await ask(of=quick)).outcome is Outcome.UNKNOWN
    other = RayCheck(HealthPolicy(probe="ray", actor="engine-{worker}", method="helth", timeout=20.0), "health")
    misspelt = await ask(of=other)
    assert (misspelt.outcome, "no method 'helth'" in misspelt.reason) == (Outcome.UNKNOWN, True)
    ray.kill(actor)
    assert (await ask()).outcome is Outcome.GONE


async def test_an_actor_that_never_was_is_not_taken_for_dead(engine):
    check = RayCheck(HealthPolicy(probe="ray", actor="wrong-{worker}", timeout=1.0), "health")
    await asyncio.to_thread(engine, "rollout-0-0")
    assert (await check(subject("rollout-0-0"))).outcome is Outcome.UNKNOWN
