"""`rollbook demo`: watch Rollbook do its job on real parts, and have the run judged."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from rollbook.adapters.cli.common import Json, run
from rollbook.adapters.cli.exits import Exit, OutputClosed, UsageError
from rollbook.adapters.cli.output import Lines, out, say

if TYPE_CHECKING:
    from rollbook.adapters.demo.records import Run
    from rollbook.adapters.demo.stage import Stage

EXAMPLE = """\
Example:

    rollbook demo
    rollbook demo --workers 2 --seconds 15 --kills 3 --seed 5 --json
    rollbook demo --chaos --seconds 90 --seed 11

What happens is shown on standard error, the report goes to standard output. Exit code 0 says that every invariant held,
2 that one was broken, 1 that a part of the demo itself did not come up; then the folder with the log is kept."""

MOST_WORKERS: Final = 32
FEWEST_SECONDS: Final = 5.0
MOST_SECONDS: Final = 3600.0
KILLS: Final = 6
CHAOS_SECONDS: Final = 5.0
"""Of a chaos run for each fault, if nobody says how many there are to be."""
FEWEST_CHAOS_SECONDS: Final = 20.0


def demo(
    *,
    workers: Annotated[int, Parameter(help="Ray actors that serve HTTP behind the router.")] = 4,
    seconds: Annotated[float, Parameter(help="How long traffic and kills go on.")] = 30.0,
    kills: Annotated[
        int | None,
        Parameter(
            help="How many times a worker's process gets SIGKILL, by default 6; with --chaos how many faults of all "
            "kinds, by default one for every 5 seconds.",
            show_default=False,
        ),
    ] = None,
    chaos: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Everything is a process of its own and everything is hurt: workers, monitor, recoverer, controllers, "
            "NATS, the router, a Ray node.",
        ),
    ] = False,
    seed: Annotated[int | None, Parameter(help="Repeats a schedule of kills; by default a new one.")] = None,
    directory: Annotated[
        Path | None,
        Parameter(help="An empty folder for the log and the programs' own logs; by default a temporary one."),
    ] = None,
    json: Json = False,
) -> int:
    """Kill workers behind a real sglang-router under live traffic, and see every registration follow.

    An embedded NATS, a local Ray and sglang-router are started for it, and ended again. Meanwhile `rollbook status` and
    `rollbook log --follow` work in the folder of the run.
    """
    from rollbook.adapters import logs
    from rollbook.adapters.demo.calm import CalmStage
    from rollbook.adapters.demo.report import judge
    from rollbook.adapters.demo.stage import Options, require_parts
    from rollbook.adapters.demo.storm import StormStage
    from rollbook.adapters.demo.text import render

    if kills is None:
        kills = int(seconds / CHAOS_SECONDS) if chaos and math.isfinite(seconds) else KILLS
    _check(workers, seconds, kills, chaos=chaos)
    require_parts()
    chosen = random.randrange(10_000) if seed is None else seed  # noqa: S311 - chance that can be repeated, no secret
    options = Options(workers=workers, seconds=seconds, kills=kills, seed=chosen)
    with _folder(directory) as folder, (folder.path / "rollbook.log").open("w", encoding="utf-8") as file:
        logs.configure(environ=os.environ, format="json", stream=file)
        stage = StormStage(options, folder.path) if chaos else CalmStage(options, folder.path)
        played = run(_until_stopped(stage))
        if played is None:
            return Exit.INTERRUPTED
        report = judge(played)
        if json:
            out(msgspec.json.encode(report).decode())
        else:
            lines = Lines()
            for line in render(report):
                lines.write(line)
        if report.passed:
            return Exit.DONE
        folder.keep = True
        broken = sum(not check.held for check in report.checks)
        say(f"rollbook: {broken} of the demo's promises did not hold; the report says which, and what broke them")
    return Exit.DIFFERENCES


def _check(workers: int, seconds: float, kills: int, *, chaos: bool) -> None:
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"--workers is {workers}; give a number from 1 to {MOST_WORKERS}")
    fewest = FEWEST_CHAOS_SECONDS if chaos else FEWEST_SECONDS
    if not fewest <= seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds is {seconds:g}; give a number from {fewest:g} to {MOST_SECONDS:g}")
    if not 0 <= kills <= seconds:
        raise UsageError(f"--kills is {kills}; give a number from 0 to one for each second, {seconds:g}")


class _Folder:
    """The folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keep = False
        """Whether it is to be looked into afterwards."""


@contextlib.contextmanager
def _folder(given: Path | None) -> Generator[_Folder]:
    """A temporary one is removed at the end, unless something failed. Raises `UsageError`."""
    if given is None:
        path = Path(tempfile.mkdtemp(prefix="rollbook-demo-"))
    else:
        try:
            given.mkdir(parents=True, exist_ok=True)
            used = any(given.iterdir())
        except OSError as exc:
            raise UsageError(f"--directory {given} cannot be used: {exc.strerror}; name another") from exc
        if used:
            raise UsageError(f"--directory {given} is not empty; name a new one, for the log in it is another run's")
        path = given.absolute()
    folder = _Folder(path)
    try:
        yield folder
    except Exception as exc:
        folder.keep = not isinstance(exc, OutputClosed)
        raise
    finally:
        if folder.keep:
            say(f"rollbook: the log and the programs' own logs are kept in {path}")
        elif given is None:
            shutil.rmtree(path, ignore_errors=True)


async def _until_stopped(stage: Stage) -> Run | None:
    """Run it. Ctrl-C, SIGTERM and a closed terminal end it early, and cleanly: then None."""
    running = asyncio.ensure_future(stage.run())
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        return await running
    except BaseException:
        if not stopped:
            raise
        return None
