"""What every test gets: this environment's programs on PATH, none of the caller's ROLLBOOK_ variables, no deadlines."""

import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# A busy machine is no failure of the code.
hypothesis.settings.register_profile("rollbook", deadline=None)
hypothesis.settings.load_profile("rollbook")

pytest_plugins = ["support.nats", "support.ray"]


@pytest.fixture(scope="session", autouse=True)
def _no_rollbook_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # nats-server, sglang-router and rollbook are where this Python is, also if nobody activated its environment.
        patch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))  # noqa: PTH120
        for name in [name for name in os.environ if name.startswith("ROLLBOOK_")]:
            patch.delenv(name)
        yield
