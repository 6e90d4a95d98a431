"""What people decided and what still holds: who, why, and since which fact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Decision, Phase

Kind = Literal["cordon", "drain", "forget", "hold", "end"]


class DecisionStatus(msgspec.Struct, frozen=True):
    """One decision."""

    what: Kind
    about: str | None
    """The worker, the proxy or the run; None for reconciliation as a whole."""
    by: str
    why: str
    sequence: int


def decisions(roster: Roster) -> tuple[DecisionStatus, ...]:
    """All that hold now, in the order in which they were made."""
    return tuple(sorted(_decisions(roster), key=lambda decision: decision.sequence))


def _decisions(roster: Roster) -> Iterator[DecisionStatus]:
    yield from (_shown("cordon", name, one) for name, one in roster.cordons.items())
    yield from (_shown("forget", name, one) for name, one in roster.forgotten.items())
    yield from (_shown("hold", name or None, one) for name, one in roster.held.items())
    for worker in roster.workers.values():
        if worker.drain is not None and worker.phase is Phase.DRAINING:
            yield _shown("drain", worker.name, worker.drain)
    if roster.ending is not None:
        yield _shown("end", roster.run_id, roster.ending)


def _shown(what: Kind, about: str | None, decision: Decision) -> DecisionStatus:
    return DecisionStatus(what, about, decision.by, decision.why, decision.sequence)
