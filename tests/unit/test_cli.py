"""The command line: help with an example for every command, exit codes, one sentence for what goes wrong."""

import asyncio
import importlib.util
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from support.commands import GOOD, call

from rollbook.adapters.bootstrap import NoProvider, open_provider
from rollbook.adapters.cli import check as check_module
from rollbook.adapters.cli import init, status
from rollbook.adapters.cli.exits import Exit, UsageError, WaitedTooLong
from rollbook.adapters.cli.main import app
from rollbook.adapters.settings import RayProvider, Settings
from rollbook.events import RollbookError

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

DEFECT = "rollbook: this is a defect of Rollbook; run it again with ROLLBOOK_DEBUG=1 to see where, and report it"


def leaves(tree, words=()):
    """Every command that does something, hidden ones too, as the words that call it."""
    names = [name for name in tree if not name.startswith("-")]
    if not names:
        return [words]
    return [leaf for name in names for leaf in leaves(tree[name], (*words, name))]


COMMANDS = leaves(app)


def program(*arguments, **options):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **options.pop("environ", {})}
    return subprocess.Popen(
        [sys.executable, "-m", "rollbook.adapters.cli.main", *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_can_be_parsed(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "100")  # otherwise the width is whatever the machine says
    code, out, err = call(capsys, *words, "--help")
    assert (code, err) == (Exit.DONE, "")
    assert "Example:" in out
    examples = [line.strip() for line in out.splitlines() if line.strip().startswith(" ".join(("rollbook", *words)))]
    assert examples
    for example in examples:
        arguments = shlex.split(example.partition(" | ")[0])[1:]
        command, _, unknown = app.parse_args(arguments, exit_on_error=False, print_error=False)
        assert command.__name__.rstrip("_") in {words[-1].replace("-", "_"), words[-1]}
        assert not unknown


def test_help_of_the_program_lists_what_is_not_hidden(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == Exit.DONE
    assert "Example:" in out
    assert "Exit codes:" in out
    assert all(name in out for name in app if app[name].show)


def test_help_loads_nothing_that_is_slow():
    code = (
        "import sys; from rollbook.adapters.cli.main import run; run(['--help'], {}); "
        "slow = {'ray', 'nats', 'aiohttp', 'structlog', 'uvloop', 'sqlite3'} & set(sys.modules); "
        "print(sorted(slow), file=sys.stderr)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chek"], 'rollbook: Unknown command "chek". Did you mean "check"?'),
        (["check", "--jsn"], "rollbook: Unknown option: --jsn. Did you mean --json?"),
        (["check", "extra"], "rollbook: Unused Tokens"),
        (["log", "--since", "99999999999999h"], "rollbook: '99999999999999h' is too long; write at most 10000d"),
        (["log", "--since", "yesterday"], "rollbook: 'yesterday' is no moment; write a sequence such as 4711"),
        (["log", "--worker", "a.b"], "rollbook: 'a.b' cannot name a worker: '.' is not allowed"),
        (["log", "--type", "up"], "rollbook: there is no fact 'up'"),
        (["log"], "rollbook: there is no rollbook.toml in"),
        (["check"], "rollbook: there is no rollbook.toml in"),
        (["up"], "rollbook: there is no rollbook.toml in"),
        (["init", "--proxy", "a"], "rollbook: --proxy is written NAME=KIND@URL"),
        (["init", "--worker", "a"], "rollbook: --worker 'a' is written NAME=HOST:PORT"),
        (
            ["init", "--worker", "a=h:1", "--provider", "ray"],
            "rollbook: --worker is for --provider static, and --provider ray is given",
        ),
        (
            ["init", "--provider", "etcd"],
            'rollbook: Invalid value "etcd" for --provider. Choose from: "ray", "ray-actors", "static".',
        ),
        (["init", "--port", "65536"], 'rollbook: Invalid value "65536" for --port. Must be <= 65535.'),
        (["demo-worker", "--name", "a", "--port", "-1"], 'rollbook: Invalid value "-1" for --port. Must be >= 0.'),
        (["init", "--fleet", "a b"], "rollbook: rollbook.toml: fleet: 'a b' cannot name a fleet"),
        (["init", "--fleet", "a\udc80b"], "rollbook: what is given cannot stand in a TOML file"),
        (["init", "-c", "no/where.toml"], "rollbook: no/where.toml cannot be written: No such file or directory"),
        (["cordon", "w", "--reason", "  "], 'rollbook: Invalid value "  " for --reason. say why'),
        (["hold", "--reason", ""], 'rollbook: Invalid value "" for --reason. say why'),
    ],
)
def test_wrong_usage_is_one_sentence_and_64(capsys, arguments, said):
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith(said)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (UsageError("give one of the two"), 64, ["rollbook: give one of the two"]),
        (WaitedTooLong("no answer in 3 s"), 3, ["rollbook: no answer in 3 s"]),
        (RollbookError("the log is gone"), 1, ["rollbook: the log is gone"]),
        (ExceptionGroup("", [RollbookError("one"), RollbookError("two")]), 1, ["rollbook: one"]),
        (OSError(28, "No space left on device"), 1, ["rollbook: [Errno 28] No space left on device"]),
        (RollbookError("nats://me:hunter2@h is gone"), 1, ["rollbook: nats://[redacted]@h is gone"]),
        (KeyboardInterrupt(), 130, []),
        (
            KeyError("x"),
            1,
            ["rollbook: unexpected failure: KeyError: 'x'", DEFECT],
        ),
        (
            ExceptionGroup("", [RollbookError("one"), KeyError("x")]),
            1,
            ["rollbook: unexpected failure: ExceptionGroup:  (2 sub-exceptions)", DEFECT],
        ),
    ],
)
def test_what_is_raised_becomes_a_sentence_and_a_code(capsys, monkeypatch, raised, code, said):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(check_module, "load", fail)
    found, out, err = call(capsys, "check")
    assert (found, out, err.splitlines()) == (code, "", said)


def test_debug_shows_the_traceback_without_secrets(capsys, monkeypatch):
    def fail(*_, **__):
        raise KeyError("nats://me:hunter2@h")

    monkeypatch.setattr(check_module, "load", fail)
    code, _, err = call(capsys, "check", environ={"ROLLBOOK_DEBUG": "1"})
    assert code == Exit.FAILED
    assert "Traceback" in err
    assert "hunter2" not in err


def test_a_reader_that_went_away_is_no_failure(tmp_path):
    (tmp_path / "rollbook.toml").write_text(GOOD)
    running = program("check")
    running.stdout.close()
    assert (running.stderr.read(), running.wait(60)) == ("", 0)
    running.stderr.close()


CLOSED = """
import os, sys
for number in range(3):
    os.close(number)
os.execv(sys.executable, [sys.executable, "-m", "rollbook.adapters.cli.main", *sys.argv[1:]])
"""


def test_closed_streams_end_no_command(tmp_path):
    """A socket in the place of a closed standard output made the event loop abort the process."""
    nowhere = '[nats]\nurl = "nats://127.0.0.1:1"\n'
    (tmp_path / "rollbook.toml").write_text(GOOD + nowhere)
    for command, code in (["check"], Exit.DONE), (["status"], Exit.FAILED):
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run([sys.executable, "-c", CLOSED, *command], env=environ, timeout=60, check=False)
        assert ended.returncode == code


def test_what_a_stream_cannot_write_is_escaped():
    running = program("publish", "up", "\u00fc", environ={"PYTHONIOENCODING": "ascii"})
    _, err = running.communicate(timeout=60)
    assert running.returncode == Exit.USAGE
    assert r"'\xfc' is not allowed" in err


def test_ctrl_c_is_quiet(tmp_path):
    fifo = tmp_path / "rollbook.toml"
    os.mkfifo(fifo)
    running = program("check")
    with fifo.open("w"):  # opens when the program has begun to read it
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (Exit.INTERRUPTED, "", "")


@pytest.mark.parametrize("module", [init, status])
def test_commands_whose_parts_may_speak_send_that_to_standard_error(capsys, monkeypatch, module, tmp_path):
    """structlog's own default is standard output, where a warning would stand in the middle of the data."""

    def speak(main):
        main.close()
        structlog.get_logger("rollbook").warning("provider.ray.not_joined")
        raise RollbookError("that is enough")

    monkeypatch.setattr(module, "run", speak)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    (tmp_path / "rollbook.toml").write_text(GOOD)
    words = ("status", "--json") if module is status else ("init", "--find", "-c", "other.toml")
    code, out, err = call(capsys, *words)
    assert (code, out) == (1, "")
    assert "provider.ray.not_joined" in err


def test_a_fleet_on_ray_without_ray_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    settings = Settings(fleet="math-rl", provider=RayProvider())

    async def ask():
        async with open_provider(settings, Path()):
            pytest.fail("there is no Ray")

    with pytest.raises(NoProvider, match=r"pip install 'rollbook\[ray\]'"):
        asyncio.run(ask())
