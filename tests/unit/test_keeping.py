"""Which snapshots are kept: the newest, and of the older ones an even spread."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.projections.log.keeping import NEWEST, Mark, superfluous


def kept_after(steps, keep, identity="log"):
    """Sequences that are left after snapshots so many facts apart."""
    kept, sequence = {}, 0
    for number, step in enumerate(steps, 1):
        sequence += step
        new = Mark(identity, sequence, number)
        for name in superfluous(kept, new, keep):
            del kept[name]
        kept[str(number)] = new
    return [mark.sequence for mark in kept.values()]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 12))
def test_no_more_than_so_many_are_kept_and_the_newest_always(steps, keep):
    left = kept_after(steps, keep)
    taken = [sum(steps[: number + 1]) for number in range(len(steps))]
    assert len(left) == min(keep, len(steps))
    newest = min(NEWEST, keep)
    assert left[-newest:] == taken[-newest:]


@pytest.mark.parametrize("count", [64, 100, 1000, 1999])
def test_of_64_no_two_are_further_apart_than_a_thirtieth_of_the_log(count):
    left = [0, *kept_after([10] * count, 64)]
    assert max(later - earlier for earlier, later in itertools.pairwise(left)) <= count * 10 / 30


def test_those_of_another_log_go_first_the_oldest_of_them_before_the_others():
    kept = {"a": Mark("old", 100, 1), "b": Mark("old", 900, 2), "c": Mark("new", 5, 3)}
    assert superfluous(kept, Mark("new", 9, 4), 3) == ["a"]
    assert superfluous(kept, Mark("new", 9, 4), 2) == ["a", "b"]
    assert superfluous(kept, Mark("new", 9, 4), 1) == ["a", "b", "c"]


def test_those_beyond_the_end_of_a_log_that_went_back_go_first():
    kept = {"a": Mark("log", 100, 1), "b": Mark("log", 200, 2), "c": Mark("log", 300, 3)}
    assert superfluous(kept, Mark("log", 150, 4), 3) == ["b"]


def test_a_lower_limit_takes_effect_at_the_next_one():
    kept = {str(number): Mark("log", 10 * number, number) for number in range(1, 11)}
    left = set(kept) - set(superfluous(kept, Mark("log", 110, 11), 5))
    assert len(left) == 4
    assert {"9", "10"} <= left
