"""What the log says, as the simulation reads it: once, as it grows, without the fold under test."""

from collections import Counter, defaultdict

from rollbook.events import (
    Codec,
    Deregistered,
    FleetEnded,
    FleetObserved,
    FleetStarted,
    ForeignFact,
    LeadershipTaken,
    MessageQuarantined,
    ProxyFact,
    RegistrationFact,
    RemovalWithheld,
    Undecodable,
    WorkerFact,
)
from rollbook.projections.state.fold import State


class Journal:
    """Catches up with the log of one world. The state that it folds is the one that every controller must have."""

    def __init__(self, world) -> None:
        self._world = world
        self._codec = Codec(world.policy.fleet)
        self.forget()

    def forget(self) -> None:
        """The log has lost its tail: what it says is read anew."""
        self._state = State()
        self.read_to = 0
        """Messages read."""
        self.words: dict[tuple[str, str, int], list] = defaultdict(list)
        """(router, worker, incarnation) → its registration facts in the log, in order."""
        self.named: dict[tuple[str, str], RegistrationFact] = {}
        """(router, URL) → the last word about whose entry is there, where no tag says so."""
        self.foreign: dict[tuple[str, str], list] = defaultdict(list)
        """(router, URL) → the facts about an entry there that is nobody's of ours."""
        self.garbage: set[int] = set()
        """Sequences of messages that are no facts and do not stand on the quarantine subject."""
        self.quarantined: list[int] = []
        self.began: dict[tuple[str, int], int] = {}
        """(worker, incarnation) → the first fact that names this life."""
        self.run_began = 0
        self.run_ended = False
        self.ids: dict[str, int] = {}
        """Id → first sequence."""
        self.leaders: dict[str, tuple[str, int]] = {}
        """Router → who took it over last, and under which epoch."""

        self.taken_over: Counter[str] = Counter()
        """Router → the sequence of the last takeover."""

    def read(self) -> None:
        """Catch up."""
        messages = self._world.log.messages
        for stored in messages[self.read_to :]:
            try:
                recorded = self._codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            except Undecodable:
                if not stored.subject.endswith(".quarantine"):
                    self.garbage.add(stored.sequence)
                continue
            first = self.ids.setdefault(recorded.id, stored.sequence) == stored.sequence
            self._note(recorded, first=first)
        self.read_to = len(messages)

    def _note(self, recorded, *, first: bool) -> None:
        fact = recorded.fact
        if isinstance(fact, ProxyFact):
            self._note_of_proxy(recorded)
            return
        match fact:
            case MessageQuarantined():
                self.quarantined.append(fact.sequence)
            case FleetStarted() if first:
                self.run_began, self.run_ended = recorded.sequence, False
            case FleetEnded() if first:
                self.run_began, self.run_ended = recorded.sequence, True
            case FleetObserved():
                for line in fact.workers:
                    self.began.setdefault((line.worker, line.incarnation), recorded.sequence)
            case WorkerFact():
                self.began.setdefault((fact.worker, fact.incarnation), recorded.sequence)
            case _:
                pass

    def _note_of_proxy(self, recorded) -> None:
        fact = recorded.fact
        self._rank(recorded)
        if isinstance(fact, RegistrationFact):
            self.words[fact.proxy, fact.worker, fact.incarnation].append(recorded)
            self._name(fact)
        elif isinstance(fact, ForeignFact):
            self.foreign[fact.proxy, fact.url].append(recorded)
        elif isinstance(fact, RemovalWithheld):
            self._world.counts["withheld"] += bool(fact.workers)

    def _name(self, fact: RegistrationFact) -> None:
        place = (fact.proxy, fact.url)
        if not isinstance(fact, Deregistered):
            self.named[place] = fact
        elif (known := self.named.get(place)) and (known.worker, known.incarnation) == (fact.worker, fact.incarnation):
            del self.named[place]

    def _rank(self, recorded) -> None:
        """[I7] what stands on a router's subject is its leader's: the last takeover's, and takeovers only go up."""
        fact, source = recorded.fact, recorded.source.rsplit("/", 1)[-1]
        leader, epoch = self.leaders.get(fact.proxy, (None, 0))
        if isinstance(fact, LeadershipTaken):
            if fact.epoch < epoch or (fact.epoch == epoch and fact.owner != leader):
                self._world.wrong(
                    f"[I7] {fact.proxy}: {fact.owner} took over under {fact.epoch}, after {leader} {epoch}"
                )
            self.leaders[fact.proxy] = (fact.owner, fact.epoch)
            self.taken_over[fact.proxy] = recorded.sequence
        elif source != leader:
            self._world.wrong(f"[I7] {fact.proxy}: {source} wrote {type(fact).__name__} there, which {leader} leads")

    # -------------------------------------------------------------- folded

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
