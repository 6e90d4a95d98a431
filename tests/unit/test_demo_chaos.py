"""The demo's schedule can be repeated, and its kills are carried out on real processes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from rollbook.adapters.demo import hunting
from rollbook.adapters.demo.chaos import Chaos, Schedule, Strike, make_schedule
from rollbook.adapters.demo.hunting import Hunter, Victim
from rollbook.adapters.demo.records import RouterRestart
from rollbook.projections.ports import HostAndPort

WORKERS = ("rollout-0-0", "rollout-1-0", "rollout-2-0")
NOWHERE = HostAndPort("127.0.0.1", 1)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    yield made
    for process in made:
        process.kill()
        process.communicate()


def say(text: str) -> None:
    pass


async def restarted() -> RouterRestart:
    return RouterRestart(at=1.0, answered=2.0)


def test_a_seed_gives_one_schedule() -> None:
    schedules = [make_schedule(5, workers=WORKERS, seconds=30, kills=6) for _ in range(2)]
    assert schedules[0] == schedules[1]
    assert schedules[0] != make_schedule(6, workers=WORKERS, seconds=30, kills=6)


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_leaves_time_at_both_ends(seed: int) -> None:
    schedule = make_schedule(seed, workers=WORKERS, seconds=20, kills=8)
    moments = [strike.at for strike in schedule.strikes]
    assert moments == sorted(moments)
    assert len(moments) == 8
    assert all(1 <= moment <= 16 for moment in moments)
    assert 8 <= schedule.router_at <= 12
    assert {strike.worker for strike in schedule.strikes} <= set(WORKERS)


async def test_it_kills_each_life_once_and_restarts_the_router(processes: list[subprocess.Popen[bytes]]) -> None:
    lives = [Victim(number, process.pid, NOWHERE, serving=True) for number, process in enumerate(processes, 1)]
    asked: list[str] = []

    async def find(worker: str) -> Victim | None:
        """The second life comes a while after the first one's death."""
        asked.append(worker)
        if processes[0].poll() is None:
            return lives[0]
        return lives[1] if len(asked) > 4 else lives[0]

    schedule = Schedule(tuple(Strike(0, "rollout-0-0", port_taken=False, grace=0) for _ in range(2)), router_at=0)
    hunter = Hunter(find, say)
    made = Chaos(schedule, hunter, restarted, say)
    await made.run()
    await hunter.close()
    assert [(kill.incarnation, kill.pid) for kill in hunter.kills] == [(1, processes[0].pid), (2, processes[1].pid)]
    assert [process.wait(10) for process in processes] == [-9, -9]
    assert made.restarts == [RouterRestart(at=1.0, answered=2.0)]


async def test_a_victim_that_is_waited_for_is_not_killed_before_it_serves(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    starting = Victim(2, processes[0].pid, None, serving=False)
    answers = iter([None, starting, starting, msgspec.structs.replace(starting, serving=True)])
    asked = 0

    async def find(worker: str) -> Victim | None:
        nonlocal asked
        asked += 1
        return next(answers)

    hunter = Hunter(find, say)
    assert await hunter.strike("rollout-0-0", "killed", port_taken=True, grace=0)
    assert asked == 4
    assert [(kill.incarnation, kill.port_taken) for kill in hunter.kills] == [(2, False)]


async def test_a_victim_that_does_not_live_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunting, "VICTIM_SECONDS", 0.2)

    async def find(worker: str) -> Victim | None:
        return None

    hunter = Hunter(find, say)
    assert not await hunter.strike("rollout-0-0", "killed", port_taken=True, grace=0)
    assert hunter.kills == []


async def test_a_taken_port_belongs_to_somebody_who_hangs_up(processes: list[subprocess.Popen[bytes]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def find(worker: str) -> Victim | None:
        return Victim(1, processes[0].pid, HostAndPort("127.0.0.1", port), serving=False)

    hunter = Hunter(find, say)
    assert await hunter.strike("rollout-0-0", "killed", port_taken=True, grace=0)
    try:
        assert [kill.port_taken for kill in hunter.kills] == [True]
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    finally:
        await hunter.close()


async def test_a_life_that_hangs_lives_on_and_is_not_hit_again(processes: list[subprocess.Popen[bytes]]) -> None:
    async def find(worker: str) -> Victim | None:
        return Victim(1, processes[0].pid, NOWHERE, serving=True)

    hunter = Hunter(find, say)
    assert await hunter.strike("rollout-0-0", "hung", port_taken=False, grace=0)
    await asyncio.to_thread(os.waitid, os.P_PID, processes[0].pid, os.WSTOPPED | os.WNOWAIT)
    assert await hunter.fresh("rollout-0-0") is None
    assert [kill.how for kill in hunter.kills] == ["hung"]


async def test_what_dies_with_its_node_is_counted_once() -> None:
    async def find(worker: str) -> Victim | None:
        return None

    hunter = Hunter(find, say)
    for _ in range(2):
        hunter.died("rollout-0-0", 3, 5.0)
    assert [(kill.worker, kill.incarnation, kill.how) for kill in hunter.kills] == [("rollout-0-0", 3, "node died")]
