"""Names: what is accepted, what is refused and how it is said, and that parsing and formatting agree."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.events import InvalidName, WorkerName, parse_worker, validate_name
from rollbook.events.names import format_worker

ALPHABET = "ABCXYZabcxyz0189_-"
NAMES = st.text(ALPHABET, min_size=1, max_size=128)


@pytest.mark.parametrize("name", ["a", "0", "-", "_", "rollout-3-0", "A" * 128, "-9-"])
def test_accepts(name):
    assert validate_name("worker", name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "it is empty"),
        ("a" * 129, "it is 129 characters long"),
        ("a.b", "'.' is not allowed"),
        ("a b", "' ' is not allowed"),
        ("a\n", r"'\n' is not allowed"),
        ("\na", r"'\n' is not allowed"),
        ("*", "'*' is not allowed"),
        (">", "'>' is not allowed"),
        ("a\0", r"'\x00' is not allowed"),
        ("é", "'é' is not allowed"),
        ("٣", "'٣' is not allowed"),
        ("a\ud800", r"'\ud800' is not allowed"),
        ("x" * 100_000, "it is 100000 characters long"),
    ],
)
def test_refuses_and_says_what_is_wrong(name, said):
    with pytest.raises(InvalidName, match="cannot name a worker: " + re.escape(said)) as caught:
        validate_name("worker", name)
    assert len(str(caught.value)) < 400
    with pytest.raises(InvalidName):
        parse_worker(name)


@given(st.text())
def test_a_name_is_valid_exactly_if_it_has_the_letters(name):
    valid = 1 <= len(name) <= 128 and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    if valid:
        assert validate_name("fleet", name) == name
    else:
        with pytest.raises(InvalidName):
            validate_name("fleet", name)


@pytest.mark.parametrize(
    ("name", "pool", "cell", "rank"),
    [
        ("rollout-3-0", "rollout", "3", 0),
        ("rollout-big-12-7", "rollout-big", "12", 7),
        ("a-b_1x-0-999999999", "a-b_1x", "0", 999999999),
        ("rollout-03-007", "rollout", "03", 7),
        ("rollout", None, None, 0),
        ("rollout-3", None, None, 0),
        ("3-0-1", None, None, 0),
        ("a-1-2-3", None, None, 0),
        ("a-x-0", None, None, 0),
        ("a-0-1234567890", None, None, 0),
        ("-1-2", None, None, 0),
    ],
)
def test_parses(name, pool, cell, rank):
    assert parse_worker(name) == WorkerName(name, pool, cell, rank)
    assert str(parse_worker(name)) == name


@given(NAMES)
def test_parsing_keeps_the_name_and_names_parts_that_are_names(name):
    parsed = parse_worker(name)
    assert parsed.name == name
    assert (parsed.pool is None) == (parsed.cell is None)
    for part in (parsed.pool, parsed.cell):
        assert part is None or validate_name("pool", part) == part


@given(st.text(ALPHABET, max_size=30), st.integers(0, 10**10) | st.text(ALPHABET, max_size=10), st.integers(-1, 10**10))
def test_what_can_be_formatted_is_parsed_back(pool, cell, rank):
    try:
        name = format_worker(pool, cell, rank)
    except InvalidName:
        return
    assert parse_worker(name) == WorkerName(name, pool, str(cell), rank)


@given(st.integers(0, 999_999_999), st.integers(0, 999_999_999), st.from_regex(r"\A[a-z][a-z_]{0,20}\Z"))
def test_usual_parts_can_always_be_formatted(cell, rank, pool):
    assert parse_worker(format_worker(pool, cell, rank)) == WorkerName(f"{pool}-{cell}-{rank}", pool, str(cell), rank)


@given(st.from_regex(r"\A[a-z-]{0,9}[a-z][a-z0-9]{0,9}-[0-9]{1,9}-(0|[1-9][0-9]{0,8})\Z"))
def test_formatting_what_was_parsed_gives_the_name_back(name):
    parsed = parse_worker(name)
    assert format_worker(parsed.pool, parsed.cell, parsed.rank) == name


@pytest.mark.parametrize(
    ("pool", "cell", "rank"), [("a-1", 2, 3), ("a", "x", 0), ("a", 0, 10**9), ("a", -1, 0), ("", 0, 0)]
)
def test_refuses_to_format_what_would_read_differently(pool, cell, rank):
    with pytest.raises(InvalidName):
        format_worker(pool, cell, rank)
