"""Which fact may go now. Guards I8: nothing is lost on the way, and the order per worker holds across retries."""

from collections import defaultdict, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollbook.adapters.publisher.lanes import Lanes

WINDOW = 3
KEYS = st.sampled_from("abcde")


class LanesMachine(RuleBasedStateMachine):
    """A sender that settles, returns and hurries in any order, against a model with one queue per key."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[tuple[str, int]] = Lanes(WINDOW)
        self.now = 0.0
        self.made = 0
        self.model: defaultdict[str, deque[tuple[str, int]]] = defaultdict(deque)
        self.taken: dict[str, tuple[str, int]] = {}
        self.not_before: dict[str, float] = {}

    @rule(key=KEYS)
    def offer(self, key: str) -> None:
        self.made += 1
        self.lanes.offer(key, (key, self.made))
        self.model[key].append((key, self.made))

    @rule()
    def take(self) -> None:
        may_go = [
            key
            for key, queue in self.model.items()
            if queue and key not in self.taken and self.not_before.get(key, 0.0) <= self.now
        ]
        item = self.lanes.take(self.now)
        if item is None:
            assert len(self.taken) == WINDOW or not may_go
            return
        key = item[0]
        assert key in may_go
        assert item == self.model[key][0]
        self.taken[key] = item

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        self.lanes.settle(key)
        assert self.model[key].popleft() == self.taken.pop(key)
        self.not_before.pop(key, None)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), pause=st.floats(0, 10))
    def give_back(self, data: st.DataObject, pause: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        self.lanes.give_back(key, self.now + pause)
        self.taken.pop(key)
        self.not_before[key] = self.now + pause

    @rule()
    def hurry(self) -> None:
        self.lanes.hurry()
        self.not_before.clear()

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def holds_everything_in_order(self) -> None:
        waiting = list(self.lanes)
        assert len(waiting) == len(self.lanes)
        for key, queue in self.model.items():
            assert [item for item in waiting if item[0] == key] == list(queue) == list(self.lanes.lane(key))

    def teardown(self) -> None:
        """Whatever happened: once answers come, everything goes out, in order per key."""
        for key in sorted(self.taken):
            self.lanes.give_back(key, self.now)
        self.lanes.hurry()
        sent: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        while (item := self.lanes.take(self.now)) is not None:
            sent[item[0]].append(item)
            self.lanes.settle(item[0])
        assert sent == {key: list(queue) for key, queue in self.model.items() if queue}
        assert len(self.lanes) == 0


LanesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLanes = LanesMachine.TestCase


def test_a_fact_without_answer_holds_back_its_lane_only():
    lanes: Lanes[str] = Lanes(10)
    for item in ("a1", "a2", "b1", "b2"):
        lanes.offer(item[0], item)
    assert lanes.take(0) == "a1"
    lanes.give_back("a", 5)
    assert lanes.take(0) == "b1"
    lanes.settle("b")
    assert lanes.take(0) == "b2"
    assert lanes.take(4.9) is None
    assert lanes.take(5) == "a1"
    assert lanes.take(5) is None
    lanes.settle("a")
    assert lanes.take(5) == "a2"


def test_the_window_bounds_what_is_taken():
    lanes: Lanes[str] = Lanes(2)
    for key in "abc":
        lanes.offer(key, key)
    assert [lanes.take(0), lanes.take(0), lanes.take(0)] == ["a", "b", None]
    lanes.settle("a")
    assert lanes.take(0) == "c"
