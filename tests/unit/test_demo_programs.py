"""Rollbook's programs in a chaos run are kept running whatever ends them, and end with whoever keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from support.ray import is_alive
from support.until import until

from rollbook.adapters.demo.programs import Program, kept
from rollbook.adapters.demo.storm_setting import command, served, write_configuration
from rollbook.adapters.settings import load

SECONDS = 60
WAITS = ["demo-worker", "--name", "rollout-0-0"]
"""Without a NATS it waits for the number of its life."""


@pytest.fixture(autouse=True)
def our_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path))


@contextlib.asynccontextmanager
async def keeping(program: Program) -> AsyncGenerator[None]:
    async with kept([program]):
        await until(lambda: asyncio.sleep(0, program.pid), bool, SECONDS)
        yield


async def test_one_that_ends_by_itself_is_noted_and_started_again(tmp_path: Path) -> None:
    program = Program("version", ["--version"], [], tmp_path)
    async with keeping(program):
        await until(lambda: asyncio.sleep(0, len(program.falls)), lambda falls: falls > 1, SECONDS)
    assert {(fall.program, fall.code) for fall in program.falls} == {("version", 0)}
    assert not program.works


async def test_one_that_is_killed_is_started_again_and_is_no_fall(tmp_path: Path) -> None:
    (tmp_path / "rollbook.toml").write_text('fleet = "demo"\n[nats]\nurl = "nats://127.0.0.1:1"\n', encoding="utf-8")
    program = Program("worker", WAITS, [], tmp_path)
    async with keeping(program):
        first = program.pid
        program.kill(0.1)
        await until(lambda: asyncio.sleep(0, program.pid), lambda pid: pid not in {None, first}, SECONDS)
        second = program.pid
    assert program.falls == []
    assert second is not None
    assert not is_alive(second)


async def test_it_works_once_it_has_said_so_in_this_start(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text('{"event": "begun"}\n', encoding="utf-8")
    program = Program("worker", WAITS, ["begun"], tmp_path)
    async with keeping(program):
        assert not program.works
        with (tmp_path / "worker.log").open("a", encoding="utf-8") as log:
            log.write('no JSON\n{"event": "begun", "more": 1}\n')
        assert program.works


def test_what_a_chaos_run_is_set_up_with_is_right(tmp_path: Path) -> None:
    (tmp_path / ".rollbook").mkdir()
    nats, router = "nats://secret@127.0.0.1:4222", "http://127.0.0.1:30000"
    file = write_configuration(tmp_path, nats=nats, ray="127.0.0.2:6379", router=router)
    config = load(file, environ={}, cwd=tmp_path)
    assert config.warnings == ()
    assert config.settings.nats.url == "nats://127.0.0.1:4222"
    assert "secret" not in file.read_text(encoding="utf-8")
    token = tmp_path / ".rollbook" / "token"
    assert (token.read_text(encoding="utf-8"), stat.S_IMODE(token.stat().st_mode)) == ("secret", 0o600)


def test_every_worker_of_a_chaos_run_is_restarted_by_the_recoverer_alone() -> None:
    assert [spec("rollout-0-0").restart for spec in (served, command)] == ["recoverer", "recoverer"]
