"""What must be true once facts and faults have stopped: the routers, the log, the controllers and the truth agree.

- [I1] every router that can be listed lists exactly the lives that belong there and can be admitted, once each, at
  their address, in rotation. What it cannot remove may stay, and whoever is withheld if it answers [I12].
- [I5] the log's word on each entry is what the router lists; every call has an outcome after its intent; no outcome
  stands there twice in a row; every controller's state is, byte for byte, what the log folds to.
- [I8] every fact that a publisher accepted is in the log, and those about one worker in the order of acceptance.
- [I9] exactly the messages that are no facts are quarantined, once each.
- [I11] strangers' entries are still there, or gone where the router is exclusive.
- [truth] the roster says of every worker what is true of it.
"""

import itertools

from simulation.rules import current, inferred, wanted

from rollbook.events import Deregistered, Registered
from rollbook.projections.state.fold import State


class Verdict:
    """Judges one world."""

    def __init__(self, world) -> None:
        self._world = world
        self._witness = world.witness
        self._journal = world.witness.journal

    # -------------------------------------------------------------- the routers

    def differences(self, state: State) -> list[str]:
        """[I1, I5, I11] what routers list against what the roster wants and the world admits."""
        self._journal.read()
        return [line for router in self._world.routers.values() for line in self._router(router, state)]

    def _router(self, router, state: State) -> list[str]:
        world = self._world
        roster, served = state.roster, world.policy.proxies[router.name]
        expected = {
            name: incarnation
            for name in roster.workers
            if (incarnation := wanted(roster, world.policy, router.name, name)) is not None
        }
        listed, found = self._listed(router, state, expected)
        found += [f"[I1] {router.name} lists {name} more than once" for name in set(listed) if listed.count(name) > 1]
        for name, incarnation in expected.items():
            if name not in listed and self._can_be_added(router, name, incarnation):
                found.append(f"[I1] {router.name} does not list {name} {incarnation}")
        there, strangers = {entry.url for entry in router.listed}, self._witness.strangers[router.name]
        if not served.exclusive:
            found += [f"[I11] {router.name} lacks the stranger {url}" for url in strangers - there]
        elif router.capabilities.remove and router.capabilities.list:
            found += [f"[I11] {router.name} still lists the stranger {url}" for url in strangers & there]
        return found + self._ledger(router, state, expected, listed)

    def _can_be_added(self, router, name: str, incarnation: int) -> bool:
        """Nothing keeps it out: it is there, its weights are right, and its URL is nobody's who keeps it."""
        url = self._world.fleet.url_of(name, incarnation)
        fleet = self._world.fleet
        if not fleet.admissible(name, incarnation) or not fleet.has_a_partner(router.name, name):
            return False
        if not router.capabilities.list or router.capabilities.remove:
            return url not in self._witness.strangers[router.name]
        return url not in {entry.url for entry in router.listed}

    def _listed(self, router, state: State, expected: dict[str, int]) -> tuple[list[str], list[str]]:
        """The workers that are listed as they should be, and what is wrong with the other entries."""
        listed, found = [], []
        for entry in router.listed:
            if entry.url in self._witness.strangers[router.name]:
                continue
            owner = self._witness.owner(router, entry)
            if owner is None or expected.get(owner.worker) != owner.incarnation:
                if not self._may_stay(router, state, owner):
                    found.append(f"[I1] {router.name} lists {entry}, wanted is {expected}")
                continue
            listed.append(owner.worker)
            if self._should_have_left(router, state, owner):
                found.append(f"[I1] {router.name} lists {entry}, whose weights are too old")
            if self._world.fleet.url_of(owner.worker, owner.incarnation) != entry.url:
                found.append(f"[I1] {router.name} lists {entry}, which is at another address")
            if not entry.in_rotation:
                found.append(f"[I1] {router.name} keeps {entry} out of rotation")
        return listed, found

    def _should_have_left(self, router, state: State, owner) -> bool:
        """Its weights are too old, and its pool has such workers removed."""
        policy, worker = self._world.policy, state.roster.workers[owner.worker]
        if policy.pools[worker.pool].stale != "remove" or not router.capabilities.remove:
            return False
        return not current(state.roster, policy, worker)

    def _may_stay(self, router, state: State, owner) -> bool:
        """An entry that nobody wants: the router cannot remove it, or it is withheld, for it answers [I12]."""
        if not router.capabilities.remove:
            return True
        if owner is None or not inferred(
            state.roster, self._world.policy, router.name, owner.worker, owner.incarnation
        ):
            return False
        self._world.counts["withheld to the end"] += 1
        return self._world.fleet.answers(owner.worker, owner.incarnation)

    def _ledger(self, router, state: State, expected: dict[str, int], listed: list[str]) -> list[str]:
        """[I5] what the log says of registrations against the listing."""
        record = state.ledger.look(router.name)
        found = []
        for name, incarnation in expected.items():
            life = record.registrations.get(name, {}).get(incarnation)
            # Whether an add worked that nobody answered, a router without a listing shows only when it is repeated,
            # and nobody repeats that of one who is dead and not known to be.
            unknown = not router.capabilities.list and not self._can_be_added(router, name, incarnation)
            if name in listed and not unknown and (life is None or life.told != "registered"):
                found.append(f"[I5] {router.name}: {name} is listed, the log says {life}")
        there = {
            (owner.worker, owner.incarnation) for each in router.listed if (owner := self._witness.owner(router, each))
        }
        for name, lives in record.registrations.items():
            for incarnation, life in lives.items():
                blindly = not router.capabilities.list and not router.capabilities.remove
                if expected.get(name) != incarnation and (name, incarnation) not in there and not blindly:
                    found.append(f"[I5] {router.name}: the log still counts on {name} {incarnation}: {life}")
        return found

    # -------------------------------------------------------------- the log

    def accounts(self, state: State) -> list[str]:
        """[I5, I9] what must stand in the log when all is quiet."""
        journal = self._journal
        journal.read()
        found = []
        for call in self._witness.calls:
            words = journal.words if len(call.key) == 3 else journal.foreign
            if words[call.key][-1].sequence <= call.intent and not self._left_open(call, state):
                found.append(f"[I5] the call for {call.what} at {call.key} (intent {call.intent}) has no outcome")
        for key, words in journal.words.items():
            for one, other in itertools.pairwise(words):
                same = type(one.fact) is type(other.fact) and one.fact.url == other.fact.url
                if same and isinstance(one.fact, Registered | Deregistered):
                    told = type(one.fact).__name__
                    found.append(f"[I5] {key}: {told} twice in a row, at {one.sequence} and {other.sequence}")
        if sorted(journal.quarantined) != sorted(journal.garbage):
            found.append(f"[I9] no facts at {sorted(journal.garbage)}, quarantined are {sorted(journal.quarantined)}")
        if state.unreadable:
            found.append(f"[I9] the fold still waits for the quarantine of {state.unreadable}")
        return found

    def _left_open(self, call, state: State) -> bool:
        """Whether an intent may stand without an outcome: its leader has gone since, and the listing says the rest.

        So it is with a stranger's entry; with one of ours that is withheld, neither wanted nor removed; and with a life
        that belongs there and cannot be added again now.
        """
        name = call.key[0]
        if self._journal.taken_over[name] <= call.intent:
            return False
        router = self._world.routers[name]
        owners = [owner for entry in router.listed if (owner := self._witness.owner(router, entry))]
        mine = [owner for owner in owners if (owner.worker, owner.incarnation) == call.key[1:]]
        if len(call.key) == 2 or any(self._may_stay(router, state, owner) for owner in mine):
            return True
        _, worker, incarnation = call.key
        belongs = wanted(state.roster, self._world.policy, name, worker) == incarnation
        return belongs and not mine and not self._can_be_added(router, worker, incarnation)

    def replayed(self, state: State) -> list[str]:
        """[I5] every controller, leading or not, has what the log folds to."""
        return [
            f"[I5] folding the log again gives another state than {running} has"
            for running in self._world.controllers.running
            if running.controller.projector.state.digest() != state.digest()
        ]

    def truth(self, state: State) -> list[str]:
        """The roster against what is true of the workers."""
        problems = []
        for name, worker in self._world.fleet.workers.items():
            known = state.roster.workers.get(name)
            serving = known is not None and known.phase == "serving" and known.incarnation == worker.incarnation
            if worker.unreported or worker.kept:  # see custody.py
                continue
            earlier = self._journal.began.get((name, worker.incarnation), 0) < self._journal.run_began
            if serving != (worker.alive and worker.serving and not earlier):
                told = f"alive {worker.alive}, serving {worker.serving}"
                problems.append(f"[truth] {name} {worker.incarnation}: {told}; roster {known}")
            if (name in state.roster.cordons) != worker.cordoned:
                problems.append(f"[truth] {name}: cordoned {worker.cordoned}, the roster says otherwise")
            if serving and (known.suspension is not None) != worker.suspended:
                problems.append(f"[truth] {name}: suspended {worker.suspended}, the roster says {known.suspension}")
        if state.roster.ended != self._journal.run_ended:
            problems.append(f"[truth] the run has ended: {self._journal.run_ended}, the roster says otherwise")
        return problems

    def kept(self) -> list[str]:
        """[I8] every accepted fact is in the log, and those about one worker in the order of their acceptance."""
        found = []
        for author in self._world.fleet.authors.values():
            last: dict[str, int] = {}
            for worker, fact_id in author.accepted:
                sequence = self._journal.ids.get(fact_id)
                if sequence is None:
                    found.append(f"[I8] {author.name}: {fact_id} about {worker!r} is not in the log")
                elif sequence < last.get(worker, 0):
                    found.append(f"[I8] {author.name}: {fact_id} about {worker!r} was overtaken")
                else:
                    last[worker] = sequence
        return found
