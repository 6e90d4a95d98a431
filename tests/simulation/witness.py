"""The invariants at every moment: what is checked when a controller calls a router, writes, or a listing changes.

It knows the fleet's rules in its own words (rules.py) and asks only the roster that the calling controller had at that
moment, the messages in the log, and the routers themselves.

- [I2] at every add: the caller's roster wants this life now, and has folded the intent of this call.
- [I3, I4] at every removal: the roster does not want this life; or its entry is there twice, out of rotation, at an
  address where it is no more, or in the way of a newer life; or its weights are old and it was replaced.
- [I4] at every add: the entry was not there all along since its registration was written down.
- [I5] at every call: the log's last word on the entry is its intent.
- [I6] at every add: the URL is what the provider answered last in this very step; the weights are good enough, and this
  very life has held them; its pair is there; the worker answered this step, as itself.
- [I7] at every call and every write: the caller holds the seat, for as long as the call may take (lease.py); in the
  log: only who took a router over last writes there, and epochs go up (journal.py).
- [I11] at every removal and change of a listing: the entry is ours, or the router is exclusive and it is a stranger's.
- [I12] at every removal: an inferred one is within the budget, or the worker was asked in this step and did not answer
  (removals.py); who is meant to leave is drained first where the router can.
"""

import asyncio
from collections import defaultdict

import msgspec
from simulation.journal import Journal
from simulation.lease import LeaseWatch
from simulation.removals import BudgetWatch, DrainWatch
from simulation.rules import current, leaves, paired, wanted

from rollbook.events import Codec, Deregistering, ForeignRemoving, Registered, Registering, WorkerDown
from rollbook.projections.ports import Located, Target
from rollbook.projections.state.roster import Roster


class Made(msgspec.Struct, frozen=True):
    """An admin call, and the intent that it was made on."""

    key: tuple
    intent: int
    what: object


class Witness:
    """Watches one world."""

    def __init__(self, world) -> None:
        self._world = world
        self.journal = Journal(world)
        self.lease = LeaseWatch(world)
        self.budget = BudgetWatch(world)
        self.drain = DrainWatch(world)
        self.calls: list[Made] = []
        self.strangers: dict[str, set[str]] = defaultdict(set)
        """Router → URLs that somebody else registered there; only an exclusive router may be asked to remove them."""
        self._located: dict[tuple[asyncio.Task, str], tuple[Located, bool, set[str]]] = {}
        self._probed: dict[tuple[asyncio.Task, str], str] = {}
        self._appeared: dict[tuple[str, str], int] = {}
        """(router, handle) → the log's end when the entry appeared."""
        self._targets: dict[tuple[str, str], Target] = {}

    # -------------------------------------------------------------- what a step of a controller was told

    def located(self, running, name: str, located: Located) -> None:
        """The provider answered a step of a controller; a step is a task."""
        roster = running.controller.projector.state.roster
        worker = roster.workers.get(name)
        policy = self._world.policy
        right = worker is None or current(roster, policy, worker)
        pairs = {router for router in policy.proxies if worker is None or paired(roster, policy, router, name)}
        self._located[asyncio.current_task(), name] = (located, right, pairs)

    def probed(self, url: str, identity, answer: str | None) -> None:
        """A worker answered a step of a controller: "" if it is ready and who it should be."""
        if identity is None and self._world.weather.identities:
            answer = answer or "it was not asked who it is"
        self._probed[asyncio.current_task(), url] = answer or ""

    def appends(self, running, drafts) -> None:
        """A controller writes."""
        if running is None:
            return
        self.lease.appends(running, drafts)
        for draft in drafts if self._world.kept is not None else ():
            fact = Codec(self._world.policy.fleet).decode(draft.payload, subject=draft.subject, sequence=1).fact
            if isinstance(fact, WorkerDown) and fact.evidence == "lease_expired":
                url = self._world.fleet.url_of(fact.worker, fact.incarnation)
                self._world.kept.custody.lease_over(fact, self._probed.get((asyncio.current_task(), url)))

    # -------------------------------------------------------------- what happens at the routers

    def changed(self, router, effect: str, entry) -> None:
        """A router's listing changed."""
        self._world.counts[effect] += 1
        self._world.note(f"{router.name} {effect} {entry.worker} {entry.incarnation} {entry.url}")
        if effect == "listed":
            self._appeared[router.name, entry.handle] = len(self._world.log.messages)
        elif effect == "lost" or self._world.policy.proxies[router.name].exclusive:
            self.strangers[router.name].discard(entry.url)
        if effect == "removed" and entry.url in self.strangers[router.name]:
            self._world.wrong(f"[I11] {router.name}: a stranger's {entry.url} was removed")
        self.budget.listed(router, [self.owner(router, each) for each in router.listed])
        self._world.states.look()

    def called(self, router, running, verb: str, what) -> None:
        """A controller asks a router for a change."""
        world = self._world
        self.journal.read()
        self.lease.calls(running, router.name, verb)
        world.counts[verb] += 1
        world.note(f"{running} calls {router.name}.{verb} {what}")
        world.states.look()
        roster = running.controller.projector.state.roster
        if roster.held.keys() & {"", router.name}:
            world.wrong(f"{router.name}: {verb} {what} while an operator holds it")
        target = what if isinstance(what, Target) else self.owner(router, what)
        if target is None and self.lease.robbed(running):
            target = self._meant(router, running, what.url)
        if target is None:
            self._foreign(router, running, verb, what)
            return
        belongs = wanted(roster, world.policy, router.name, target.worker) == target.incarnation
        match verb:
            case "add":
                self._adds(router, running, target, belongs=belongs)
            case "drain":
                self.drain.drains(router, what, target, running.controller.projector.state)
            case _:
                state = running.controller.projector.state
                if belongs and leaves(state, world.policy, router.name, target.worker):
                    world.counts["left for weights"] += 1
                elif belongs and not self._replaced(router, roster, what, target):
                    world.wrong(f"[I3, I4] {router.name}: {target} was removed, which the roster wants now")
                if not self.drain.drained_here(router, what) and not self._in_the_way(router, roster, target):
                    probe = self._probed.get((asyncio.current_task(), target.url))
                    self.budget.removes(running, router, target, roster, probe)
                self.drain.removes(router, what, target, roster)
        expected = Registering if verb == "add" else Deregistering
        key = (router.name, target.worker, target.incarnation)
        self._intent(running, self.journal.words[key], key, expected, target.url)

    def owner(self, router, entry) -> Target | None:
        """Whose entry it is; where the router keeps no tags, whoever was added there last.

        Where entries cannot be seen, or outlive the life that they were made for, it is the log's last word on the URL.
        """
        if entry.worker is not None and entry.fleet == self._world.policy.fleet:
            return Target(worker=entry.worker, incarnation=entry.incarnation, url=entry.url)
        capabilities = router.capabilities
        if capabilities.tag or entry.url in self.strangers[router.name]:
            return None
        if capabilities.list and capabilities.remove:
            return self._targets.get((router.name, entry.url))
        named = self.journal.named.get((router.name, entry.url))
        return named and Target(worker=named.worker, incarnation=named.incarnation, url=named.url)

    def _meant(self, router, running, url: str) -> Target | None:
        """Whose entry a deposed controller said it removes there: its successor may have done so already."""
        for (name, worker, incarnation), words in self.journal.words.items():
            own = [word for word in words if word.source.endswith(f"/{running.owner}")]
            if name == router.name and own and isinstance(own[-1].fact, Deregistering) and own[-1].fact.url == url:
                return Target(worker=worker, incarnation=incarnation, url=url)
        return None

    def _adds(self, router, running, target: Target, *, belongs: bool) -> None:
        self._targets[router.name, target.url] = target
        if not belongs:
            self._world.wrong(f"[I2] {router.name}: {target} was added, which the roster does not want now")
        self._address(router, target)
        self._believed(running, router, target)
        if self.lease.holds(running) and router.capabilities.list:
            self._needless(router, target)

    def _believed(self, running, router, target: Target) -> None:
        """[truth] a life is let in for weights that this very life has held."""
        worker = self._world.fleet.workers[target.worker]
        known = running.controller.projector.state.roster.workers[target.worker].weights
        if worker.incarnation == target.incarnation and known is not None and known not in worker.held:
            self._world.wrong(f"[truth] {router.name}: {target} was added for weights {known}, it held {worker.held}")

    def _foreign(self, router, running, verb: str, entry) -> None:
        """[I11] an entry of somebody else's: only an exclusive router is asked to remove it, with its own intent."""
        world = self._world
        if verb != "remove" or not world.policy.proxies[router.name].exclusive:
            world.wrong(f"[I11] {router.name}: {verb} of {entry}, which is not ours")
            return
        world.counts["foreign removals"] += 1
        key = (router.name, entry.url)
        self._intent(running, self.journal.foreign[key], key, ForeignRemoving, entry.url)

    def _replaced(self, router, roster: Roster, entry, target: Target) -> bool:
        """Whether a wanted entry may go: twice there, out of rotation, moved, or its URL is a newer life's."""
        twice = [each for each in router.listed if self.owner(router, each) == target]
        elsewhere = self._world.fleet.url_of(target.worker, target.incarnation) != target.url
        return len(twice) > 1 or not entry.in_rotation or elsewhere or self._in_the_way(router, roster, target)

    def _in_the_way(self, router, roster: Roster, target: Target) -> bool:
        """Whether its URL is that of a life which is newer, and wanted here."""
        fleet = self._world.fleet
        mine = roster.workers.get(target.worker)
        for name, worker in roster.workers.items():
            later = mine is None or worker.began > mine.began
            newer = later and fleet.url_of(name, worker.incarnation) == target.url
            if newer and wanted(roster, self._world.policy, router.name, name) is not None:
                return True
        return False

    def _intent(self, running, words: list, key: tuple, expected: type, url: str) -> None:
        """[I5] the last word on the key is the intent of this call; [I7] and the caller's own."""
        world = self._world
        if self.lease.robbed(running):
            # Deposed since it wrote its intent: this call slips through, and the successor lists again.
            words = [word for word in words if word.source.endswith(f"/{running.owner}")]
        last = words[-1] if words else None
        folded = running.controller.projector.state.sequence
        if last is None or type(last.fact) is not expected or last.fact.url != url:
            told = None if last is None else last.fact
            world.wrong(f"[I5] {key}: a call without its {expected.__name__}; the last word is {told}")
        elif not last.source.endswith(f"/{running.owner}"):
            world.wrong(f"[I7] {key}: {running} made a call on the intent of {last.source}")
        elif folded < last.sequence:
            world.wrong(f"[I2] {key}: judged by a roster at {folded}, before its intent {last.sequence}")
        else:
            self.calls.append(Made(key, last.sequence, url))

    def _needless(self, router, target: Target) -> None:
        """[I4] an entry that was there when its registration was written down, and still is, is not added again."""
        words = self.journal.words[router.name, target.worker, target.incarnation]
        registered = [word.sequence for word in words if isinstance(word.fact, Registered)]
        for entry in router.listed:
            since = self._appeared.get((router.name, entry.handle))
            there = self.owner(router, entry) == target and entry.in_rotation
            if registered and since is not None and there and since < registered[-1]:
                self._world.wrong(f"[I4] {router.name}: {target} was added, and is listed and registered since {since}")

    def _address(self, router, target: Target) -> None:
        """[I6] the address is the one that the provider gave last in this very step."""
        located, right, pairs = self._located.get((asyncio.current_task(), target.worker), (None, False, set()))
        if located is None:
            self._world.wrong(f"[I6] {router.name}: {target} was added with an address not asked for in this pass")
        elif target.url != f"http://{located.addresses['primary']}" or located.incarnation != target.incarnation:
            self._world.wrong(f"[I6] {router.name}: {target} was added, the provider's last answer was {located}")
        if not right:
            self._world.wrong(f"{router.name}: {target} was added, its weights are not those that were published")
        if router.name not in pairs:
            self._world.wrong(f"{router.name}: {target} was added, and is half of a pair")
        if (answer := self._probed.get((asyncio.current_task(), target.url), "it was not asked")) != "":
            self._world.wrong(f"{router.name}: {target} was added, and was not ready in this step: {answer}")
