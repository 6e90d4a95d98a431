"""A worker's own code in its actor's process: everything it can do wrong ends as one sentence."""

import asyncio
import errno
import os
import sys
import threading
import types

import msgspec
import pytest

from rollbook.adapters.ray.guest import Guest, StartFailed
from rollbook.adapters.ray.seat import Neighbour, Seat
from rollbook.adapters.ray.spec import CommandWorkerSpec, ServeWorkerSpec
from rollbook.projections.ports import HostAndPort

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
    return Guest(ServeWorkerSpec(**{"name": "rollout-0-0", "actor": "made_worker:Made"} | fields))


def seat(incarnation=1, **ports):
    addresses = {kind: HostAndPort("10.0.0.1", port) for kind, port in ({"primary": 8000} | ports).items()}
    return Seat(
        name="rollout-0-0",
        incarnation=incarnation,
        rank=0,
        cell_size=1,
        cell_incarnation=0,
        host="10.0.0.1",
        rank0="rollout-0-0",
        workers={"rollout-0-0": Neighbour(addresses)},
    )


def end_loop(loop):
    loop.call_soon_threadsafe(loop.stop)
    for thread in threading.enumerate():
        if thread.name == "rollbook-worker-loop":
            thread.join()
    loop.close()


def raising(exc):
    def answer(_):
        raise exc

    return answer


def test_it_is_made_with_its_identity_and_the_specs_own_arguments(worker):
    assert guest(kwargs={"model": "m"}).start(seat(3)) == GOOD
    assert worker.done == [
        {"name": "rollout-0-0", "incarnation": 3, "host": "10.0.0.1", "port": 8000, "model": "m"},
        "start",
    ]


def test_a_class_that_asks_for_its_seat_gets_it(worker):
    class Seated(worker):
        def __init__(self, *, seat, **given) -> None:
            super().__init__(seat=seat, **given)

    sys.modules["made_worker"].Made = Seated
    made = seat(3, rpc=7000)
    guest().start(made)
    assert worker.done[0]["seat"] == made


def test_its_environment_is_rendered_before_it_is_imported(worker, monkeypatch):
    monkeypatch.setenv("SERVED_AT", "")
    guest(env={"SERVED_AT": "{primary} for {name}"}).start(seat())
    assert os.environ["SERVED_AT"] == "10.0.0.1:8000 for rollout-0-0"
    with pytest.raises(StartFailed, match="has no address 'rpc'"):
        guest(env={"SERVED_AT": "{rpc}"}).start(seat())


def test_a_command_without_a_primary_port_has_no_primary_address():
    nowhere = msgspec.structs.replace(seat(), workers={"rollout-0-0": Neighbour({})})
    made = Guest(CommandWorkerSpec(name="rollout-0-0", command="exit 3", ports=(), ready_path=None))
    assert made.start(nowhere) == {}
    assert made.wait() == "its command exited with code 3"


@pytest.mark.parametrize(
    ("actor", "problem"),
    [
        ("no.such.module:Made", "importing no.such.module:Made raised ModuleNotFoundError"),
        ("made_worker:Other", "importing made_worker:Other raised AttributeError"),
    ],
)
def test_what_cannot_be_imported_is_named(worker, actor, problem):
    with pytest.raises(StartFailed, match=problem):
        guest(actor=actor).start(seat())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raising(OSError(errno.EADDRINUSE, "in use")), "start raised OSError: [Errno 98] in use"),
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
        guest().start(seat())
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
    assert made.start(seat()) == GOOD
    assert made.wait() == "its engine exited"
    assert loops[0] is loops[1]
    end_loop(loops[0])


def test_how_it_ended_is_told_in_every_case(worker):
    made = guest()
    made.start(seat())
    assert made.wait() is None
    worker.wait = lambda _: None
    assert made.wait() == "it ended by itself"
    worker.wait = raising(RuntimeError("lost it"))
    assert made.wait() == "wait raised RuntimeError: lost it"


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt()])
def test_code_that_would_exit_is_told_too(worker, exc):
    """In a thread it exits nothing, and without a word: the worker would count as alive for ever."""
    made = guest()
    made.start(seat())
    worker.wait = raising(exc)
    assert made.wait() == f"wait raised {type(exc).__name__}: {exc}"


@pytest.mark.parametrize("step", ["start", "wait"])
def test_async_code_that_would_exit_ends_neither_its_loop_nor_in_silence(worker, step):
    told, loops = [], []

    async def exits(_):
        loops.append(asyncio.get_running_loop())
        raise SystemExit(3)

    def run():
        made = guest()
        try:
            made.start(seat())
            told.append(made.wait())
        except StartFailed as failed:
            told.append(str(failed))

    setattr(worker, step, exits)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert told == [f"{step} raised RuntimeError: SystemExit: 3"]
    end_loop(*loops)


def test_a_stop_that_raises_is_only_logged(worker):
    made = guest()
    made.stop()
    made.start(seat())
    worker.stop = raising(RuntimeError("no"))
    made.stop()
