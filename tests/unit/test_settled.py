"""The index of those who need nothing gives the very plan that looking at everybody gives, whatever happened before."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import CODEC, FLEET, folded, stored
from support.histories import NAMES, a_fact

from rollbook.events import (
    Deregistered,
    DriftFound,
    ProxyFact,
    Registered,
    Registering,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.deciding import plan as planning
from rollbook.projections.deciding import settled as index
from rollbook.projections.deciding.observed import believed, observe
from rollbook.projections.deciding.plan import Add, Adopt, Remove, Settle, make_plan
from rollbook.projections.deciding.settled import Settled
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.ports import Capabilities, Entry, Listing
from rollbook.projections.state.fold import State

SERVED = ProxyPolicy(name="a", pools=("rollout",))
POLICY = Policy(fleet=FLEET, pools={"rollout": PoolPolicy()}, proxies={"a": SERVED})
URLS = [f"http://10.0.0.{number}:8000" for number in range(3)]
KINDS = {
    "tags": Capabilities(),
    "plain": Capabilities(tag=False),
    "append only": Capabilities(remove=False),
    "plain, append only": Capabilities(tag=False, remove=False),
    "blind": Capabilities(list=False, tag=False),
}


class World:
    """A proxy's listing, the fold, and the index that is to agree with looking at everybody."""

    def __init__(self, seed: int, capabilities: Capabilities) -> None:
        self.rng = random.Random(seed)
        self.capabilities = capabilities
        self.state = State()
        self.entries: list[Entry] = []
        self.moved: dict[str, str] = {}
        self.settled = Settled(POLICY, SERVED, capabilities, lambda name: name.split("-")[0])
        self._handles = 0

    def say(self, fact) -> None:
        _, change = self.state.apply(stored(self.state.sequence + 1, fact), CODEC)
        if not isinstance(fact, ProxyFact):
            self.settled.forget_all() if change.everything else self.settled.forget(change.workers)
        elif fact.proxy == "a":
            self.settled.forget(change.workers)

    def listing(self) -> Listing:
        record = self.state.ledger.look("a")
        return Listing(tuple(self.entries)) if self.capabilities.list else believed(record)

    def put(self) -> None:
        """An entry of anybody's: ours, another fleet's, nobody's, twice, elsewhere, out of rotation."""
        pick = self.rng.randrange
        self._handles += 1
        tags = {}
        if self.capabilities.tag and pick(4):
            tags = {"fleet": (FLEET, "g")[pick(5) == 0], "worker": NAMES[pick(5)], "incarnation": 1 + pick(4)}
        entry = Entry(url=URLS[pick(3)], handle=str(self._handles), in_rotation=pick(6) > 0, **tags)
        self.entries.append(entry)

    def drop(self) -> None:
        if self.entries:
            self.entries.remove(self.rng.choice(self.entries))

    def move(self) -> None:
        self.moved = {NAMES[self.rng.randrange(5)]: URLS[self.rng.randrange(3)]} if self.rng.randrange(2) else {}

    def compare(self, keys=None):
        """One pass both ways; the actions."""
        record, listing = self.state.ledger.look("a"), self.listing()
        whole = observe(FLEET, record, listing, self.capabilities)
        expected = make_plan(self.state, POLICY, SERVED, whole, keys, self.moved, self.capabilities)
        found = self.settled.plan(self.state, listing, keys, self.moved)
        assert Counter(map(repr, found.plan.actions)) == Counter(map(repr, expected.actions))
        assert (found.plan.missing, found.plan.unexpected) == (expected.missing, expected.unexpected)
        assert found.observed.foreign == whole.foreign
        sizes = Counter()
        for name, owned in whole.owned.items():
            sizes[name.split("-")[0]] += sum(own.certain for own in owned)
        assert +Counter(found.sizes) == +sizes
        if keys is None:
            assert found.places == {name: own[0].entry.url for name, own in whole.owned.items() if len(own) == 1}
        if any(isinstance(action, Add) for action in expected.actions):
            assert found.observed == whole
        return found.plan.actions

    def follow(self) -> None:
        """Do what is planned, as a lane would."""
        for action in self.compare():
            if self.rng.random() < 0.3:
                continue
            name, life = action.worker, action.incarnation
            about = {"proxy": "a", "worker": name, "incarnation": life}
            match action:
                case Add():
                    url = URLS[NAMES.index(name) % 3]
                    self.say(Registering(**about, url=url))
                    self._handles += 1
                    tags = {"fleet": FLEET, "worker": name, "incarnation": life} if self.capabilities.tag else {}
                    if all(entry.url != url for entry in self.entries):
                        self.entries.append(Entry(url=url, handle=str(self._handles), **tags))
                    self.say(Registered(**about, url=url))
                case Remove():
                    self.entries = [entry for entry in self.entries if entry.handle != action.entry.handle]
                    self.say(Deregistered(**about, url=action.entry.url))
                case Settle():
                    self.say(Deregistered(**about, url=action.url))
                case Adopt():
                    self.say(Registered(**about, url=action.url))

    def step(self) -> None:
        match self.rng.randrange(12):
            case 0 | 1 | 2:
                self.say(a_fact(self.rng.randrange))
            case 3:
                self.say(WorkerUp(worker=NAMES[self.rng.randrange(3)], incarnation=1 + self.rng.randrange(4)))
            case 4:
                self.put()
            case 5:
                self.drop()
            case 6:
                self.move()
            case 7:
                self.compare(self.rng.sample(NAMES, 2))
            case 8 | 9:
                self.compare()
            case _:
                self.follow()


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 120))
@settings(max_examples=150)
def test_it_plans_what_looking_at_everybody_plans(kind, seed, length):
    world = World(seed, KINDS[kind])
    for _ in range(length):
        world.step()
    world.compare()


# ---------------------------------------------------------------- and it costs little


def large(count):
    """So many registered workers, the index that has seen them, and their listing."""
    facts = []
    for number in range(count):
        name, url = f"rollout-{number}-0", f"http://10.0.{number >> 8}.{number & 255}:80"
        facts.append(WorkerUp(worker=name, incarnation=1))
        facts.append(Registered(proxy="a", worker=name, incarnation=1, url=url))
    entries = tuple(
        Entry(url=fact.url, handle=fact.worker, fleet=FLEET, worker=fact.worker, incarnation=1)
        for fact in facts
        if isinstance(fact, Registered)
    )
    settled = Settled(POLICY, SERVED, Capabilities(), lambda _: "rollout")
    state = folded(*facts)
    assert settled.plan(state, Listing(entries), None, {}).plan.actions == ()
    return state, settled, entries


def planned_for(monkeypatch):
    """The names for which a plan is made from now on."""
    names = []

    def noted(state, policy, proxy, observed, workers, *rest):
        names.extend(workers)
        return planning.make_plan(state, policy, proxy, observed, workers, *rest)

    monkeypatch.setattr(index, "make_plan", noted)
    return names


def test_a_pass_that_finds_nothing_plans_for_nobody(monkeypatch):
    state, settled, entries = large(200)
    names = planned_for(monkeypatch)
    for listing in (entries, entries[::-1]):
        planned = settled.plan(state, Listing(listing), None, {})
        assert (planned.plan.actions, names) == ((), [])
        assert planned.sizes == {"rollout": 200}


def test_a_pass_plans_for_those_who_are_new_gone_or_different(monkeypatch):
    state, settled, entries = large(200)
    names = planned_for(monkeypatch)
    state.apply(stored(state.sequence + 1, WorkerDown(worker="rollout-7-0", incarnation=1, evidence="exited")), CODEC)
    settled.forget(["rollout-7-0"])
    other = msgspec.structs.replace(entries[3], incarnation=2)
    twice = msgspec.structs.replace(entries[9], handle="again")
    settled.plan(state, Listing((*entries[:3], other, *entries[5:], twice)), None, {})
    assert sorted(names) == ["rollout-3-0", "rollout-4-0", "rollout-7-0", "rollout-9-0"]


def test_facts_of_other_families_leave_the_index_as_it_is():
    state, settled, entries = large(20)
    state.apply(stored(state.sequence + 1, DriftFound(proxy="a", foreign=())), CODEC)
    assert settled.plan(state, Listing(entries), None, {}).plan.actions == ()
