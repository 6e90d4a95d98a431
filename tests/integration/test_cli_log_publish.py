"""`rollbook publish` and `rollbook log` against a real nats-server, as a script uses them."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial

import pytest
from support import commands

from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.demo.worker import HEADER_INCARNATION, HEADER_WORKER
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer
from rollbook.adapters.jetstream.provision import provision

pytestmark = pytest.mark.integration

WHO = ("rollout-3-0", "1")
PATIENCE = 60.0
"""Seconds for another process; the machine may be busy."""


@pytest.fixture
def stream(nats_server, fleet, tmp_path, monkeypatch):
    """A fleet with its stream, an empty folder, and the two variables that are enough to find it."""

    async def make():
        client = await connect(Connection(url=nats_server.url), name="tests", timeout=PATIENCE)
        try:
            await provision(client, fleet)
        finally:
            await client.close()

    asyncio.run(make())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLBOOK_FLEET", fleet)
    monkeypatch.setenv("ROLLBOOK_NATS_URL", nats_server.url)
    return fleet


def store(nats_server, subject, payload):
    async def put():
        client = await connect(Connection(url=nats_server.url), name="tests", timeout=PATIENCE)
        try:
            await client.jetstream().publish(subject, payload)
        finally:
            await client.close()

    asyncio.run(put())


@pytest.fixture
def call(capsys):
    return partial(commands.call, capsys, environ=os.environ)


@pytest.fixture
def program():
    """Starts `rollbook` as another process, and ends what is left of it."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "rollbook.adapters.cli.main", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def nobody_listens():
    """The URL of a NATS server that is not there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"nats://127.0.0.1:{held.getsockname()[1]}"


def facts(out):
    """Subject entity, short type and the rest, without sequence, time and author."""
    return [re.sub(r"^ *\d+ +\S+ +|  by \S+$", "", line).split(maxsplit=2) for line in out.splitlines()]


def test_what_is_published_is_printed(stream, call):
    assert call("publish", "up", "rollout-3-0") == (Exit.DONE, "1\n", "")
    assert call("publish", "up", "rollout-3-0") == (Exit.DONE, "2\n", "")
    assert call("publish", "down", "rollout-3-0", "--evidence", "timeout", "--reason", "no answer") == (0, "3\n", "")
    assert call("publish", "up", "judge", "--pool", "reward", "--cell", "a", "--incarnation", "9")[0] == Exit.DONE
    code, out, err = call("log")
    assert (code, err) == (Exit.DONE, "")
    assert facts(out) == [
        ["rollout-3-0", "worker.up", "incarnation=1"],
        ["rollout-3-0", "worker.up", "incarnation=2"],
        ["rollout-3-0", "worker.down", 'incarnation=2 evidence=timeout reason="no answer"'],
        ["judge", "worker.up", "incarnation=9 pool=reward cell=a"],
    ]
    assert facts(call("log", "--worker", "rollout-3-0", "--type", "worker.down")[1])[0][1] == "worker.down"
    assert call("log", "--since", "1h")[1] == out
    assert call("log", "--worker", "nobody") == (Exit.DONE, "", "")


def test_json_is_one_cloudevent_a_line(stream, call):
    call("publish", "up", "rollout-3-0")
    code, out, _ = call("log", "--json")
    (event,) = [json.loads(line) for line in out.splitlines()]
    assert code == Exit.DONE
    assert (event["specversion"], event["type"], event["subject"]) == ("1.0", "rollbook.worker.up.v1", "rollout-3-0")


def test_what_is_no_fact_is_shown_and_stops_nothing(stream, call, nats_server):
    call("publish", "up", "rollout-3-0")
    store(nats_server, f"rollbook.{stream}.worker.rollout-3-0", b"\xffgarbage")
    call("publish", "up", "rollout-4-0")
    lines = call("log")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert "no fact" in lines[1]
    assert "garbage" not in lines[1]
    code, out, err = call("log", "--json")
    assert (code, len(out.splitlines())) == (Exit.DONE, 2)
    assert err.startswith(f"sequence 2 on rollbook.{stream}.worker.rollout-3-0 is no fact")


def test_follow_goes_on_until_interrupted(stream, call, program):
    call("publish", "up", "rollout-3-0")
    following = program("log", "--follow")
    assert "incarnation=1" in following.stdout.readline()
    call("publish", "down", "rollout-3-0")
    assert "worker.down" in following.stdout.readline()
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=PATIENCE)
    assert (following.returncode, out, err) == (Exit.INTERRUPTED, "", "")


def test_follow_ends_quietly_when_nobody_reads_any_more(stream, call, program):
    call("publish", "up", "rollout-3-0")
    following = program("log", "--follow")
    following.stdout.readline()
    following.stdout.close()
    call("publish", "down", "rollout-3-0")
    assert following.wait(PATIENCE) == Exit.DONE
    assert following.stderr.read() == ""


def test_a_life_that_nobody_knows_cannot_end(stream, call):
    code, out, err = call("publish", "down", "rollout-3-0")
    assert (code, out) == (Exit.FAILED, "")
    assert "rollout-3-0" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "rollout.3.0"],
        ["up", "rollout-3-0", "--incarnation", "0"],
        ["up", "rollout-3-0", "--pool", "a b"],
        ["up", "rollout-3-0", "--cell-size", "2"],
        ["down", "rollout-3-0", "--evidence", "hearsay"],
        ["up", "rollout-3-0", "--timeout", "soon"],
    ],
)
def test_a_fact_that_cannot_be_is_wrong_usage(stream, call, arguments):
    code, out, err = call("publish", *arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert "Traceback" not in err
    assert call("log")[1] == ""


def test_without_an_answer_publish_waits_as_long_as_it_is_told(stream, call, monkeypatch):
    with nobody_listens() as url:
        monkeypatch.setenv("ROLLBOOK_NATS_URL", url)
        code, out, err = call("publish", "up", "rollout-3-0", "--timeout", "500ms")
    assert (code, out) == (Exit.WAITED, "")
    assert "the log has not acknowledged the fact within 0.5 s" in err
    assert "rollbook log --worker rollout-3-0" in err


def test_a_server_that_is_not_there_and_a_fleet_that_is_not_there(stream, call, monkeypatch):
    monkeypatch.setenv("ROLLBOOK_FLEET", f"{stream}-other")
    code, out, err = call("log")
    assert (code, out) == (Exit.FAILED, "")
    assert f"{stream}-other" in err
    with nobody_listens() as url:
        monkeypatch.setenv("ROLLBOOK_NATS_URL", url)
        code, out, err = call("log")
    assert (code, out) == (Exit.FAILED, "")
    assert "no NATS server answered" in err


def test_without_a_server_the_next_step_is_said(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("init", "--fleet", "math-rl")[0] == Exit.DONE
    for arguments in (["log"], ["publish", "up", "rollout-3-0"]):
        code, out, err = call(*arguments)
        assert (code, out) == (Exit.FAILED, "")
        assert "start `rollbook up`" in err
        assert "nats.url" in err


async def test_the_embedded_server_of_the_folder_is_found_and_its_token_stays_unsaid(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("init", "--fleet", "math-rl")[0] == Exit.DONE
    server = EmbeddedServer(tmp_path / ".rollbook")
    url = await server.start()
    try:
        client = await connect(Connection(url=url), name="tests", timeout=PATIENCE)
        await provision(client, "math-rl")
        await client.close()
        assert await asyncio.to_thread(call, "publish", "up", "rollout-3-0") == (Exit.DONE, "1\n", "")
        assert facts((await asyncio.to_thread(call, "log"))[1]) == [["rollout-3-0", "worker.up", "incarnation=1"]]
        monkeypatch.setenv("ROLLBOOK_FLEET", "other")
        code, _, err = await asyncio.to_thread(call, "log")
        assert (code, "other" in err) == (Exit.FAILED, True)
        assert url.partition("@")[0].removeprefix("nats://") not in err
    finally:
        await server.stop()


def test_a_demo_worker_says_that_it_comes_and_goes(stream, call, program):
    worker = program("demo-worker", "--name", "rollout-3-0", "--port", "0", "--drain", "0s")
    address = re.fullmatch(r"rollout-3-0, life 1, serves on (\S+)\n", _line_that_says(worker, "serves on"))[1]
    with urllib.request.urlopen(f"http://{address}/health", timeout=PATIENCE) as answer:
        assert (answer.status, answer.headers[HEADER_WORKER], answer.headers[HEADER_INCARNATION]) == (200, *WHO)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == Exit.DONE
    assert [fact[1] for fact in facts(call("log")[1])] == [
        "worker.started",
        "worker.up",
        "worker.draining",
        "worker.down",
    ]
    assert "evidence=planned" in call("log", "--type", "worker.down")[1]


def test_a_demo_worker_without_its_port_says_so_and_that_it_is_down(stream, call, program):
    first = program("demo-worker", "--name", "rollout-3-0", "--port", "0")
    port = _line_that_says(first, "serves on").strip().rpartition(":")[2]
    second = program("demo-worker", "--name", "rollout-4-0", "--port", port)
    _, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == Exit.FAILED
    said = [line for line in err.splitlines() if not line.startswith("{")]  # beside its log lines
    trouble = f"cannot listen on 127.0.0.1:{port}: address already in use"
    assert said == [f"rollbook: rollout-4-0 {trouble}; choose another --port or --host"]
    assert [fact[1] for fact in facts(call("log", "--worker", "rollout-4-0")[1])] == ["worker.started", "worker.down"]


def test_a_demo_worker_stops_also_while_it_waits_for_nats(stream, program, monkeypatch):
    with nobody_listens() as url:
        monkeypatch.setenv("ROLLBOOK_NATS_URL", url)
        waiting = program("demo-worker", "--name", "rollout-3-0", "--port", "0")
        _line_that_says(waiting, "nats")
        waiting.send_signal(signal.SIGTERM)
        _, err = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == Exit.DONE
    assert "not sent: WorkerStarted about rollout-3-0" in err


def _line_that_says(process, words):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        line = process.stderr.readline()
        if words in line or not line:
            assert line, f"it ended without saying {words!r}"
            return line
    raise AssertionError(f"{words!r} was not said")
