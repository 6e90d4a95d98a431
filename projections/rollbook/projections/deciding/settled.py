"""Who needs nothing: an index that makes a pass over a large listing cost little where nothing is to be done.

It gives the very plan that `make_plan` gives on the whole listing. What a worker needs at a proxy depends on what the
log says about it and on its entries there. So once a plan had nothing for a worker, that stays so until the log says
another word about it (`forget`) or its entry is another one. A pass then looks at every entry once, in a tight loop,
and plans only for those that are new, gone or different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from rollbook.projections.deciding.observed import NO_GHOSTS, Life, Observed, Owned, observe
from rollbook.projections.deciding.plan import NOBODY, Add, Plan, make_plan
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Capabilities, Entry, Listing
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Registration, Told


class Planned(msgspec.Struct, frozen=True, gc=False):
    """A plan, and what it was made on."""

    plan: Plan
    observed: Observed
    """Of everybody if anything is to be added or moved; otherwise of those only who were planned for."""
    places: Mapping[str, str]
    """Where every worker of ours that is listed once is listed; of a full pass."""
    sizes: Mapping[str, int]
    """Entries of ours that are there for certain, by pool."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    worker: str
    incarnation: int
    pool: str


class Settled:
    """Of one proxy. Whoever changes the fold's word about a worker has it forgotten here."""

    def __init__(
        self, policy: Policy, served: ProxyPolicy, capabilities: Capabilities, pool: Callable[[str], str]
    ) -> None:
        self._policy = policy
        self._served = served
        self._capabilities = capabilities
        self._pool = pool
        self._everybody = True
        """Whether nothing is known of anybody yet."""
        self._open: dict[str, None] = {}
        """Who is to be planned for in the next full pass."""
        self._at: dict[str, _Place] = {}
        """By URL: lives that are registered there, listed there once, and belong there."""
        self._urls: dict[str, str] = {}
        """Their URLs, by worker."""
        self._sizes: Counter[str] = Counter()
        """How many there are, by pool."""

    def forget(self, workers: Iterable[str]) -> None:
        """The log has said something about these."""
        for name in workers:
            self._open[name] = None
            url = self._urls.pop(name, None)
            if url is not None:
                self._sizes[self._at.pop(url).pool] -= 1

    def forget_all(self) -> None:
        """It has said something about everybody."""
        self._everybody = True
        self._open.clear()
        self._at.clear()
        self._urls.clear()
        self._sizes.clear()

    def plan(
        self,
        state: State,
        listing: Listing,
        keys: Iterable[str] | None,
        moved: Mapping[str, str],
        ghosts: Mapping[str, Life] = NO_GHOSTS,
        outdated: Mapping[str, str] = NOBODY,
    ) -> Planned:
        """The next step of each of `keys`, or of everybody if None; as `make_plan` on the whole listing."""
        self.forget(moved)
        self.forget(outdated)
        if keys is not None:
            keys = dict.fromkeys(keys)
            self.forget(keys)
        self._unseat(state)
        lost, observed = self._look(state, listing, ghosts)
        names = self._names(state, lost, observed) if keys is None else keys
        sizes = self._sizes - Counter(place.pool for place in lost.values())
        for name, owned in observed.owned.items():
            sizes[self._pool(name)] += sum(own.certain for own in owned)
        if not moved.keys().isdisjoint(observed.owned):
            observed = self._observe(state, listing, ghosts)
        made = make_plan(state, self._policy, self._served, observed, names, moved, self._capabilities, outdated)
        if any(isinstance(action, Add) for action in made.actions):
            observed = self._observe(state, listing, ghosts)
        if keys is None:
            self._everybody = False
        self._keep(state, made, observed, names)
        places = {name: owned[0].entry.url for name, owned in observed.owned.items() if len(owned) == 1}
        return Planned(made, observed, self._urls | places if places else self._urls, sizes)

    def _observe(self, state: State, listing: Listing, ghosts: Mapping[str, Life]) -> Observed:
        record = state.ledger.look(self._served.name)
        return observe(self._policy.fleet, record, listing, self._capabilities, ghosts)

    # -------------------------------------------------------------- looking

    def _unseat(self, state: State) -> None:
        """Where the log has another word on somebody's URL, nobody is settled."""
        registrations = state.ledger.look(self._served.name).registrations
        taken = {life.url for name in self._open for life in registrations.get(name, {}).values()}
        self.forget([self._at[url].worker for url in taken if url in self._at])

    def _look(self, state: State, listing: Listing, ghosts: Mapping[str, Life]) -> tuple[dict[str, _Place], Observed]:
        """Places of those whose entry is gone or another one, and whose the entries of all who are not settled are."""
        while True:
            rest, lost = self._scan(listing.entries)
            observed = self._observe(state, Listing(tuple(rest)), ghosts)
            # Who is settled and has another entry too is planned for with both.
            several = [name for name in observed.owned if name in self._urls]
            if not several:
                return lost, observed
            self.forget(several)

    def _scan(self, entries: Iterable[Entry]) -> tuple[list[Entry], dict[str, _Place]]:
        """Two look-ups and a few comparisons for each entry: this is what a pass costs where nothing is to be done."""
        fleet = self._policy.fleet
        rest: list[Entry] = []
        lost = self._at.copy()
        take = lost.pop
        for entry in entries:
            place = take(entry.url, None)
            if place is not None:
                mine = entry.worker == place.worker and entry.incarnation == place.incarnation and entry.fleet == fleet
                if (mine or entry.fleet is None) and entry.in_rotation:
                    continue
                lost[entry.url] = place
            rest.append(entry)
        return rest, lost

    def _names(self, state: State, lost: Mapping[str, _Place], observed: Observed) -> dict[str, None]:
        """Who is to be planned for: in the end, whoever is not settled at a place that was seen."""
        names = {**self._open, **dict.fromkeys(observed.owned), **{place.worker: None for place in lost.values()}}
        if not self._everybody:
            return names
        known = (*state.roster.workers, *state.ledger.look(self._served.name).registrations)
        return {**dict.fromkeys(name for name in known if name not in self._urls), **names}

    # -------------------------------------------------------------- keeping

    def _keep(self, state: State, made: Plan, observed: Observed, names: Iterable[str]) -> None:
        """Who was planned for and needs nothing is settled; who needs something stays open."""
        record = state.ledger.look(self._served.name)
        needing = {action.worker for action in made.actions} | {*made.missing, *made.unexpected}
        self.forget(names)
        for name in names:
            owned, lives = observed.owned.get(name, []), record.registrations.get(name, {})
            if name in needing:
                continue
            if not owned and not lives:
                del self._open[name]
            elif self._stands(owned, lives):
                del self._open[name]
                url, place = owned[0].entry.url, _Place(name, owned[0].incarnation, self._pool(name))
                self._at[url], self._urls[name] = place, url
                self._sizes[place.pool] += 1

    def _stands(self, owned: list[Owned], lives: Mapping[int, Registration]) -> bool:
        """Whether one life of it is registered, and listed once, there and nowhere else."""
        if len(owned) != 1 or len(lives) != 1 or owned[0].entry.url in self._at:
            return False
        own, life = owned[0], lives.get(owned[0].incarnation)
        if life is None or life.told is not Told.REGISTERED or life.url != own.entry.url:
            return False
        return own.certain and own.entry.in_rotation
