"""What a manager says of whole pools, against every order in which it, the log and the workers can be.

A model of a pool: workers of a manager, workers of somebody else, a manager that was replaced and does not know it, a
monitor that errs, and facts that come late or never. A listing is taken at one moment and published at any later one.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.core import Book

from rollbook.adapters.ray.listing import Listing, listing
from rollbook.adapters.ray.spec import WorkerState
from rollbook.events import (
    FleetObserved,
    FleetStarted,
    ObservedWorker,
    WorkerDown,
    WorkerForgotten,
    WorkerRetired,
    WorkerStarted,
    WorkerUp,
)
from rollbook.projections.state.worker import LIVE, Phase

OURS = ("rollout-0-0", "rollout-1-0", "rollout-2-0")
THEIRS = "rollout-9-0"
POOL = "rollout"


class World:
    """Who lives, what the log says, and what the managers believe."""

    def __init__(self):
        self.book = Book()
        self.alive: dict[str, int] = {}
        """By worker: the life whose process is there; 0 for one that has no number yet."""
        self.states = {name: WorkerState(name=name, stage="creating") for name in OURS}
        self.known_dead: set[str] = set()
        """Whose last process the manager has seen end."""
        self.records = dict.fromkeys(OURS, 0)
        self.zombie = dict(self.states)
        self.queues: dict[str, list] = {name: [] for name in OURS}
        self.listings: list[FleetObserved] = []
        self.runs = 0

    def number(self, name):
        """A new life, as the log numbers it."""
        known = self.book.roster.workers.get(name)
        return max(known.incarnation if known else 0, self.book.roster.tombstones.get(name, 0)) + 1

    def note(self, name, **changes):
        self.states[name] = WorkerState(name=name, **changes)

    # ------------------------------------------------------------ one manager's workers

    def make(self, name):
        """Ray has made a process."""
        state = self.states[name]
        if name not in self.alive and (name in self.known_dead or not self.records[name]):
            self.alive[name] = 0
            self.known_dead.discard(name)
            self.note(name, stage="waiting", incarnation=state.incarnation)

    def begin(self, name):
        """The log numbers it; the manager has not heard of that yet."""
        if self.alive.get(name) == 0:
            self.alive[name] = self.number(name)
            self.flush(name)
            self.book.say(WorkerStarted(worker=name, incarnation=self.alive[name]))

    def hear(self, name):
        """The manager hears the number."""
        if self.alive.get(name) and self.states[name].stage == "waiting":
            self.records[name] = self.alive[name]
            self.note(name, stage="starting", incarnation=self.alive[name])

    def serve(self, name):
        if self.alive.get(name) and self.states[name].stage == "starting":
            number = self.states[name].incarnation
            self.note(name, stage="serving", incarnation=number)
            self.queues[name].append(WorkerUp(worker=name, incarnation=number, seen=self.book.sequence))

    def die(self, name):
        self.alive.pop(name, None)

    def notice(self, name):
        """The manager sees the end of its process."""
        state = self.states[name]
        if name not in self.alive and state.stage in {"starting", "serving", "waiting"}:
            number = self.states[name].incarnation
            self.known_dead.add(name)
            if number and state.stage != "waiting":
                self.queues[name].append(WorkerDown(worker=name, incarnation=number, evidence="actor_dead"))
            self.note(name, stage="down" if state.stage != "waiting" else "creating", incarnation=number)

    def record(self, name):
        if self.queues[name]:
            self.book.say(self.queues[name].pop(0))

    def flush(self, name):
        """Facts of one worker keep their order."""
        while self.queues[name]:
            self.record(name)

    def lose(self, name):
        if self.queues[name]:
            self.queues[name].pop(0)

    def restart(self, _):
        """The manager begins anew: of its workers it knows what it wrote down. The one before may linger."""
        self.zombie = dict(self.states)
        self.known_dead.clear()
        for name in OURS:
            self.note(name, stage="creating", incarnation=self.records[name])

    def find(self, name):
        """It finds the process, or that there is none."""
        state = self.states[name]
        if state.stage != "creating" or name in self.known_dead or not (self.records[name] or name in self.alive):
            return
        if name not in self.alive:
            self.known_dead.add(name)
            self.queues[name].append(WorkerDown(worker=name, incarnation=state.incarnation, evidence="actor_dead"))
            self.note(name, stage="down", incarnation=state.incarnation)
        elif self.alive[name]:
            self.records[name] = self.alive[name]
            self.note(name, stage="starting", incarnation=self.alive[name])
        else:
            self.note(name, stage="waiting", incarnation=state.incarnation)

    # ------------------------------------------------------------ others

    def begin_theirs(self, _):
        if THEIRS not in self.alive:
            self.alive[THEIRS] = self.number(THEIRS)
            self.book.say(WorkerUp(worker=THEIRS, incarnation=self.alive[THEIRS]))

    def end_theirs(self, _):
        if number := self.alive.pop(THEIRS, 0):
            self.book.say(WorkerDown(worker=THEIRS, incarnation=number, evidence="exited"))

    def retire_theirs(self, _):
        if number := self.alive.pop(THEIRS, 0):
            self.book.say(WorkerRetired(worker=THEIRS, incarnation=number))

    def err(self, name):
        """A monitor is mistaken."""
        if number := self.alive.get(name, 0):
            self.book.say(WorkerDown(worker=name, incarnation=number, evidence="timeout"))

    def err_about_theirs(self, _):
        self.err(THEIRS)

    def correct(self, name):
        if number := self.alive.get(name, 0):
            self.book.say(WorkerUp(worker=name, incarnation=number, seen=self.book.sequence))

    def correct_theirs(self, _):
        self.correct(THEIRS)

    def forget(self, name):
        self.book.say(WorkerForgotten(worker=name, by="ann", why="test"))

    def new_run(self, _):
        self.runs += 1
        self.book.say(FleetStarted(run_id=f"run-{self.runs}"))

    # ------------------------------------------------------------ listings

    def take(self, states, observer):
        now = listing(self.book.roster, states.values())
        if now.pools:
            fact = FleetObserved(observer=observer, pools=now.pools, as_of=self.book.sequence, workers=now.workers)
            self.listings.append(fact)
        return now

    def look(self, _):
        self.take(self.states, "manager")

    def look_of_the_zombie(self, _):
        self.take(self.zombie, "zombie")

    def publish(self, _):
        """What is true of those that live stays so, and nobody comes back from the dead."""
        if not self.listings:
            return
        before = {name: (worker.incarnation, worker.phase) for name, worker in self.book.roster.workers.items()}
        self.book.say(self.listings.pop(0))
        for name, worker in self.book.roster.workers.items():
            incarnation, phase = before.get(name, (0, Phase.ABSENT))
            if phase in LIVE and self.alive.get(name) == incarnation:
                assert worker.phase in LIVE, f"{name} lives, and a listing said that it is down"
            if phase not in LIVE and not self.alive.get(name):
                assert worker.phase not in LIVE, f"{name} is dead, and a listing said that it lives"


STEPS = [name for name in vars(World) if not name.startswith("_") and name not in {"number", "note", "take", "flush"}]
ORDERS = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(OURS)), max_size=80)
UP = [("make", OURS[0]), ("begin", OURS[0]), ("hear", OURS[0]), ("serve", OURS[0]), ("record", OURS[0])]

REPLACED = [("restart", ""), ("find", OURS[0]), ("die", OURS[0]), ("notice", OURS[0])]


def ran(steps):
    world = World()
    for step, name in steps:
        getattr(world, step)(name)
    return world


@settings(max_examples=400)
@given(ORDERS)
@example([*UP, ("die", OURS[0]), ("notice", OURS[0]), ("look", ""), *UP[:2], ("publish", "")])  # begun meanwhile
@example([*UP, ("die", OURS[0]), ("notice", OURS[0]), *UP[:2], ("look", ""), ("publish", "")])  # not heard of yet
@example([*UP, ("restart", ""), ("look", ""), ("publish", "")])  # not found yet
@example([*UP, ("begin_theirs", ""), ("look", ""), ("publish", "")])
@example([*UP, ("begin_theirs", ""), ("err_about_theirs", ""), ("look", ""), ("correct_theirs", ""), ("publish", "")])
@example([*UP, *REPLACED[2:], *REPLACED[:2], *UP[:2], ("look_of_the_zombie", ""), ("publish", "")])
@example([*UP, *REPLACED, *UP[:3], ("look_of_the_zombie", ""), ("publish", "")])
def test_a_listing_never_says_dead_of_who_lives(steps):
    """I2, I3: whatever happens between its beginning and its way into the log."""
    ran(steps)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(OURS)), max_size=60))
@example([*UP[:2], ("die", OURS[0])])
def test_once_the_manager_knows_all_one_listing_makes_good_what_was_lost(steps):
    """I1."""
    world = ran((step, name) for step, name in steps if "their" not in step and "zombie" not in step)
    world.listings.clear()
    for name in OURS:
        for step in ("find", "notice"):
            getattr(world, step)(name)
        if world.states[name].stage == "creating":  # it died before the manager had heard its number: there is another
            world.make(name)
        for step in ("begin", "hear", "serve"):
            getattr(world, step)(name)
        world.queues[name].clear()
    now = world.take(world.states, "manager")
    assert now.withheld == ()
    world.publish("")
    for name, worker in world.book.roster.workers.items():
        if worker.phase in LIVE:
            assert world.alive.get(name) == worker.incarnation
            assert worker.phase is Phase.SERVING


def lives(book, *names):
    book.all(*(WorkerUp(worker=name, incarnation=1) for name in names))
    return [WorkerState(name=name, stage="serving", incarnation=1) for name in names]


def test_a_pool_is_listed_whole_or_not_at_all():
    book = Book()
    kept = lives(book, "rollout-0-0", "reward-0-0")
    book.say(WorkerUp(worker="reward-1-0", incarnation=1))
    assert listing(book.roster, kept) == Listing(
        ("rollout",),
        (ObservedWorker("rollout-0-0", 1),),
        (("reward", "incarnation 1 of reward-1-0 is serving by the log, and it is none of this manager's workers"),),
    )


@pytest.mark.parametrize(
    ("stage", "incarnation", "why"),
    [
        ("creating", 1, "this manager knows incarnation 1, which is creating"),
        ("waiting", 0, "this manager knows incarnation 0, which is waiting"),
        ("down", 0, "this manager knows incarnation 0, which is down"),
    ],
)
def test_whom_the_manager_does_not_know_keeps_the_pool_from_being_listed(stage, incarnation, why):
    book = Book()
    lives(book, OURS[0])
    now = listing(book.roster, [WorkerState(name=OURS[0], stage=stage, incarnation=incarnation)])
    assert now.pools == now.workers == ()
    assert why in dict(now.withheld)["rollout"]


def test_who_is_down_for_sure_is_left_out_and_who_starts_is_said_to():
    book = Book()
    lives(book, *OURS)
    states = [
        WorkerState(name=OURS[0], stage="down", incarnation=1),
        WorkerState(name=OURS[1], stage="starting", incarnation=2),
        WorkerState(name=OURS[2], stage="given_up", incarnation=1),
    ]
    assert listing(book.roster, states) == Listing(("rollout",), (ObservedWorker(OURS[1], 2, serving=False),))


def test_nothing_is_said_of_pools_that_it_has_no_workers_in():
    book = Book()
    lives(book, "reward-0-0")
    assert listing(book.roster, []) == Listing()
    assert listing(book.roster, [WorkerState(name="rollout-0-0", stage="creating")]) == Listing()
