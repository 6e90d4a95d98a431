"""A worker's own code in its actor's process: everything it can do wrong ends as one sentence."""

import asyncio
import errno
import sys
import threading
import types

import pytest

from rollbook.adapters.ray.guest import Guest, StartFailed
from rollbook.adapters.ray.spec import WorkerSpec

GOOD = {"primary": "127.0.0.1:8000"}


class Worker:
    """Does what the test says; a list tells what was done to it."""

    done: list[object]
    answer: object = GOOD

    def __init__(self, **given) -> None:
        self.port = given["port"]
        self.done.append(given)

    def start(self):
        self.done.append("start")
        if callable(self.answer):
            return self.answer()
        return self.answer

    def stop(self) -> None:
        self.done.append("stop")


@pytest.fixture
def worker(monkeypatch):
    """The class that the guest imports, under a module of its own."""
    cls = type("Made", (Worker,), {"done": []})
    module = types.ModuleType("made_worker")
    module.Made = cls
    monkeypatch.setitem(sys.modules, "made_worker", module)
    return cls


def guest(**fields):
    return Guest(WorkerSpec(**{"name": "rollout-0-0", "actor": "made_worker:Made"} | fields), "10.0.0.1")


def raising(exc):
    def answer(_):
        raise exc

    return answer


def test_it_is_made_with_its_identity_and_the_specs_own_arguments(worker):
    assert guest(kwargs={"model": "m"}).start(3, [8000]) == GOOD
    assert worker.done == [
        {"name": "rollout-0-0", "incarnation": 3, "host": "10.0.0.1", "port": 8000, "model": "m"},
        "start",
    ]


def test_a_taken_port_is_let_go_for_the_next(worker):
    def answer(made):
        if made.port == 8000:
            raise OSError(errno.EADDRINUSE, "in use")
        return {"primary": f"h:{made.port}"}

    worker.answer = answer
    assert guest().start(1, [8000, 8001]) == {"primary": "h:8001"}
    assert [step for step in worker.done if isinstance(step, str)] == ["start", "stop", "start"]


def test_the_last_port_that_is_taken_is_a_failure(worker):
    worker.answer = raising(OSError(errno.EADDRINUSE, "in use"))
    with pytest.raises(StartFailed, match=r"start raised OSError: .*in use"):
        guest().start(1, [8000])


def test_another_trouble_of_the_system_is_not_a_taken_port(worker):
    worker.answer = raising(OSError(errno.EACCES, "not allowed"))
    with pytest.raises(StartFailed, match="not allowed"):
        guest().start(1, [80, 0])
    assert worker.done.count("start") == 1


@pytest.mark.parametrize(
    ("actor", "problem"),
    [
        ("no.such.module:Made", "importing no.such.module:Made raised ModuleNotFoundError"),
        ("made_worker:Other", "importing made_worker:Other raised AttributeError"),
    ],
)
def test_what_cannot_be_imported_is_named(worker, actor, problem):
    with pytest.raises(StartFailed, match=problem):
        guest(actor=actor).start(1, [0])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raising(ValueError("no weights")), "start raised ValueError: no weights"),
        (raising(SystemExit(3)), "start raised SystemExit: 3"),
        (raising(KeyboardInterrupt()), "start raised KeyboardInterrupt"),
        (None, "returned 'None'; it must return named addresses with 'primary'"),
        ({"session": "h:1"}, "it must return named addresses with 'primary'"),
        ({"primary": "h"}, "returned 'h' as its address 'primary': it has no port"),
        ({"primary": "h:1", "session": 5}, "returned '5' as its address 'session'"),
    ],
)
def test_a_start_that_fails_says_how(worker, answer, problem):
    worker.answer = answer
    with pytest.raises(StartFailed) as failed:
        guest().start(1, [0])
    assert problem in str(failed.value)


def test_async_code_runs_on_one_loop_that_stays(worker):
    loops = []

    async def answer():
        loops.append(asyncio.get_running_loop())
        return GOOD

    async def wait(_):
        loops.append(asyncio.get_running_loop())
        return "its engine exited"

    worker.answer = lambda _: answer()
    worker.wait = wait
    made = guest()
    assert made.start(1, [0]) == GOOD
    assert made.wait() == "its engine exited"
    assert loops[0] is loops[1]
    loops[0].call_soon_threadsafe(loops[0].stop)
    for thread in threading.enumerate():
        if thread.name == "rollbook-worker-loop":
            thread.join()
    loops[0].close()


def test_how_it_ended_is_told_in_every_case(worker):
    made = guest()
    made.start(1, [0])
    assert made.wait() is None
    worker.wait = lambda _: None
    assert made.wait() == "it ended by itself"
    worker.wait = raising(RuntimeError("lost it"))
    assert made.wait() == "wait raised RuntimeError: lost it"


def test_a_stop_that_raises_is_only_logged(worker):
    made = guest()
    made.stop()
    made.start(1, [0])
    worker.stop = raising(RuntimeError("no"))
    made.stop()
