"""A million seeds, on all cores, in as many sittings as it takes: `make simulate`, or by hand

    PYTHONPATH=tests python -m simulation.campaign FOLDER [--seeds 1000000] [--jobs 2] [--anew]

FOLDER/state.json holds what is done so far. Ctrl-C stops it, and the same command goes on from there. A seed that
breaks an invariant is printed with the command that runs it again, and the campaign goes on. Exit codes: 0 all right,
1 some seed was wrong, 64 the folder is another build's, 130 interrupted.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
from simulation import batch
from simulation.sketch import REGISTERS, Sketch

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 50
"""Seeds that one process runs between two words to the others."""
LINE_SECONDS = 30.0
"""Between two lines where the output is no terminal."""
MOST_WRONG = 20
"""Seeds; so many, and the build is not worth the rest."""


class Progress(msgspec.Struct):
    """What FOLDER/state.json holds."""

    build: str
    next: int = 0
    seconds: float = 0.0
    """Spent so far, in all sittings."""
    registers: str = base64.b64encode(bytes(REGISTERS)).decode()
    counts: dict[str, int] = {}
    wrong: dict[int, str] = {}


class Ran(msgspec.Struct):
    """What a chunk did."""

    registers: bytes
    counts: dict[str, int]
    wrong: list[tuple[int, str]]


def build() -> str:
    """Of the code that a seed's schedule depends on."""
    digest = hashlib.sha256()
    for folder in ("events", "projections", "adapters/rollbook/adapters/memory", "tests/simulation"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_stopped = None


def _begin(stopped) -> None:
    """In a new process: Ctrl-C is its parent's business."""
    global _stopped  # noqa: PLW0603 - a process of a pool has nowhere else to keep it
    _stopped = stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _chunk(first: int, beyond: int) -> Ran | None:
    """Run a chunk; None if it was stopped in the middle."""

    def until_stopped():
        for seed in range(first, beyond):
            if _stopped.is_set():
                return
            yield seed

    done = batch.run(until_stopped())
    if done.done < beyond - first:
        return None
    sketch = Sketch()
    sketch.add(done.states)
    return Ran(bytes(sketch.registers), dict(done.counts), [(seed, told.split("\n\n")[0]) for seed, told in done.wrong])


class Campaign:
    """One sitting."""

    def __init__(self, folder: Path, progress: Progress, seeds: int) -> None:
        self._file = folder / "state.json"
        self.progress = progress
        self._seeds = seeds
        self._sketch = Sketch(base64.b64decode(progress.registers))
        self._told = 0.0
        self._began, self._first, self._before = time.monotonic(), progress.next, progress.seconds

    def run(self, jobs: int) -> int:
        context = multiprocessing.get_context("spawn")
        stopped = context.Event()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with concurrent.futures.ProcessPoolExecutor(jobs, context, _begin, (stopped,)) as pool:
            try:
                self._work(pool, jobs)
            except KeyboardInterrupt:
                sys.stdout.write(
                    f"\nstopped after seed {self.progress.next - 1}; the same command goes on from there\n"
                )
                return 130
            finally:
                stopped.set()
                self._save()
        sys.stdout.write(f"\n{self._line()}\n")
        return 1 if self.progress.wrong else 0

    def _work(self, pool, jobs: int) -> None:
        """Chunks in their order, some ahead of the one that is waited for."""
        ahead: deque = deque()
        first = self.progress.next
        while (ahead or first < self._seeds) and len(self.progress.wrong) < MOST_WRONG:
            while first < self._seeds and len(ahead) < 3 * jobs:
                beyond = min(first + CHUNK, self._seeds)
                ahead.append((beyond, pool.submit(_chunk, first, beyond)))
                first = beyond
            beyond, ran = ahead.popleft()
            self._note(beyond, ran.result())

    def _note(self, beyond: int, ran: Ran) -> None:
        progress = self.progress
        self._sketch.merge(ran.registers)
        for name, count in ran.counts.items():
            progress.counts[name] = progress.counts.get(name, 0) + count
        for seed, told in ran.wrong:
            progress.wrong[seed] = told
            sys.stdout.write(f"\n{told}\nRun it again: PYTHONPATH=tests python -m simulation {seed}\n")
        progress.next = beyond
        self._save()
        now = time.monotonic()
        if sys.stdout.isatty() or now >= self._told + LINE_SECONDS:
            self._told = now
            sys.stdout.write(("\r" if sys.stdout.isatty() else "\n") + self._line())
            sys.stdout.flush()

    def _save(self) -> None:
        self.progress.seconds = self._before + time.monotonic() - self._began
        self.progress.registers = base64.b64encode(self._sketch.registers).decode()
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(self.progress)))
        new.replace(self._file)

    def _line(self) -> str:
        done = self.progress.next - self._first
        pace = done / max(time.monotonic() - self._began, 0.001)
        left = (self._seeds - self.progress.next) / pace / 3600 if pace else 0.0
        return (
            f"{self.progress.next:,} of {self._seeds:,} seeds, {60 * pace:,.0f} a minute, {left:.1f} h to go, "
            f"about {self._sketch.size():,} distinct states, {len(self.progress.wrong)} wrong"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.campaign", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--anew", action="store_true", help="forget what the folder holds")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    state = asked.folder / "state.json"
    progress = Progress(build=build())
    if state.exists() and not asked.anew:
        known = msgspec.json.decode(state.read_bytes(), type=Progress)
        if known.build != progress.build:
            sys.stderr.write(
                f"{state} holds {known.next:,} seeds of another build ({known.build}, this is {progress.build}): the "
                "same seed is another schedule now. Give another folder, or --anew to begin again in this one\n"
            )
            return 64
        progress = known
    return Campaign(asked.folder, progress, asked.seeds).run(asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
