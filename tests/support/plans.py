"""The plan without a lane, and a proxy that is only a list."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from support.core import CODEC, FLEET, POLICY, PROXY, folded, stored
from support.histories import NAMES

from rollbook.events import Deregistered, Fact, Registered, Registering
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.observed import Observed, observe
from rollbook.projections.deciding.plan import Action, Add, Adopt, Plan, Remove, Settle, make_plan
from rollbook.projections.ports import Entry, Listing
from rollbook.projections.state.fold import State


def url_of(worker: str) -> str:
    """Where a worker is in all its lives."""
    return f"http://{worker}:8000"


def entry(worker: str | None, incarnation: int | None, *, url: str | None = None, fleet: str = FLEET) -> Entry:
    url = url or url_of(worker or "rollout-0-0")
    return Entry(url=url, handle=url, fleet=fleet, worker=worker, incarnation=incarnation)


def plan(facts: Iterable[Fact], *entries: Entry, workers: Iterable[str] | None = None) -> Plan:
    state = folded(*facts)
    return make_plan(state, POLICY, PROXY, observe(FLEET, state.ledger.look(PROXY.name), Listing(entries)), workers)


class ListProxy:
    """Does at once what a plan says, and writes the facts that a lane would write."""

    def __init__(self, state: State, entries: Iterable[Entry], *, tags: bool) -> None:
        self.state = state
        self.entries = list(entries)
        self.removed: list[tuple[Remove, bool]] = []
        """Each with whether it was the only entry of a life that is wanted."""
        self._tags = tags
        self._handles = 0

    @property
    def wanted(self) -> set[tuple[str, int]]:
        roster = self.state.roster
        return {
            (name, worker.incarnation)
            for name, worker in roster.workers.items()
            if gates.standing(roster, POLICY, PROXY, name) is None
        }

    def listed(self) -> list[tuple[str, int]]:
        """Whose the entries are that are ours."""
        owned = self._observe().owned
        return sorted((name, own.incarnation) for name, entries in owned.items() for own in entries)

    def _observe(self) -> Observed:
        return observe(FLEET, self.state.ledger.look(PROXY.name), Listing(tuple(self.entries)))

    def step(self) -> tuple[Action, ...]:
        """Plan once and do all of it."""
        actions = make_plan(self.state, POLICY, PROXY, self._observe()).actions
        for action in actions:
            match action:
                case Add(name, incarnation):
                    self._write(Registering, name, incarnation, url_of(name))
                    self._list(name, incarnation)
                    self._write(Registered, name, incarnation, url_of(name))
                case Remove(name, incarnation, target):
                    others = self.listed().count((name, incarnation)) > 1
                    self.removed.append((action, (name, incarnation) in self.wanted and not others))
                    self.entries.remove(target)
                    self._write(Deregistered, name, incarnation, target.url)
                case Settle(name, incarnation, url):
                    self._write(Deregistered, name, incarnation, url)
                case Adopt(name, incarnation, url):
                    self._write(Registered, name, incarnation, url)
        return actions

    def _list(self, worker: str, incarnation: int) -> None:
        self._handles += 1
        tags = {"fleet": FLEET, "worker": worker, "incarnation": incarnation} if self._tags else {}
        self.entries.append(Entry(url=url_of(worker), handle=f"new-{self._handles}", **tags))

    def _write(self, fact, worker: str, incarnation: int, url: str) -> None:
        said = fact(proxy=PROXY.name, worker=worker, incarnation=incarnation, url=url)
        self.state.apply(stored(self.state.sequence + 1, said), CODEC)


# ------------------------------------------------------------------ for hypothesis

WORKERS = st.sampled_from(NAMES)
LIVES = st.integers(1, 5)


@st.composite
def listings(draw):
    """Entries of ours (of any life, also several of one, also at other URLs) and of others; any handles."""
    entries = []
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.integers(0, 3))
        worker, incarnation = draw(WORKERS), draw(LIVES)
        elsewhere = f"http://foreign-{number}:1"
        if kind == 0:
            entries.append(Entry(url=elsewhere, handle=str(number)))
        elif kind == 1:
            entries.append(Entry(url=elsewhere, handle=str(number), fleet="g", worker=worker, incarnation=incarnation))
        else:
            url = url_of(worker) if kind == 2 else f"http://old-{number}:1"
            entries.append(Entry(url=url, handle=str(number), fleet=FLEET, worker=worker, incarnation=incarnation))
    return entries


@st.composite
def registrations(draw):
    """What the log may say of lives at the proxy; with one URL for each worker."""
    lines = draw(st.lists(st.tuples(WORKERS, LIVES), max_size=8))
    return [Registered(proxy="router", worker=name, incarnation=life, url=url_of(name)) for name, life in lines]
