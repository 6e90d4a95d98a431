"""The commands that look back, as an operator runs them: a real server, and a real controller where one is asked."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.stream import FleetStream

from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.main import run

pytestmark = pytest.mark.integration

PATIENCE = 90.0
"""Seconds for another process; the machine may be busy."""
CONFIG = """
fleet = "{fleet}"
[nats]
url = "{url}"
[provider]
kind = "static"
[pools.rollout]
requires_proxy = false
"""


@pytest.fixture
def folder(nats_server, fleet, tmp_path, monkeypatch):
    """A folder with a configuration, and the fleet's stream."""
    FleetStream(nats_server.url, fleet).make()
    (tmp_path / "rollbook.toml").write_text(CONFIG.format(fleet=fleet, url=nats_server.url))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ROLLBOOK_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def call(capsys, folder):
    def call(*arguments, code=Exit.DONE):
        capsys.readouterr()
        ended = run(list(arguments), os.environ)
        streams = capsys.readouterr()
        assert ended == code, (ended, streams.out, streams.err)
        if code in {Exit.USAGE, Exit.FAILED}:
            assert streams.out == ""
            return streams.err
        return streams.out if "--json" not in arguments or arguments[0] == "log" else json.loads(streams.out)

    return call


@pytest.fixture
def a_run(call):
    """Two lives of a worker, and one that an operator cordoned."""
    call("publish", "up", "rollout-0-0")
    call("publish", "up", "rollout-1-0")
    call("publish", "down", "rollout-0-0", "--evidence", "exited", "--reason", "oom")
    call("publish", "up", "rollout-0-0")
    call("cordon", "rollout-1-0", "--reason", "ECC errors", "--by", "ann")


@pytest.fixture
def controller(folder):
    """Starts `rollbook up` here."""
    processes = []

    def up():
        name = folder / f"up-{len(processes)}.log"
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with name.open("w") as log:
            command = [sys.executable, "-m", "rollbook.adapters.cli.main", "up"]
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        processes.append(process)
        until = time.monotonic() + PATIENCE
        while "controller.started" not in name.read_text():
            assert process.poll() is None, name.read_text()
            assert time.monotonic() < until, name.read_text()
            time.sleep(0.05)
        return process

    yield up
    for process in processes:
        process.kill()
        process.wait()


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_what_happened_and_who_did_it(call, a_run):
    story = call("explain", "rollout-0-0", "--json")
    assert [life["incarnation"] for life in story["lives"]] == [1, 2]
    assert "serving → down (exited: oom)" in story["lives"][0]["events"][1]["effects"]
    told = call("explain", "rollout-0-0")
    assert "life 2 begins" in told
    assert "worker.down" in told
    assert [life["incarnation"] for life in call("explain", "rollout-0-0", "--lives", "1", "--json")["lives"]] == [2]

    then = call("status", "--at", "3", "--json")
    assert {worker["name"]: worker["phase"] for worker in then["workers"]} == {
        "rollout-0-0": "down",
        "rollout-1-0": "serving",
    }
    assert "as it was at sequence 3" in call("status", "--at", "3")

    changed = call("diff", "3", "now", "--json", code=Exit.DIFFERENCES)
    assert [worker["name"] for worker in changed["workers"]] == ["rollout-0-0", "rollout-1-0"]
    assert "cordoned" in call("diff", "3", "now", code=Exit.DIFFERENCES)
    assert "nothing changed" in call("diff", "3", "3")

    assert [json.loads(line)["type"] for line in call("log", "--operator", "ann", "--json").splitlines()] == [
        "rollbook.operator.worker_cordoned.v1"
    ]
    assert len(call("log", "--since", "2", "--until", "3").splitlines()) == 2
    assert len(call("log", "--pool", "rollout", "--cell", "1").splitlines()) == 2


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (Exit.USAGE, ("status", "--at", "yesterday"), "'yesterday' is no moment; write a sequence such as 4711"),
        (Exit.USAGE, ("diff", "tomorrow", "now"), "'tomorrow' is no moment; write a sequence such as 4711"),
        (Exit.USAGE, ("log", "--follow", "--until", "3"), "--follow goes on for ever, and --until ends"),
        (Exit.FAILED, ("status", "--at", "99999"), "there is no sequence 99999 yet: the log ends at 5"),
        (Exit.FAILED, ("explain", "nobody"), "the log says nothing of a worker 'nobody'; `rollbook status` lists"),
        (Exit.USAGE, ("timeline", "-o", "run.pdf"), "run.pdf does not say what to draw: let it end in "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_asked_of_the_past_is_said(call, a_run, code, arguments, said):
    assert said in call(*arguments, code=code)


def test_a_replay_agrees_with_the_controller_that_runs_and_with_its_snapshot(call, a_run, controller):
    process = controller()
    found = call("replay", "--check", "--json")["replayed"]
    assert [check["origin"].partition("-")[0] for check in found["checks"]] == ["controller"]
    assert found["checks"][0]["kept"] == found["checks"][0]["folded"]
    stop(process)
    later = call("replay", "--check", "--json")["replayed"]
    assert "snapshot" in {check["origin"] for check in later["checks"]}
    assert all(check["kept"] == check["folded"] for check in later["checks"])
    assert "agrees" in call("replay", "--check")
    assert call("replay", "--to", "3", "--json")["replayed"]["facts"] == 3


def test_other_gates_are_shown_against_what_was(call, a_run, folder):
    (folder / "gates.toml").write_text(
        '[[proxies]]\nname = "b"\nkind = "sglang"\nadmin_url = "http://127.0.0.1:1"\npools = ["rollout"]\n'
    )
    shown = call("replay", "--with", "gates.toml", code=Exit.DIFFERENCES)
    assert "+ rollout-0-0 life 2 at b: was not registered" in shown
    assert "rollout-1-0" not in shown, "cordoned under both"
    (folder / "gates.toml").write_text("[pools.rollout]\nderegister_suspended = false\n")
    assert "the same would be wanted" in call("replay", "--with", "gates.toml")
    (folder / "gates.toml").write_text("[nats]\nurl = 'nats://h'\n")
    call("replay", "--with", "gates.toml", code=Exit.USAGE)


@pytest.mark.parametrize(
    "gates",
    [
        "pools = 3",
        "[pools]\nrollout = 5",
        '[[pools]]\nname = "rollout"',
        "proxies = 3",
        'proxies = ["a"]',
        '[proxies]\nname = "a"',
        "[[proxies]]\nname = []",
        "[[proxies]]\npools = []",
        '[[proxies]]\nname = "new"',
        "[pools.rollout]\nno_such_key = 1",
        "[pools",
        "\0",
    ],
)
def test_gates_that_are_none_are_said_so(call, a_run, folder, gates):
    (folder / "gates.toml").write_text(gates)
    assert "gates.toml" in call("replay", "--with", "gates.toml", code=Exit.USAGE)


def test_what_others_publish_ends_no_command_and_moves_no_cursor(call, a_run, folder, capsys, nats_server, fleet):
    """[I9] Attributes that are no text, types and subjects with escapes, times that no calendar has."""
    stream = FleetStream(nats_server.url, fleet)
    head = f'{{"specversion":"1.0","id":"1","source":"rollbook://{fleet}/p","type":"'.encode()
    w = b'","subject":"rollout-0-0","data":{"worker":"rollout-0-0","incarnation":1,"seen":0}'
    noted = '{{"archivedsequence":"{}","archivedtime":"0001-01-01T00:00:00+23:59","archivedsubject":"{}",'
    subject = f"rollbook.{fleet}.worker.rollout-0-0"
    up = head + b"rollbook.worker.up.v1" + w
    for where, payload in (
        (subject, up + b',"extra":"\xff"}'),
        (subject, up + b',\r"extra":"\xc2\x9b31m"}'),
        (subject, head + b"rollbook.worker.\\u001b[31m.v1" + w + b"}"),
        (f"rollbook.{fleet}.worker.\x1b[31m", b"\x1b[31m"),
        (subject, noted.format(10, subject).encode() + up[1:] + b"}"),
    ):
        stream.put(where, payload)
    for command in (
        ("log",),
        ("log", "--json"),
        ("explain", "rollout-0-0"),
        ("status", "--at", "now"),
        ("replay",),
        ("timeline", "-o", "run.svg"),
        ("export", "run.jsonl.zst"),
    ):
        capsys.readouterr()
        assert run(list(command), os.environ) == Exit.DONE, capsys.readouterr().err
        streams = capsys.readouterr()
        assert [c for c in streams.out + streams.err if not c.isprintable() and c != "\n"] == [], command
    assert len(call("log", "--json").splitlines()) == 9


def test_a_comparison_with_nothing_says_so(call, a_run, capsys):
    call("replay")
    assert run(["replay", "--check"], os.environ) == Exit.DONE
    assert "nothing to compare with" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("timeline", "-o", "x.svg"), ("log",), ("log", "--follow"), ("export", "x")])
def test_what_begins_beyond_the_end_is_said_and_not_waited_for(call, a_run, command):
    said = call(*command, "--since", "5000", code=Exit.FAILED)
    assert "there is no sequence 5000 yet: the log ends at 5" in said


def test_a_file_is_read_replayed_and_made_a_log_again(call, a_run, folder, start_nats):
    digest = call("replay", "--json")["replayed"]["digest"]
    assert call("export", "run.jsonl.zst", "--json")["digest"] == digest
    assert call("replay", "--from-file", "run.jsonl.zst", "--json")["replayed"]["digest"] == digest
    call("export", "run.jsonl.zst", code=Exit.FAILED)
    call("import", "run.jsonl.zst")  # it is all there already
    config = folder / "rollbook.toml"
    config.write_text(
        config.read_text().replace(config.read_text().split('url = "')[1].split('"')[0], start_nats().url)
    )
    assert call("import", "run.jsonl.zst", "--json")["digest"] == digest
    assert call("replay", "--check", "--json")["replayed"]["digest"] == digest
    assert len(call("log").splitlines()) == 5
    assert len(call("log", "--archive", "run.jsonl.zst").splitlines()) == 5, "another stream, and the same log"


def test_a_file_whose_first_state_another_version_kept_is_said_so(call, a_run, monkeypatch):
    call("export", "part.jsonl.zst", "--since", "4")
    monkeypatch.setattr("rollbook.projections.state.fold.SCHEMA", 999)
    said = call("replay", "--from-file", "part.jsonl.zst", code=Exit.FAILED)
    assert "part.jsonl.zst begins at sequence 4, and holds no state before it that this version reads" in said


def test_an_archive_of_another_log_is_not_read_as_this_ones_past(call, a_run, folder, start_nats):
    call("export", "long.jsonl.zst")
    call("export", "run.jsonl.zst", "--until", "2")
    config = folder / "rollbook.toml"
    server = start_nats()
    FleetStream(server.url, config.read_text().split('"')[1]).make()
    config.write_text(config.read_text().replace(config.read_text().split('url = "')[1].split('"')[0], server.url))
    for worker in ("rollout-7-0", "rollout-8-0", "rollout-9-0"):
        call("publish", "up", worker)
    for file, said in (("long", "the log ends at 3, and the archive at 5"), ("run", "sequence 2 is another message")):
        for command in (("status", "--at", "1"), ("log",), ("explain", "rollout-0-0")):
            assert said in call(*command, "--archive", f"{file}.jsonl.zst", code=Exit.FAILED)


def test_what_is_archived_can_still_be_looked_at(call, a_run, controller, folder):
    before = call("log", "--json")
    call("archive", "old", "--keep", "1", code=Exit.FAILED)
    stop(controller())
    done = call("archive", "old", "--keep", "1", "--json")
    assert done["file"]["first"] == 1
    archived = ("--archive", "old")
    assert call("log", "--json", *archived).splitlines()[: len(before.splitlines()) - 1] == before.splitlines()[:-1]
    assert [life["incarnation"] for life in call("explain", "rollout-0-0", "--json", *archived)["lives"]] == [1, 2]
    then = call("status", "--at", "3", "--json", *archived)
    assert then["workers"][0]["phase"] == "down"
    call("status", "--at", "3", code=Exit.FAILED)
    assert "already" in call("archive", "old", "--keep", "1")
    begin = done["cut"]
    call("publish", "up", "rollout-2-0")
    assert call("export", "part.jsonl.zst", "--json")["first"] == begin + 1, "whose state the snapshot at the cut holds"
    assert call("export", "recent.jsonl.zst", "--since", "1h", "--json")["first"] == begin + 1
    assert call("export", "whole.jsonl.zst", "--json", *archived)["first"] == 1
    assert "if it was archived, name its folder" in call("export", "x", "--since", "2", code=Exit.FAILED)
    call("timeline", "--since", "1h", "-o", "run.svg")
    stop(controller())


def test_a_picture_of_the_run(call, a_run, folder):
    pytest.importorskip("matplotlib")
    call("timeline", "-o", "run.html")
    assert "rollout-1-0" in (folder / "run.html").read_text()
