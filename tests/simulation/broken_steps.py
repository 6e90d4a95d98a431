"""Broken builds that do wrong what is planned: plan, steps, and one writer."""

import asyncio
import sys

import msgspec

from rollbook.adapters.memory.leadership import MemoryLeadership
from rollbook.adapters.memory.log import MemoryLog
from rollbook.events import Deregistering, Registering
from rollbook.projections.deciding import plan
from rollbook.projections.deciding.plan import Remove
from rollbook.projections.lanes.listing import Reader, Seen
from rollbook.projections.lanes.removing import Removing
from rollbook.projections.lanes.urls import Urls
from rollbook.projections.log.authority import Authority
from rollbook.projections.log.writer import FencedWriter

# ---------------------------------------------------------------- plan and steps


def _everywhere(patch, name, value):
    """Put `value` where modules have `name` of the plan's own."""
    for module in [each for key, each in sys.modules.items() if key.startswith("rollbook.projections.")]:
        if getattr(module, name, None) is getattr(plan, name) and module is not plan:
            patch.setattr(module, name, value)
    patch.setattr(plan, name, value)


def _skip(patch, kind):
    make_plan = plan.make_plan

    def made(*about):
        full = make_plan(*about)
        return msgspec.structs.replace(full, actions=tuple(a for a in full.actions if not isinstance(a, kind)))

    _everywhere(patch, "make_plan", made)


def no_adoption(patch):
    """[I5] an entry whose outcome is missing in the log is left so"""
    _skip(patch, plan.Adopt)


def no_settling(patch):
    """[I5] what the log counts on and nobody lists is left so"""
    _skip(patch, plan.Settle)


def no_removal(patch):
    """[I1] nobody is ever removed"""
    _skip(patch, plan.Remove)


def delete_before_add(patch):
    """[I4] whoever is to be added is removed everywhere first, and everybody with it"""
    make_plan = plan.make_plan

    def made(state, policy, proxy, seen, *about):
        full = make_plan(state, policy, proxy, seen, *about)
        if not any(isinstance(action, plan.Add) for action in full.actions):
            return full
        planned = {action.worker for action in full.actions}
        others = [owned[0] for name, owned in seen.owned.items() if name not in planned]
        gone = [Remove(own.worker, own.incarnation, own.entry, "anew", unless_wanted=False) for own in others]
        return msgspec.structs.replace(full, actions=(*full.actions, *gone))

    _everywhere(patch, "make_plan", made)


def promises_are_trusted(patch):
    """[I1, I5] a 202 is taken for the outcome: nobody reads back"""

    async def until(self, *about, **more):
        return None

    patch.setattr(Reader, "until", until)


def read_once(patch):
    """[I1] a listing is good for ever"""
    fresh = Reader.fresh

    async def stale(self):
        if not hasattr(self, "kept"):
            self.kept = await fresh(self)
        await asyncio.sleep(0.01)
        return Seen(self.tick(), self.kept.listing)

    patch.setattr(Reader, "fresh", stale)


def any_url_will_do(patch):
    """[I3] two workers may change one URL at a time, and nobody is in the way"""
    patch.setattr(Urls, "usable", lambda self, *about: True)
    patch.setattr(Urls, "taken", lambda self, *about: None)


def removals_are_not_reconsidered(patch):
    """[I3, I4] a removal is carried out although the life belongs there again"""
    patch.setattr(Removing, "_needed", lambda self, action: None)


def _without(patch, kind):
    write = FencedWriter.write

    async def silent(self, *facts):
        return 0 if isinstance(facts[0], kind) else await write(self, *facts)

    patch.setattr(FencedWriter, "write", silent)


def no_intent_before_an_add(patch):
    """[I5] an add is called for without a word in the log"""
    _without(patch, Registering)


def no_intent_before_a_removal(patch):
    """[I5] so is a removal"""
    _without(patch, Deregistering)


# ---------------------------------------------------------------- one writer


def no_fence(patch):
    """[I7] facts are appended whatever stands on the subject"""
    append = MemoryLog.append

    async def unfenced(self, drafts, *, expect=None):
        return await append(self, drafts)

    patch.setattr(MemoryLog, "append", unfenced)


def calls_ignore_the_lease(patch):
    """[I7] a call may begin with less than its deadline left"""
    patch.setattr(Authority, "missing", lambda self, seconds: None)


def words_ignore_the_lease(patch):
    """[I7] facts are written after the lease is over"""
    patch.setattr(Authority, "require", lambda self: None)


def nobody_is_outranked(patch):
    """[I7] a higher epoch in the log deposes nobody"""
    patch.setattr(FencedWriter, "_stand_down_if_outranked", lambda self: None)


def two_may_lead(patch):
    """[I7] the seat is taken from whoever has it"""
    patch.setattr(MemoryLeadership, "_taken", lambda self: False)


MUTATIONS = (
    no_adoption,
    no_settling,
    no_removal,
    delete_before_add,
    promises_are_trusted,
    read_once,
    any_url_will_do,
    removals_are_not_reconsidered,
    no_intent_before_an_add,
    no_intent_before_a_removal,
    no_fence,
    calls_ignore_the_lease,
    words_ignore_the_lease,
    nobody_is_outranked,
    two_may_lead,
)
