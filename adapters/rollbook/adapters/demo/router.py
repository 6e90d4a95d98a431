"""A real sglang-router as a process of the demo's, which can be killed and started again on the same port.

It runs with the router's own defaults for retries, health checks and circuit breaker: what the demo shows is what
anybody's router would do. Only the wait for a new worker that does not answer is shortened.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from rollbook.adapters.children import crash, tied
from rollbook.adapters.demo.errors import DemoFailed, MissingExtra
from rollbook.adapters.demo.records import Listed, RouterRestart
from rollbook.adapters.demo.traffic import who_answered
from rollbook.adapters.proxies.sglang import INCARNATION_LABEL, WORKER_LABEL

START_SECONDS: Final = 30.0
"""It takes 2 to 4 seconds alone on two cores, and more beside a starting Ray."""

_POLL_SECONDS: Final = 0.05
_FLAGS: Final = (
    "--policy=round_robin",
    "--log-level=warn",
    "--worker-startup-timeout-secs=6",
    "--worker-startup-check-interval=1",
)


def find_program() -> str:
    """The program `sglang-router`: of this Python's environment, or on PATH. Raises `MissingExtra`."""
    beside = Path(sys.executable).with_name("sglang-router")
    found = str(beside) if beside.is_file() else shutil.which("sglang-router")
    if found is None:
        raise MissingExtra("sglang-router")
    return found


class Router:
    """`sglang-router launch` on loopback, with its output in `directory`. Use it from one event loop.

    The ports are chosen at the first start and kept. It has a session of its own, so that Ctrl-C in a terminal reaches
    only the demo, which ends it.
    """

    def __init__(self, directory: Path) -> None:
        self.port = 0
        self._program = find_program()
        self._metrics_port = 0
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it takes requests, and admin calls too."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of its process, the leader of a session of its own; None if it was not started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Return when it answers. Raises `DemoFailed` with its last words if it does not within `START_SECONDS`."""
        fresh = self.port == 0
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    if fresh:  # a port that was free may be taken by the time that the router binds it
                        self.port, self._metrics_port = _free_ports(2)
                    await self._spawn()
                    if await self._begun():
                        return
                    await self.kill()
        except TimeoutError as exc:
            await self.kill()
            raise DemoFailed(
                f"sglang-router did not answer on {self.url} within {START_SECONDS:g} s; it said last: {self._words()}"
            ) from exc

    async def kill(self) -> None:
        """End it as a crash does; it forgets every registration. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            await crash(process)

    async def restart(self) -> RouterRestart:
        """Kill it and start it again on the same port."""
        at = time.time()
        await self.kill()
        await self.start()
        return RouterRestart(at=at, answered=time.time())

    async def answers(self) -> bool:
        """Whether it says that it is well."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(f"{self.url}/health") as response,
            ):
                return response.status == 200  # noqa: PLR2004 - HTTP's word for yes
        return False

    async def _spawn(self) -> None:
        with (self._directory / "sglang-router.log").open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *tied(
                    [
                        self._program,
                        "launch",
                        "--host=127.0.0.1",
                        f"--port={self.port}",
                        "--prometheus-host=127.0.0.1",
                        f"--prometheus-port={self._metrics_port}",
                        *_FLAGS,
                    ]
                ),
                cwd=self._directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _begun(self) -> bool:
        """Wait until it answers; False if it ended by itself."""
        while self._process is not None and self._process.returncode is None:
            if await self.answers():
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    def _words(self) -> str:
        try:
            lines = (self._directory / "sglang-router.log").read_text(errors="replace").splitlines()
        except OSError:
            return "none"
        return " | ".join(lines[-5:]) or "none"


class _Entry(msgspec.Struct):
    url: str
    metadata: dict[str, str] = {}


class _Listing(msgspec.Struct):
    workers: list[_Entry]


async def list_router(session: aiohttp.ClientSession, url: str) -> tuple[Listed, ...]:
    """What the router at `url` lists, and who answers at each entry's URL: asked directly, and not through Rollbook.

    Raises `DemoFailed` if the router does not say.
    """
    try:
        async with session.get(f"{url}/workers") as response:
            listing = msgspec.json.decode(await response.read(), type=_Listing)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as exc:
        raise DemoFailed(f"sglang-router on {url} does not say what it lists: {exc}") from exc
    return tuple([await _listed(session, entry) for entry in listing.workers])


async def _listed(session: aiohttp.ClientSession, entry: _Entry) -> Listed:
    answers: tuple[str, int] | None = None
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
        async with session.get(f"{entry.url}/health") as response:
            who = who_answered(await response.read())
            answers = who.worker, who.incarnation
    life = entry.metadata.get(INCARNATION_LABEL, "")
    return Listed(
        url=entry.url,
        worker=entry.metadata.get(WORKER_LABEL),
        incarnation=int(life) if life.isdecimal() else None,
        answers=answers,
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
