"""Every fact's bytes, byte for byte: what a released version wrote is what every later one reads and writes."""

import pytest
from golden.examples import EXAMPLES, FLEET, FOLDER, ID, OLDER, PUBLISHER, TIME, encode, path_of

from rollbook.events import FACTS, Codec, Recorded, subject_of
from rollbook.events.upcasters import UPCASTERS

HOW = "run `python tests/golden/examples.py` for a new fact; never change the bytes of a released one"


def test_there_is_one_file_per_fact_and_none_stale():
    assert {path.name for path in FOLDER.iterdir()} == {path_of(kind).name for kind in (*FACTS, *OLDER)}, HOW
    assert EXAMPLES.keys() == FACTS.keys()


def test_every_older_version_is_lifted_and_its_bytes_are_kept():
    assert OLDER.keys() == UPCASTERS.keys()
    assert not OLDER.keys() & FACTS.keys()


@pytest.mark.parametrize("kind", FACTS)
def test_the_example_is_written_as_exactly_these_bytes(kind):
    assert encode(EXAMPLES[kind]) == path_of(kind).read_bytes(), HOW


@pytest.mark.parametrize("kind", [*FACTS, *OLDER])
def test_these_bytes_are_read_as_the_example(kind):
    fact = (EXAMPLES | OLDER)[kind]
    recorded = Codec(FLEET).decode(path_of(kind).read_bytes(), subject=subject_of(fact, FLEET), sequence=44)
    assert recorded == Recorded(44, ID, TIME, f"rollbook://{FLEET}/{PUBLISHER}", fact)
