"""Broken builds that overstep: ownership, budget, operators' words, bad input."""

import itertools

import msgspec

from rollbook.adapters.memory.log import MemoryLog
from rollbook.projections.deciding import gates, observed
from rollbook.projections.deciding.budget import Budget
from rollbook.projections.lanes import lane
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.lanes.guard import Guard
from rollbook.projections.lanes.removing import Removing
from rollbook.projections.lanes.strangers import Strangers
from rollbook.projections.leading.housekeeping import Housekeeping
from rollbook.projections.state.roster import Roster

# ---------------------------------------------------------------- ownership, budget, operators


def strangers_are_removed(patch):
    """[I11] every router is taken for exclusive"""
    begin = lane.Lane.__init__

    def exclusive(self, proxy, served, *about, **more):
        begin(self, proxy, msgspec.structs.replace(served, exclusive=True), *about, **more)

    patch.setattr(lane.Lane, "__init__", exclusive)


def exclusive_is_ignored(patch):
    """[I11] an exclusive router keeps strangers"""
    patch.setattr(Strangers, "look", lambda self, *about: None)


def tags_of_others_are_ours(patch):
    """[I11] an entry with a worker's name is ours, whatever its fleet"""
    by_tag = observed.owner_by_tag
    patch.setattr(
        observed,
        "owner_by_tag",
        lambda fleet, entry: by_tag(fleet, msgspec.structs.replace(entry, fleet=entry.fleet and fleet)),
    )


def no_budget(patch):
    """[I12] every inferred removal is let go"""
    patch.setattr(Budget, "take", lambda self, *about: True)


def who_answers_goes_too(patch):
    """[I12] beyond the budget nobody is asked"""

    async def asked(self, removal):
        return "it was not asked"

    patch.setattr(Guard, "_ask", asked)


def nothing_is_listed_first(patch):
    """[I12] inferred removals begin before the provider was listed once"""

    async def listed(self):
        return None

    patch.setattr(Admission, "not_listed_yet", listed)


def holds_do_not_hold(patch):
    """an operator's hold is ignored"""
    patch.setattr(Roster, "holding", lambda self, proxy: None)


def cordons_do_not_hold(patch):
    """an operator's cordon is ignored"""
    standing = gates.standing

    def open_to_all(book, policy, proxy, name):
        held = standing(book, policy, proxy, name)
        return None if held is not None and held.gate is gates.Gate.NOT_CORDONED else held

    patch.setattr(gates, "standing", open_to_all)


def ends_do_not_end(patch):
    """the end of a run deregisters nobody who comes after it"""
    standing = gates.standing

    def open_for_ever(book, policy, proxy, name):
        ended, book.ended = book.ended, False
        try:
            return standing(book, policy, proxy, name)
        finally:
            book.ended = ended

    patch.setattr(gates, "standing", open_for_ever)


def nobody_is_drained(patch):
    """a planned removal does not wait for running requests"""
    patch.setattr(Removing, "_drain_seconds", lambda self, action: None)


def suspensions_never_expire(patch):
    """the leader does not say when a suspension's time is over"""

    async def never(self):
        return

    patch.setattr(Housekeeping, "_expire", never)


# ---------------------------------------------------------------- bad input, kept facts


def nothing_is_quarantined(patch):
    """[I9] what nobody can read is passed over in silence"""

    async def never(self):
        return

    patch.setattr(Housekeeping, "_quarantine", never)


def the_log_forgets(patch):
    """[I8] one fact in fifty is acknowledged and not stored"""
    append, numbers = MemoryLog.append, itertools.count(1)

    async def forgetful(self, drafts, *, expect=None):
        if expect is None and next(numbers) % 50 == 0:
            return [0 for _ in drafts]
        return await append(self, drafts, expect=expect)

    patch.setattr(MemoryLog, "append", forgetful)


MUTATIONS = (
    strangers_are_removed,
    exclusive_is_ignored,
    tags_of_others_are_ours,
    no_budget,
    who_answers_goes_too,
    nothing_is_listed_first,
    holds_do_not_hold,
    cordons_do_not_hold,
    ends_do_not_end,
    nobody_is_drained,
    suspensions_never_expire,
    nothing_is_quarantined,
    the_log_forgets,
)
