"""What every test gets: this environment's programs on PATH, none of the caller's ROLLBOOK_ variables, no deadlines."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

# A busy machine is no failure of the code.
hypothesis.settings.register_profile("rollbook", deadline=None)
hypothesis.settings.load_profile("rollbook")

# A run in the background of a script ignores Ctrl-C, and so would every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["support.nats", "support.stream", "support.ray"]


_TOGETHER = {
    "test_demo.py": "demo",
    "test_ray_faults.py": "two nodes",
    "test_ray_manager": "ray manager",
} | dict.fromkeys(
    ("test_ray", "_ray.py", "test_worker_provider.py", "[ray]", "test_dropins_page.py", "a_ray_that_runs_here"), "ray"
)
"""Which tests share a Ray, and so a process: by the first of these that their name has."""


class FewClusters(LoadScopeScheduling):
    """In a parallel run most tests that start Ray go to one process, one after the other; the others go anywhere."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for part, group in _TOGETHER.items() if part in nodeid), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FewClusters:
    return FewClusters(config, log)


@pytest.fixture(scope="session", autouse=True)
def _no_rollbook_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # nats-server, sglang-router and rollbook are where this Python is, also if nobody activated its environment.
        patch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))  # noqa: PTH120
        for name in [name for name in os.environ if name.startswith("ROLLBOOK_")]:
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Iterator[None]:
    """What one test configures (a level, a format, a handler) is not there for the next."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no configuration, and lines are as long as they like."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
