"""The simulation can fail: whoever breaks one of the guards below is found out within a few seeds."""

import itertools
import uuid

import msgspec
import pytest
from simulation.run import simulate
from simulation.world import Wrong

from rollbook.adapters.memory.log import MemoryLog
from rollbook.events import Deregistering, Registering
from rollbook.projections import gates, housekeeping, lane, plan, roster, transitions
from rollbook.projections.admission import Admission
from rollbook.projections.controller import Controller
from rollbook.projections.desk import Desk
from rollbook.projections.roster import Roster
from rollbook.projections.transitions import Relation
from rollbook.projections.writer import FencedWriter

pytestmark = pytest.mark.simulation

MOST_SEEDS = 250


def no_second_look(patch):
    patch.setattr(Desk, "unwanted", lambda self, *about: None)


def stale_facts_count(patch):
    patch.setattr(roster, "relate", lambda number, known: Relation.SAME if number <= known else Relation.NEWER)


def the_dead_rise(patch):
    rule = transitions.rule
    patch.setattr(roster, "rule", lambda *about: msgspec.structs.replace(rule(*about), if_seen=False))


def repeated_facts_count(patch):
    patch.setattr(Roster, "_repeated", lambda self, entity, fact_id: False)


def _without(patch, kind):
    write = FencedWriter.write

    async def silent(self, *facts):
        return 0 if isinstance(facts[0], kind) else await write(self, *facts)

    patch.setattr(FencedWriter, "write", silent)


def no_intent_before_an_add(patch):
    _without(patch, Registering)


def no_intent_before_a_removal(patch):
    _without(patch, Deregistering)


def no_fence(patch):
    append = MemoryLog.append

    async def unfenced(self, drafts, *, expect=None):
        return await append(self, drafts)

    patch.setattr(MemoryLog, "append", unfenced)


def addresses_are_cached(patch):
    locate = Admission.locate
    cache = {}

    async def cached(self, name, incarnation, canonical):
        if (id(self), name) not in cache:
            cache[id(self), name] = await locate(self, name, incarnation, canonical)
        return cache[id(self), name]

    patch.setattr(Admission, "locate", cached)


def _skip(patch, kind):
    make_plan = plan.make_plan

    def made(*about):
        full = make_plan(*about)
        return msgspec.structs.replace(full, actions=tuple(a for a in full.actions if not isinstance(a, kind)))

    patch.setattr(lane.plan, "make_plan", made)


def no_adoption(patch):
    _skip(patch, plan.Adopt)


def no_settling(patch):
    _skip(patch, plan.Settle)


def no_removal(patch):
    _skip(patch, plan.Remove)


def weights_do_not_matter(patch):
    patch.setattr(gates, "weights", lambda *about: None)


def readiness_does_not_matter(patch):
    async def ready(self, name, url):
        return None

    patch.setattr(Admission, "ready", ready)


def quarantined_twice(patch):
    patch.setattr(housekeeping, "quarantine_id", lambda *about: str(uuid.uuid4()))


def suspensions_never_expire(patch):
    async def never(self, projector):
        return

    patch.setattr(Controller, "_expire", never)


SABOTAGES = [
    no_second_look,
    stale_facts_count,
    the_dead_rise,
    repeated_facts_count,
    no_intent_before_an_add,
    no_intent_before_a_removal,
    no_fence,
    addresses_are_cached,
    no_adoption,
    no_settling,
    no_removal,
    weights_do_not_matter,
    readiness_does_not_matter,
    quarantined_twice,
    suspensions_never_expire,
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_broken_guard_is_found_out(sabotage, monkeypatch):
    sabotage(monkeypatch)
    for seed in itertools.count():
        assert seed < MOST_SEEDS, "the simulation did not notice"
        try:
            simulate(seed)
        except Wrong:
            return
