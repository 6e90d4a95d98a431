"""Python programs in processes of their own, for what only a process can do: fork, exit, be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator
from contextlib import contextmanager

SECONDS = 90.0
STRICT = ("-W", "error", "-W", "ignore:datetime.datetime.utcnow:DeprecationWarning:nats.micro.service")
"""For Python: the warnings of the tests' own process, as pyproject.toml has them."""


def run_python(code: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with warnings as errors."""
    ended = subprocess.run(
        _command(code, arguments), capture_output=True, text=True, check=False, timeout=SECONDS, env=_environ()
    )
    assert not check or ended.returncode == 0, ended.stderr
    return ended


@contextmanager
def python_process(code: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Start it, with its stdout to read from and stdin to write to; it is killed at the end, if it still runs."""
    with subprocess.Popen(
        _command(code, arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environ()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def no_thread_left() -> Generator[None]:
    """This process can start no thread within the block, as at its limit: no room is left for such a stack."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


_LOGS_TO_STDERR = """
import sys, structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
"""


def _command(code: str, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, *STRICT, "-c", _LOGS_TO_STDERR + textwrap.dedent(code), *arguments]


def _environ() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
