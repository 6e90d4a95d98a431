"""A command as a real process below a real process: neither outlives the other, and nobody below them is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.process import python_process
from support.ray import gone, is_alive
from support.until import until

from rollbook.adapters.ray import leash
from rollbook.adapters.ray.command import CommandActor
from rollbook.adapters.ray.seat import Neighbour, Seat

pytestmark = pytest.mark.integration

SECONDS = 30
SEAT = Seat(
    name="w", incarnation=1, rank=0, cell_size=1, cell_incarnation=0, host="h", rank0="w", workers={"w": Neighbour({})}
)
FAMILY = """
(setsid sh -c 'echo $$ > far; exec sleep 600') &
sh -c 'echo $$ > near; exec sleep 600' &
echo $$ > self
"""
"""Starts a child, and one that leaves its process group, and notes all three."""


def command(text, folder, seconds=5.0):
    made = CommandActor(
        name="w", incarnation=1, host="h", port=0, seat=SEAT, command=text, cwd=str(folder), stop_seconds=seconds
    )
    assert made.start() == {}
    return made


async def pid_in(path):
    async def look():
        return path.read_text().strip() if path.exists() else ""

    return int(await until(look, lambda text: text, SECONDS))


async def family(folder):
    return [await pid_in(folder / name) for name in ("self", "near", "far")]


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exit 0", "its command exited with code 0"),
        ("exit 9", "its command exited with code 9"),
        ("no-such-program-here 2>&-", "its command exited with code 127"),
        ("kill -9 $$", "its command was ended by signal 9 (SIGKILL)"),
        ("kill -TERM $$", "its command was ended by signal 15 (SIGTERM)"),
    ],
)
def test_how_it_ended_is_told(text, told, tmp_path):
    assert command(text, tmp_path).wait() == told


async def test_what_it_left_behind_ends_with_it(tmp_path):
    made = command(FAMILY + "while [ ! -e end ]; do sleep 0.05; done", tmp_path)
    pids = await family(tmp_path)
    assert all(map(is_alive, pids))
    (tmp_path / "end").touch()
    assert made.wait() == "its command exited with code 0"
    assert not any(map(is_alive, pids))


async def test_an_orderly_stop_gives_it_time(tmp_path):
    made = command("trap 'echo bye > said; exit 0' TERM; echo $$ > self; while :; do sleep 0.05; done", tmp_path)
    await pid_in(tmp_path / "self")
    made.stop()
    assert made.wait() == "its command exited with code 0"
    assert (tmp_path / "said").read_text() == "bye\n"
    made.stop()


async def test_one_that_does_not_stop_is_killed(tmp_path):
    made = command("trap '' TERM; " + FAMILY + "while :; do sleep 0.05; done", tmp_path, seconds=0.2)
    pids = await family(tmp_path)
    made.stop()
    assert made.wait() == "its command was ended by signal 9 (SIGKILL)"
    await gone(*pids, seconds=SECONDS)


async def test_a_killed_leash_takes_the_command_with_it_and_all_that_it_started(tmp_path):
    made = command("trap '' TERM; " + FAMILY + "while :; do sleep 0.05; done", tmp_path)
    pids = await family(tmp_path)
    os.kill(parent_of(pids[0]), signal.SIGKILL)
    assert made.wait() == "its command was ended by signal 9 (SIGKILL)"
    await gone(*pids, seconds=SECONDS)


async def test_whoever_is_killed_takes_its_command_with_it(tmp_path):
    code = """
        import subprocess, sys
        path, command, folder = sys.argv[1:]
        leash = subprocess.Popen([sys.executable, path, "5", command], stdin=subprocess.PIPE, cwd=folder)
        print(leash.pid, flush=True)
        leash.wait()
    """
    with python_process(code, leash.__file__, "trap '' TERM; " + FAMILY + "sleep 600", str(tmp_path)) as owner:
        held = int(owner.stdout.readline())
        pids = await family(tmp_path)
        owner.kill()
        await gone(held, *pids, seconds=SECONDS)


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        command("exit 0", tmp_path / "nowhere")


def test_it_needs_nothing_but_the_standard_library():
    line = [sys.executable, "-I", "-S", leash.__file__, "1", "exit 4"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, env={}) as process:
        assert process.wait(SECONDS) == 4
