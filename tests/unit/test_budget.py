"""[I12] The removal budget's arithmetic: how many may go unasked, of which pool, and when that is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.projections.deciding.budget import WINDOW, Budget


def lives(count):
    return [(f"rollout-{number}-0", 1) for number in range(count)]


def let_go(budget, pool, count, now=0.0):
    return sum(budget.take(pool, life, now) for life in lives(count))


@pytest.mark.parametrize(
    ("part", "size", "allowed"),
    [
        (0.5, 64, 32),
        (0.5, 3, 2),
        (0.5, 2, 1),
        (0.5, 1, 1),
        (0.5, 0, 1),
        (0.1, 30, 3),
        (0.01, 64, 1),
        (1.0, 64, 64),
        (0.0, 64, 0),
        (0.0, 1, 0),
    ],
)
def test_the_part_is_rounded_up_and_one_may_always_go_unless_the_part_is_nothing(part, size, allowed):
    budget = Budget(part)
    budget.listed({"rollout": size}, 0.0)
    assert budget.allowed("rollout", 0.0) == allowed
    assert let_go(budget, "rollout", size + 1) == allowed


def test_pools_are_counted_apart():
    budget = Budget(0.5)
    budget.listed({"rollout": 8, "reward": 2}, 0.0)
    assert let_go(budget, "rollout", 8) == 4
    assert let_go(budget, "reward", 2) == 1


def test_the_largest_listing_of_the_window_counts_and_not_the_last():
    budget = Budget(0.5)
    for moment, size in enumerate((4, 10, 6, 2)):
        budget.listed({"rollout": size}, float(moment))
    assert budget.allowed("rollout", 4.0) == 5
    budget.listed({"rollout": 2}, WINDOW)
    assert budget.allowed("rollout", 1.0 + WINDOW) == 5
    assert budget.allowed("rollout", 1.5 + WINDOW) == 3
    assert budget.allowed("rollout", 10 * WINDOW) == 1


def test_a_pool_that_is_not_listed_any_more_is_forgotten_with_the_window():
    budget = Budget(0.5)
    budget.listed({"rollout": 8}, 0.0)
    budget.listed({}, 1.0)
    assert budget.allowed("rollout", 2.0) == 4
    assert budget.allowed("rollout", 2.0 + WINDOW) == 1


def test_a_life_counts_once_until_the_window_has_passed_or_it_was_not_removed():
    budget = Budget(0.5)
    budget.listed({"rollout": 2}, 0.0)
    one, two = lives(2)
    assert [budget.take("rollout", one, 0.0), budget.take("rollout", one, 1.0)] == [True, True]
    assert not budget.take("rollout", two, 2.0)
    budget.give_back("rollout", one)
    assert budget.take("rollout", two, 3.0)
    assert not budget.take("rollout", one, 3.0 + WINDOW)
    assert budget.take("rollout", one, 3.1 + WINDOW)


def test_what_was_called_once_counts_although_it_is_given_back_later():
    """Its first call may have worked; a second try that was not made is no proof that it is there."""
    budget = Budget(0.5)
    budget.listed({"rollout": 2}, 0.0)
    one, two = lives(2)
    assert budget.take("rollout", one, 0.0)
    budget.called("rollout", one)
    assert budget.take("rollout", one, 1.0)
    budget.give_back("rollout", one)
    assert not budget.take("rollout", two, 2.0)
    assert budget.take("rollout", two, 0.1 + WINDOW)


@given(
    part=st.floats(0, 1),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 40), st.integers(0, 60)), max_size=30),
)
def test_in_no_window_more_go_than_the_part_of_its_largest_listing(part, steps):
    budget, now = Budget(part), 0.0
    sizes, gone = [], {}
    for pause, size, number in steps:
        now += pause
        budget.listed({"rollout": size}, now)
        sizes.append((now, size))
        gone = {one: moment for one, moment in gone.items() if moment >= now - WINDOW}
        if budget.take("rollout", (f"rollout-{number}-0", 1), now):
            gone.setdefault(number, now)  # a life counts from the moment at which it was let go first
        # A listing counts from its moment; what was let go was let go under the largest of ITS window.
        largest = max(size for moment, size in sizes if moment >= now - 2 * WINDOW)
        assert len(gone) <= (0 if part == 0 else max(1, part * largest + 1))


def test_only_who_counts_is_remembered():
    """A fleet whose workers are all seen to die, for ever, leaves nothing here."""
    budget = Budget(0.5)
    budget.listed({"rollout": 8}, 0.0)
    for life in lives(1000):
        budget.called("rollout", life)
    assert let_go(budget, "rollout", 8) == 4
    for life in lives(4):
        budget.give_back("rollout", life)
    assert let_go(budget, "rollout", 8) == 4


def test_what_is_given_back_and_taken_again_counts_from_the_second_time():
    budget = Budget(0.5)
    budget.listed({"rollout": 2}, 0.0)
    [first, second] = lives(2)
    assert budget.take("rollout", first, 0.0)
    budget.give_back("rollout", first)
    assert budget.take("rollout", first, 30.0)
    assert not budget.take("rollout", second, WINDOW + 1.0)
    assert budget.take("rollout", second, WINDOW + 31.0)
