"""The invariants: what is checked at the moment of every admin call, and what must be true at the end.

It knows the fleet's rules by heart, in its own words: it asks neither gates nor plan of the controller, only the roster
that the calling controller had at that moment, the messages in the log, and the routers themselves.
"""

import asyncio
import itertools
from collections import defaultdict

from rollbook.events import (
    Codec,
    Deregistered,
    Deregistering,
    FleetObserved,
    FleetStarted,
    MessageQuarantined,
    Registered,
    Registering,
    RegistrationFact,
    RegistrationFailed,
    Undecodable,
    WorkerFact,
)
from rollbook.projections.fold import State
from rollbook.projections.ports import Located, Target
from rollbook.projections.roster import Roster

OUTCOMES = (Registered, Deregistered, RegistrationFailed)


def wanted(roster: Roster, policy, router: str, name: str) -> int | None:
    """The incarnation of `name` that belongs in `router`, by the standing gates; None if none does."""
    worker = roster.workers.get(name)
    if worker is None or name in roster.cordons or worker.pool not in policy.proxies[router].pools:
        return None
    suspended = worker.suspension is not None and policy.pools[worker.pool].deregister_suspended
    if worker.phase != "serving" or suspended or not worker.entrypoint:
        return None
    if worker.cell_size > 1:
        ranks = {
            other.rank
            for other in roster.workers.values()
            if (other.pool, other.cell, other.cell_incarnation) == (worker.pool, worker.cell, worker.cell_incarnation)
            and other.phase == "serving"
        }
        if len(ranks) < worker.cell_size:
            return None
    return worker.incarnation


class Witness:
    """Watches one world."""

    def __init__(self, world) -> None:
        self._world = world
        self._codec = Codec(world.policy.fleet)
        self._read = 0
        self._state = State()
        self._located: dict[tuple[asyncio.Task, str], tuple[Located, bool]] = {}
        self._probed: dict[tuple[asyncio.Task, str], str | None] = {}
        self._calls: list[tuple[tuple[str, str, int], int, object]] = []
        self._appeared: dict[tuple[str, str], int] = {}
        """(router, handle) → the log's end when the entry appeared."""
        self._targets: dict[tuple[str, str], Target] = {}
        self.words: dict[tuple[str, str, int], list] = defaultdict(list)
        """(router, worker, incarnation) → its registration facts in the log, in order."""
        self.garbage: set[int] = set()
        """Sequences of messages that are no facts and do not stand on the quarantine subject."""
        self.quarantined: list[int] = []
        self.began: dict[tuple[str, int], int] = {}
        """(worker, incarnation) → the first fact that names this life."""
        self.run_began = 0
        self.ids: dict[str, int] = {}
        """Id → first sequence."""
        self.strangers: dict[str, set[str]] = defaultdict(set)
        """Router → URLs that somebody else registered there and nobody but the router may take away."""

    def read(self) -> None:
        """Catch up with the log."""
        for stored in self._world.log.messages[self._read :]:
            try:
                recorded = self._codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            except Undecodable:
                if not stored.subject.endswith(".quarantine"):
                    self.garbage.add(stored.sequence)
                continue
            self.ids.setdefault(recorded.id, stored.sequence)
            fact = recorded.fact
            if isinstance(fact, RegistrationFact):
                self.words[fact.proxy, fact.worker, fact.incarnation].append(recorded)
            elif isinstance(fact, MessageQuarantined):
                self.quarantined.append(fact.sequence)
            elif isinstance(fact, FleetStarted) and self.ids[recorded.id] == stored.sequence:
                self.run_began = stored.sequence
            elif isinstance(fact, WorkerFact):
                self.began.setdefault((fact.worker, fact.incarnation), stored.sequence)
            elif isinstance(fact, FleetObserved):
                for line in fact.workers:
                    self.began.setdefault((line.worker, line.incarnation), stored.sequence)
        self._read = len(self._world.log.messages)

    def forget(self) -> None:
        """The log has lost its tail: what it says is read anew."""
        self._read, self._state = 0, State()
        self.words.clear()
        self.garbage.clear()
        self.quarantined.clear()
        self.ids.clear()

    # -------------------------------------------------------------- at every moment

    def located(self, running, name: str, located: Located) -> None:
        """The provider answered a step of a controller; a step is a task."""
        roster = running.controller.projector.state.roster
        worker = roster.workers.get(name)
        bar = None if worker is None else roster.bars.get(worker.pool)
        current = bar is None or (worker.weights is not None and worker.weights >= bar)
        self._located[asyncio.current_task(), name] = (located, current)

    def probed(self, url: str, answer: str | None) -> None:
        """A worker answered a step of a controller."""
        self._probed[asyncio.current_task(), url] = answer

    def changed(self, router, effect: str, entry) -> None:
        """A router's listing changed."""
        self._world.counts[effect] += 1
        self._world.note(f"{router.name} {effect} {entry.worker} {entry.incarnation} {entry.url}")
        if effect == "listed":
            self._appeared[router.name, entry.handle] = len(self._world.log.messages)
        if effect == "lost":
            self.strangers[router.name].discard(entry.url)
        if effect == "removed" and entry.url in self.strangers[router.name]:
            self._world.wrong(f"[I11] {router.name}: a stranger's {entry.url} was removed")

    def called(self, router, running, verb: str, what) -> None:
        """A controller asks a router for a change."""
        world = self._world
        self.read()
        target = what if isinstance(what, Target) else self._owner(router, what)
        world.counts[verb] += 1
        world.note(f"{running} calls {router.name}.{verb} {what}")
        if target is None:
            world.wrong(f"[I11] {router.name}: a removal of {what}, which is not ours")
            return
        key = (router.name, target.worker, target.incarnation)
        roster = running.controller.projector.state.roster
        if roster.held.keys() & {"", router.name}:
            world.wrong(f"{router.name}: {verb} {target} while an operator holds it")
        belongs = wanted(roster, world.policy, router.name, target.worker) == target.incarnation
        if verb == "add":
            self._targets[router.name, target.url] = target
            if not belongs:
                world.wrong(f"[I2] {router.name}: {target} was added, which the roster does not want now")
            self._address(router, target)
            if world.seat.owner == running.owner:
                self._needless(router, key, target)
        elif belongs and not self._replaced(router, roster, target):
            world.wrong(f"[I3, I4] {router.name}: {target} was removed, which the roster wants now")
        self._intent(running, key, verb, target)

    def _owner(self, router, entry) -> Target | None:
        """Whose entry it is; where the router keeps no tags, whoever was added there last."""
        if entry.worker is not None and entry.fleet == self._world.policy.fleet:
            return Target(worker=entry.worker, incarnation=entry.incarnation, url=entry.url)
        if router.capabilities.tag or entry.url in self.strangers[router.name]:
            return None
        return self._targets.get((router.name, entry.url))

    def _replaced(self, router, roster: Roster, target: Target) -> bool:
        """Whether a wanted entry may go: its URL is another life's, or it is there twice."""
        twice = [entry for entry in router.listed if (self._owner(router, entry)) == target]
        if len(twice) > 1:
            return True
        mine = roster.workers[target.worker]
        for name, worker in roster.workers.items():
            newer = worker.began > mine.began and self._world.fleet.url_of(name, worker.incarnation) == target.url
            if newer and wanted(roster, self._world.policy, router.name, name) is not None:
                return True
        return False

    def _intent(self, running, key, verb: str, target: Target) -> None:
        """[I5] the last word on the key is the intent of this call; [I7] and the caller's own."""
        world = self._world
        expected = Registering if verb == "add" else Deregistering
        words = self.words[key]
        if world.seat.owner != running.owner:
            # Deposed since it wrote its intent: this call slips through, and the successor lists again.
            words = [word for word in words if word.source.endswith(f"/{running.owner}")]
            world.counts["slipped"] += 1
        last = words[-1] if words else None
        folded = running.controller.projector.state.sequence
        if last is None or type(last.fact) is not expected or last.fact.url != target.url:
            told = None if last is None else last.fact
            world.wrong(f"[I5] {key[0]}: {verb} {target} without its intent; the last word is {told}")
        elif not last.source.endswith(f"/{running.owner}"):
            world.wrong(f"[I7] {key[0]}: {running} made a call on the intent of {last.source}")
        elif folded < last.sequence:
            world.wrong(
                f"[I2] {key[0]}: {target} was judged by a roster at {folded}, before its intent {last.sequence}"
            )
        else:
            self._calls.append((key, last.sequence, target))

    def _needless(self, router, key, target: Target) -> None:
        """An entry that was there when its registration was written down, and still is, is not added again."""
        registered = [word.sequence for word in self.words[key] if isinstance(word.fact, Registered)]
        for entry in router.listed:
            since = self._appeared.get((router.name, entry.handle))
            if registered and since is not None and self._owner(router, entry) == target and since < registered[-1]:
                self._world.wrong(f"[I4] {router.name}: {target} was added, and is listed and registered since {since}")

    def _address(self, router, target: Target) -> None:
        """[I6] the address is the one that the provider gave last in this very step."""
        located, current = self._located.get((asyncio.current_task(), target.worker), (None, False))
        if located is None:
            self._world.wrong(f"[I6] {router.name}: {target} was added with an address not asked for in this pass")
        elif target.url != f"http://{located.addresses['primary']}" or located.incarnation != target.incarnation:
            self._world.wrong(f"[I6] {router.name}: {target} was added, the provider's last answer was {located}")
        if not current:
            self._world.wrong(f"{router.name}: {target} was added, its weights are below the bar")
        if self._probed.get((asyncio.current_task(), target.url), "it was not asked") is not None:
            self._world.wrong(f"{router.name}: {target} was added, but was not ready when this step asked it")

    # -------------------------------------------------------------- at the end

    def fold(self) -> State:
        """The state that the log alone gives, folded from its beginning."""
        state = State()
        for stored in self._world.log.messages:
            state.apply(stored, self._codec)
        return state

    def follow(self) -> State:
        """The same, going on from where it was left."""
        for stored in self._world.log.messages[self._state.sequence :]:
            self._state.apply(stored, self._codec)
        return self._state

    def differences(self, state: State) -> list[str]:
        """[I1] what routers list against what the roster wants and the world admits."""
        found = []
        for router in self._world.routers.values():
            found += self._router(router, state)
        return found

    def _router(self, router, state: State) -> list[str]:
        world = self._world
        expected = {
            name: incarnation
            for name in state.roster.workers
            if (incarnation := wanted(state.roster, world.policy, router.name, name)) is not None
        }
        listed, found = self._listed(router, expected)
        found += [f"[I1] {router.name} lists {name} more than once" for name in set(listed) if listed.count(name) > 1]
        for name, incarnation in expected.items():
            if name not in listed and world.fleet.admissible(name, incarnation):
                found.append(f"[I1] {router.name} does not list {name} {incarnation}")
        gone = self.strangers[router.name] - {entry.url for entry in router.listed}
        found += [f"[I11] {router.name} lacks the stranger {url}" for url in gone]
        return found + self._ledger(router.name, state, expected, listed)

    def _listed(self, router, expected: dict[str, int]) -> tuple[list[str], list[str]]:
        """The workers that are listed as they should be, and what is wrong with the other entries."""
        listed, found = [], []
        for entry in router.listed:
            if entry.url in self.strangers[router.name]:
                continue
            owner = self._owner(router, entry)
            if owner is None or expected.get(owner.worker) != owner.incarnation:
                found.append(f"[I1] {router.name} lists {entry}, wanted is {expected}")
            else:
                listed.append(owner.worker)
                if self._world.fleet.url_of(owner.worker, owner.incarnation) != entry.url:
                    found.append(f"[I1] {router.name} lists {entry}, which is at another address")
        return listed, found

    def _ledger(self, router: str, state: State, expected: dict[str, int], listed: list[str]) -> list[str]:
        """[I5] what the log says of registrations against the listing."""
        record = state.ledger.look(router)
        found = []
        for name, incarnation in expected.items():
            life = record.registrations.get(name, {}).get(incarnation)
            if name in listed and (life is None or life.told != "registered"):
                found.append(f"[I5] {router}: {name} is listed, the log says {life}")
        left = record.registrations.keys() - expected.keys()
        return found + [f"[I5] {router}: the log still counts on {name}: {record.registrations[name]}" for name in left]

    def accounts(self, state: State) -> list[str]:
        """[I5, I9] what must stand in the log when all is quiet."""
        self.read()
        found = []
        for key, intent, target in self._calls:
            if self.words[key][-1].sequence <= intent:
                found.append(f"[I5] the call for {target} at {key[0]} (intent {intent}) has no outcome in the log")
        for key, words in self.words.items():
            for one, other in itertools.pairwise(words):
                same = type(one.fact) is type(other.fact) and one.fact.url == other.fact.url
                if same and isinstance(one.fact, Registered | Deregistered):
                    found.append(
                        f"{key}: {type(one.fact).__name__} twice in a row, at {one.sequence} and {other.sequence}"
                    )
        if sorted(self.quarantined) != sorted(self.garbage):
            found.append(f"[I9] no facts at {sorted(self.garbage)}, quarantined are {sorted(self.quarantined)}")
        if state.unreadable:
            found.append(f"[I9] the fold still waits for the quarantine of {state.unreadable}")
        return found
