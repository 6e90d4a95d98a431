"""What every test gets: an environment without the caller's ROLLBOOK_ variables, and no deadline per example."""

import os
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
        for name in [name for name in os.environ if name.startswith("ROLLBOOK_")]:
            patch.delenv(name)
        yield
