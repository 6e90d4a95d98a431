"""Who is asked when: a cadence with jitter, never twice at once, never more than the pool may."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollbook.projections.health.schedule import Pace, Schedule

PACES = [Pace("a", 1.0, 0.0, 2), Pace("b", 3.0, 0.5, 1)]


@given(st.floats(0, 1), st.floats(0.5, 10), st.integers(0, 2**32))
def test_two_probes_are_an_interval_apart_give_or_take_the_jitter(jitter, interval, seed):
    schedule = Schedule(random.Random(seed))
    schedule.add("w", Pace("a", interval, jitter, 1), 0.0)
    begun = []
    for _ in range(20):
        now = schedule.next_at()
        (due,) = schedule.due(now)
        assert due.at == now
        begun.append(now)
        schedule.done("w", now)
    assert 0 <= begun[0] <= interval
    for before, after in itertools.pairwise(begun):
        assert interval * (1 - jitter) - 1e-9 <= after - before <= interval * (1 + jitter) + 1e-9


def test_the_first_probes_of_many_are_spread_over_an_interval():
    schedule = Schedule(random.Random(1))
    for number in range(1000):
        schedule.add(str(number), PACES[0], 0.0)
    assert all(60 < sum(low <= at * 10 < low + 1 for at, _, _ in schedule._heap) < 140 for low in range(10))


def test_one_that_took_longer_than_its_interval_is_not_asked_again_at_once():
    schedule = Schedule(random.Random(1))
    schedule.add("w", PACES[0], 0.0)
    schedule.due(1.0)
    schedule.done("w", 10.0)
    assert schedule.next_at() == 11.0


def test_who_had_no_room_is_asked_as_soon_as_there_is_some_and_its_lateness_shows():
    schedule = Schedule(random.Random(1))
    for name in "xyz":
        schedule.add(name, PACES[0], 0.0)
    first = schedule.due(5.0)
    assert len(first) == 2
    assert schedule.due(5.0) == []
    schedule.done(first[0].name, 5.5)
    (last,) = schedule.due(5.5)
    assert last.name == ({*"xyz"} - {one.name for one in first}).pop()
    assert last.at < 1.0


class Machine(RuleBasedStateMachine):
    """Any order of adding, removing, beginning and ending."""

    def __init__(self):
        super().__init__()
        self.schedule = Schedule(random.Random(0))
        self.now = 0.0
        self.asked = {}
        self.known = {}

    @rule(name=st.sampled_from("uvwxyz"), pace=st.sampled_from(PACES))
    def add(self, name, pace):
        self.schedule.add(name, pace, self.now)
        self.known[name] = pace

    @rule(name=st.sampled_from("uvwxyz"))
    def remove(self, name):
        self.schedule.remove(name)
        self.known.pop(name, None)

    @rule(seconds=st.floats(0, 5))
    def begin(self, seconds):
        self.now += seconds
        for due in self.schedule.due(self.now):
            assert due.name not in self.asked
            assert due.at <= self.now
            self.asked[due.name] = self.known[due.name].pool

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def done(self, data):
        name = data.draw(st.sampled_from(sorted(self.asked)))
        del self.asked[name]
        self.schedule.done(name, self.now)

    @invariant()
    def no_pool_is_asked_more_than_it_may_be(self):
        for pace in PACES:
            assert list(self.asked.values()).count(pace.pool) <= pace.parallel

    @invariant()
    def who_is_not_asked_will_be(self):
        assert len(self.schedule) == len(self.known)
        if self.known and not self.asked:
            assert self.schedule.next_at() is not None

    def teardown(self):
        """Everybody's turn comes, whatever came before."""
        for name in list(self.asked):
            self.done_with(name)
        turns = set()
        for _ in range(60):
            self.now += 1.0
            while due := self.schedule.due(self.now):
                for one in due:
                    turns.add(one.name)
                    self.schedule.done(one.name, self.now)
        assert turns == set(self.known)

    def done_with(self, name):
        self.schedule.done(name, self.now)


TestSchedule = Machine.TestCase
