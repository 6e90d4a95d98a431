"""Carries out what is planned at one proxy: two kinds of step call it, three only write down what was read.

Intent before, outcome after every call that could change a proxy [I5].
"""

from __future__ import annotations

from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Action, Add, Adopt, Remove, Settle, Strand
from rollbook.projections.lanes.adding import Adding
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.lanes.guard import Guard
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.lanes.outcomes import FOLLOW, About, Outcome
from rollbook.projections.lanes.removing import Removing


class Steps:
    """Of one proxy."""

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self._recorder = desk.recorder
        self._adding = Adding(desk)
        self._removing = Removing(desk, guard)

    async def carry_out(self, action: Action, seen: Seen, observed: Observed, *, again: bool) -> Outcome:
        """One step of one key, until the fold has passed its outcome. `again` says that the key's last try failed."""
        match action:
            case Add():
                return await self._adding.add(action, seen, observed, again=again)
            case Remove():
                return await self._removing.remove(action, seen, again=again)
            case Settle():
                return await self._recorder.deregistered(_about(action), action.sequence)
            case Adopt():
                return await self._recorder.registered(_about(action), action.sequence)
            case Strand():
                reason = "this kind of proxy cannot remove an entry"
                await self._recorder.failed(
                    _about(action), action.sequence, "deregister", reason, retryable=False, called=False
                )
                return FOLLOW


def _about(action: Settle | Adopt | Strand) -> About:
    return About(action.worker, action.incarnation, action.url)
