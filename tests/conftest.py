"""What every test gets: this environment's programs on PATH, none of the caller's ROLLBOOK_ variables, no deadlines."""

import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import structlog

# A busy machine is no failure of the code.
hypothesis.settings.register_profile("rollbook", deadline=None)
hypothesis.settings.load_profile("rollbook")

pytest_plugins = ["support.nats", "support.ray"]


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a parallel run (`-n`, `--dist loadgroup`) all tests on Ray share one process, and so one cluster."""
    for item in items:
        if item.get_closest_marker("ray") is not None:
            item.add_marker(pytest.mark.xdist_group("ray"))


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
    """What one test configures (a level, a format) is not there for the next."""
    yield
    structlog.reset_defaults()
