"""`rollbook demo` as a newcomer runs it: it passes, it says when a promise is broken, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from support.until import until

from rollbook.adapters.demo.worker import serve

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.router, pytest.mark.timeout(400)]

MARK = "ROLLBOOK_DEMO_TEST"
WORKERS = ["rollout-0-0", "rollout-1-0"]


class Demo:
    """A demo in a process of its own. `mark` is in the environment of every process that it starts.

    `temporary` is where it finds the system's temporary folder.
    """

    def __init__(self, process: asyncio.subprocess.Process, mark: str, temporary: str) -> None:
        self.process = process
        self.mark = mark
        self.temporary = temporary
        self.said: list[str] = []

    async def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line on standard error has it."""
        while line := await self.process.stderr.readline():
            self.said.append(line.decode())
            if found := re.search(pattern, self.said[-1]):
                return found
        raise AssertionError(f"never said {pattern!r}:\n{''.join(self.said)}")

    async def finish(self) -> tuple[int, str]:
        """Exit code and standard output."""
        out, err = await self.process.communicate()
        self.said.append(err.decode())
        return self.process.returncode, out.decode()

    def files_left(self) -> list[str]:
        return [file.name for file in Path(self.temporary).iterdir()]

    async def nothing_left(self) -> None:
        """Wait until no process has the mark: Ray's own agents take up to a minute to notice that they are alone."""
        await until(lambda: asyncio.to_thread(marked, self.mark), lambda left: not left, 150)


def marked(mark: str) -> list[str]:
    """The command lines of living processes that were started with this mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@contextlib.asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Demo]:
    mark = uuid.uuid4().hex
    # Not pytest's folder: its path is too long for Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="d", ignore_cleanup_errors=True) as temporary:
        path = os.pathsep.join(path for path in sys.path if path)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rollbook.adapters.cli.main", "demo", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=2**20,
            env=os.environ | {"PYTHONPATH": path, "TMPDIR": temporary, MARK: mark},
            start_new_session=True,
        )
        demo = Demo(process, mark, temporary)
        try:
            yield demo
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()
            await demo.nothing_left()


def verdicts(report: dict) -> dict[str, list[str]]:
    return {check["name"]: check["broken"] for check in report["checks"] if not check["held"]}


async def test_a_run_passes_and_its_report_is_sane(tmp_path: Path) -> None:
    """[I1] [I2] [I3] [I5] [I8] [I9], on real parts."""
    folder = tmp_path / "run"
    arguments = ("--workers", "2", "--seconds", "15", "--kills", "3", "--seed", "5", "--json")
    async with running(*arguments, "--directory", str(folder)) as demo:
        code, out = await demo.finish()
        assert demo.files_left() == []
    assert code == 0, "".join(demo.said) + out
    report = json.loads(out)
    assert verdicts(report) == {}
    assert report["passed"] is True
    assert (report["seed"], report["workers"]) == (5, WORKERS)
    assert report["seconds"] >= 15
    assert len(report["kills"]) == 3
    for kill in report["kills"]:
        assert kill["worker"] in WORKERS
        # The router serves from its own add on; that it was seen to list the worker is known a moment later.
        assert 0 < kill["down"] < kill["registered"]
        assert kill["down"] < kill["served"]
        assert kill["deregistered"] is None or 0 < kill["deregistered"] < kill["registered"]
        assert (kill["deregistered"] is not None) or not kill["was_registered"]
    [restart] = report["restarts"]
    assert 0 < restart["answered"] < restart["served"]
    requests = report["requests"]
    assert requests["sent"] > 100
    assert requests["failed"] == sum(requests["failures"].values()) < requests["sent"]
    assert (requests["wrong"], requests["unregistered"]) == (0, 0)
    deaths = {worker: [kill["worker"] for kill in report["kills"]].count(worker) for worker in WORKERS}
    assert report["registered"] == {worker: 1 + deaths[worker] for worker in WORKERS}
    assert report["facts"] >= report["sequence"] > 20
    assert all(check["looked_at"] > 0 for check in report["checks"])
    told = "".join(demo.said)
    assert "worker.down" in told
    assert "proxy.deregistered" in told
    assert "proxy.registered" in told
    token = json.loads((folder / ".rollbook" / "nats.json").read_text())["token"]
    assert all(token not in text for text in (told, out, (folder / "rollbook.log").read_text()))


async def test_a_stranger_that_answers_as_a_dead_life_breaks_the_run(tmp_path: Path) -> None:
    """[I2]: somebody puts an old life back into the router. Rollbook leaves it alone [I11], and the demo tells."""
    folder = tmp_path / "run"
    arguments = ("--workers", "1", "--seconds", "12", "--kills", "1", "--seed", "1", "--directory", str(folder))
    async with running(*arguments) as demo, serve("rollout-0-0", 1) as stranger:
        router = (await demo.until(r"sglang-router answers on (http://\S+);"))[1]
        await demo.until("demo: running")
        sabotage = asyncio.create_task(put_back(router, f"http://{stranger}"))
        try:
            code, out = await demo.finish()
        finally:
            sabotage.cancel()
    assert code == 2, "".join(demo.said) + out
    # Whether the last listing holds it depends on how soon the router, restarted in between, took it again.
    assert "served by rollout-0-0 1: the log knew that this life was over" in out
    assert re.search(r"[1-9]\d* served by a wrong or dead incarnation", out)
    assert "promises were broken" in out
    assert "of the demo's promises did not hold" in demo.said[-1]
    assert str(folder) in demo.said[-1]


async def put_back(router: str, url: str) -> None:
    """Add an entry without labels again and again; the router forgets it when it is restarted."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.post(f"{router}/workers", json={"url": url}):
                    pass
            await asyncio.sleep(1)


CALM, CHAOS = ("--kills", "1"), ("--chaos", "--kills", "30", "--seed", "1")


@pytest.mark.parametrize(
    ("moment", "number", "how"),
    [
        ("launching", signal.SIGINT, CALM),
        ("running", signal.SIGTERM, CALM),
        (".* stands still", signal.SIGINT, CHAOS),
    ],
)
async def test_it_can_be_stopped_at_any_moment(moment: str, number: signal.Signals, how: tuple[str, ...]) -> None:
    async with running("--workers", "1", "--seconds", "60", *how) as demo:
        await demo.until(f"demo: {moment}")
        demo.process.send_signal(number)
        code, out = await demo.finish()
        assert (code, out) == (130, ""), "".join(demo.said)
        assert demo.files_left() == []


async def test_a_demo_that_is_killed_leaves_no_process() -> None:
    async with running("--workers", "1", "--seconds", "60", *CHAOS) as demo:
        await demo.until("demo: running")
        assert len(marked(demo.mark)) > 5
        demo.process.kill()
        assert (await demo.finish())[0] == -signal.SIGKILL
        await demo.nothing_left()
