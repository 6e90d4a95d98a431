"""One of Rollbook's own programs, kept running as a supervisor (systemd, Kubernetes) would keep it, and killable.

It ends with the process that started it, whatever that dies of.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rollbook.adapters.children import tied
from rollbook.adapters.demo.errors import DemoFailed
from rollbook.adapters.demo.records import Fall
from rollbook.projections.ending import apart

AGAIN_SECONDS: Final = 1.0
"""Between the end of a program that nobody killed and its next start."""
BEGIN_SECONDS: Final = 90.0
"""For a program to do its work after its start: it imports Ray and joins it, on a machine that may be busy."""
_STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.1
_SHORT: Final = 300


class _Line(msgspec.Struct):
    event: str = ""


class Program:
    """`rollbook` with `arguments` in `directory`, its output in `<name>.log` there. Belongs to one event loop.

    It does its work once one of the events `begun` is in that output.
    """

    def __init__(self, name: str, arguments: Sequence[str], begun: Sequence[str], directory: Path) -> None:
        self.name = name
        self.falls: list[Fall] = []
        self._arguments = arguments
        self._begun = frozenset(begun)
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._offset = 0
        """Of its output: where that of the present process begins."""
        self._away: float | None = None
        """Seconds until the next start, of one that was killed on purpose."""

    @property
    def pid(self) -> int | None:
        """Of its process; None while it has none."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    @property
    def works(self) -> bool:
        """Whether its process lives and has begun its work."""
        return self.pid is not None and self._has_begun()

    async def work(self) -> None:
        """Wait until it works. Raises `DemoFailed` if it does not within `BEGIN_SECONDS`."""
        until = time.monotonic() + BEGIN_SECONDS
        while not self.works:
            if time.monotonic() > until:
                raise DemoFailed(
                    f"{self.name} did not begin its work within {BEGIN_SECONDS:g} s; it said last: {self._words()}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    def kill(self, away: float) -> None:
        """SIGKILL; it is started again `away` seconds later."""
        self._away = away
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process, if it has one."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def keep(self) -> None:
        """Run it, again and again, until cancelled."""
        try:
            while True:
                process = await self._spawn()
                code = await process.wait()
                away, self._away = self._away, None
                if away is None:
                    self.falls.append(Fall(program=self.name, at=time.time(), code=code, said=self._words()))
                    away = AGAIN_SECONDS
                await asyncio.sleep(away)
        finally:
            await apart(self._end())

    async def _spawn(self) -> asyncio.subprocess.Process:
        with (self._directory / f"{self.name}.log").open("ab") as output:
            self._offset = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *tied([sys.executable, "-m", "rollbook.adapters.cli.main", *self._arguments]),
                cwd=self._directory,
                env=_without_configuration(os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which ends its programs in their order
            )
        return self._process

    async def _end(self) -> None:
        """As an operator would: SIGTERM, and SIGKILL if it takes too long."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGCONT, signal.SIGTERM):
            self.send(number)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await process.wait()

    def _has_begun(self) -> bool:
        return any(self._event(line) in self._begun for line in self._output().splitlines())

    def _event(self, line: bytes) -> str:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(line, type=_Line).event
        return ""

    def _output(self) -> bytes:
        """What the present process, or the last one, has said."""
        with contextlib.suppress(OSError), (self._directory / f"{self.name}.log").open("rb") as output:
            output.seek(self._offset)
            return output.read()
        return b""

    def _words(self) -> str:
        lines = self._output().decode(errors="replace").splitlines()
        return (lines[-1] if lines else "nothing")[:_SHORT]


@contextlib.asynccontextmanager
async def kept(programs: Sequence[Program]) -> AsyncGenerator[None]:
    """Keep them running beside the body; all are ended afterwards, at the same time."""
    keeping = [asyncio.create_task(program.keep(), name=program.name) for program in programs]
    try:
        yield
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


def _without_configuration(environ: Mapping[str, str]) -> dict[str, str]:
    """What would configure Rollbook otherwise than the file in its folder is left out."""
    return {name: value for name, value in environ.items() if not name.startswith("ROLLBOOK_")}
