"""docs/events.md is what the code says, and the code says all of it."""

from pathlib import Path

import pytest
from golden.examples import FOLDER

from rollbook.adapters.catalogue import page
from rollbook.adapters.docstrings import field_docstrings
from rollbook.events import FACTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"


def test_the_page_is_current():
    assert PAGE.read_text() == "\n".join(page(FOLDER)) + "\n", "run `make docs`"


@pytest.mark.parametrize("cls", FACTS.values(), ids=lambda cls: cls.__name__)
def test_every_fact_says_who_publishes_it_and_what_each_field_is(cls):
    assert cls.__doc__
    assert cls.PUBLISHED_BY
    assert set(field_docstrings(cls)) == set(cls.__struct_fields__)
