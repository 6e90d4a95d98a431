"""compose.yaml is valid, and every program, flag and file that it and the Dockerfile name exists."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rollbook.adapters.settings import load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = YAML(typ="safe").load(ROOT / "compose.yaml")
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def commands(program):
    return {name: s["command"] for name, s in SERVICES.items() if s["command"][0] == program}


def flags(command):
    return [word.split("=")[0] for word in command if word.startswith("-")]


def option(command, name):
    return command[command.index(name) + 1]


@cache
def words_of_help(*command):
    """The words of a real program's help."""
    here = Path(sys.executable).parent
    program = shutil.which(command[0], path=f"{here}{os.pathsep}{os.environ['PATH']}")
    assert program, f"{command[0]} is not installed"
    answer = subprocess.run(
        [program, *command[1:], "--help"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert answer.returncode == 0, answer.stderr
    # nats-server writes its help to standard error.
    return frozenset((answer.stdout + answer.stderr).replace(",", " ").replace("[", " ").replace("]", " ").split())


def test_the_file_follows_the_compose_specification():
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",  # the specification's own schema, shipped with the tool
            str(ROOT / "compose.yaml"),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_service_runs_a_known_program():
    assert {s["command"][0] for s in SERVICES.values()} == {"nats-server", "rollbook", "sglang-router"}


@pytest.mark.parametrize(("service", "command"), commands("rollbook").items())
def test_rollbook_has_the_command_and_its_flags(service, command):
    from rollbook.adapters.cli.main import app

    subcommand = command[1]
    assert subcommand in list(app), f"{service}: rollbook has no command {subcommand}"
    assert set(flags(command)) <= words_of_help("rollbook", subcommand)


@pytest.mark.parametrize(
    ("command", "asks"),
    [(c, ("sglang-router", "launch")) for c in commands("sglang-router").values()]
    + [(c, ("nats-server",)) for c in commands("nats-server").values()],
)
def test_the_servers_have_the_flags(command, asks):
    assert tuple(command[: len(asks)]) == asks
    assert set(flags(command)) <= words_of_help(*asks)


def test_nats_accepts_its_configuration():
    server = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    answer = subprocess.run(
        [server, "-t", "-c", str(ROOT / "deploy/nats.conf")], check=False, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr


def test_mounted_files_exist():
    binds = [v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", ()) if v.startswith("./")]
    assert binds
    assert [b for b in binds if not (ROOT / b).is_file()] == []


def test_named_volumes_are_declared():
    named = {v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", ()) if not v.startswith("./")}
    assert named == set(COMPOSE["volumes"])


def test_build_targets_and_copied_files_exist():
    lines = [line.split() for line in DOCKERFILE.splitlines()]
    targets = {words[3] for words in lines if words[:1] == ["FROM"]}
    assert {s["build"]["target"] for s in SERVICES.values()} <= targets
    copied = [source for words in lines if words[:1] == ["COPY"] for source in words[1:-1]]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == set(copied)


def test_the_controllers_configuration_is_good_and_names_the_services():
    config = load(ROOT / "deploy/rollbook.toml", environ={}, cwd=ROOT).settings
    workers = {
        option(c, "--name"): f"{service}:{option(c, '--port')}"
        for service, c in commands("rollbook").items()
        if c[1] == "demo-worker"
    }
    assert {name: named["primary"] for name, named in config.provider.workers.items()} == workers
    (router,) = [(service, flag) for service, c in commands("sglang-router").items() for flag in c if "--port=" in flag]
    assert config.proxies[0].admin_url == f"http://{router[0]}:{router[1].removeprefix('--port=')}"
    for service in workers.values():
        environment = SERVICES[service.split(":")[0]]["environment"]
        assert environment == {"ROLLBOOK_NATS_URL": config.nats.url, "ROLLBOOK_FLEET": config.fleet}
