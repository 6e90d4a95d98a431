"""The simulation can fail: whoever breaks one of the guards in sabotage.py is found out within a few seeds."""

import re
from pathlib import Path

import pytest
from simulation import sabotage

pytestmark = pytest.mark.simulation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("broken", sabotage.SABOTAGES, ids=lambda each: each.__name__)
def test_a_broken_guard_is_found_out(broken):
    """Looked for first where the page says that it was found."""
    where = re.search(rf"^\| `{broken.__name__}` \| .* \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert sabotage.found(broken, int(where[1]) - 1) is not None, "the simulation did not notice"


@pytest.mark.parametrize("broken", sabotage.SABOTAGES, ids=lambda each: each.__name__)
def test_the_page_tells_of_it(broken):
    assert f"| `{broken.__name__}` | {broken.__doc__} |" in PAGE.read_text()
