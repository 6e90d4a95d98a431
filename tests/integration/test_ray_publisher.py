"""Workers on Ray that speak for themselves, as docs/publisher.md shows: the way to the log travels in `runtime_env`."""

import os

import pytest
from support.ray import SECONDS, facts_about, told
from support.stream import FleetStream

from rollbook.adapters.jetstream.connection import Connection

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

W = "rollout-3-0"


@pytest.fixture
def stream(start_nats, fleet):
    """On a server that lets nobody in without its token."""
    server = start_nats(config='authorization { token: "s3cret" }')
    return FleetStream(server.url.replace("//", "//s3cret@"), fleet).make()


@pytest.fixture
def environ(stream, fleet):
    connection = Connection(url=stream.url)
    return {"ROLLBOOK_FLEET": fleet, **connection.environ()}


def test_an_actor_publishes_its_own_lives(local_ray, stream, environ):
    """I8: what its publisher accepted is in the log when it says so."""
    import ray

    class RolloutWorker:
        def __init__(self, name):
            from rollbook.adapters.publisher import Publisher

            self.publisher = Publisher.from_env()
            self.life = self.publisher.worker(name)
            self.life.started(pid=os.getpid())

        def serve(self, seconds):
            return self.life.up().result(seconds), self.life.incarnation, os.getpid()

        def stop(self, seconds):
            self.life.down(evidence="planned")
            return [unsent.reason for unsent in self.publisher.close(seconds).unsent]

    worker_class = ray.remote(RolloutWorker).options(num_cpus=0, runtime_env={"env_vars": environ})
    for life in (1, 2):
        worker = worker_class.remote(W)
        sequence, incarnation, pid = ray.get(worker.serve.remote(SECONDS), timeout=SECONDS)
        assert incarnation == life
        assert ray.get(worker.stop.remote(SECONDS), timeout=SECONDS) == []
        ray.kill(worker)
        facts = facts_about(stream, W)[-3:]
        assert told(facts) == [f"{fact} {life}" for fact in ("Started", "Up", "Down")]
        assert facts[0].pid == pid != os.getpid()
        assert stream.lines()[sequence - 1].fact == facts[1]


def test_a_task_publishes_what_it_saw(local_ray, stream, environ):
    import ray

    def report(worker, seconds):
        from rollbook.adapters.publisher import Publisher

        publisher = Publisher.from_env()
        publisher.worker_down(worker, incarnation=7, evidence="actor_dead", reason="exit code 137")
        return publisher.close(seconds).sent

    task = ray.remote(report).options(num_cpus=0, runtime_env={"env_vars": environ})
    assert ray.get(task.remote(W, SECONDS), timeout=SECONDS) == 1
    (fact,) = facts_about(stream, W)
    assert (fact.incarnation, fact.evidence, fact.reason) == (7, "actor_dead", "exit code 137")


def test_a_worker_that_was_not_told_fails_at_once_and_says_what_is_missing(local_ray):
    import ray

    def ask():
        from rollbook.adapters.publisher import Publisher

        Publisher.from_env()

    with pytest.raises(ray.exceptions.RayTaskError, match=r"ROLLBOOK_FLEET is not set.*runtime_env"):
        ray.get(ray.remote(ask).options(num_cpus=0).remote(), timeout=SECONDS)
