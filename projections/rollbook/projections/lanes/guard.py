"""The guard before removals that nobody saw a reason for with his own eyes [I12].

Such a removal waits until provider and proxy have been listed once in this leadership: before that, whatever is not
known may only not be known yet. Then so many go as the budget allows; beyond it every worker is asked itself, and who
answers stays, until it does not answer any more (it is asked more and more rarely), somebody knows for certain, or a
person says so. Direct evidence and what somebody meant pass at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from rollbook.events import parse_worker
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.budget import WINDOW, Budget
from rollbook.projections.deciding.evidence import Ground, ground
from rollbook.projections.deciding.observed import Life
from rollbook.projections.deciding.plan import Remove
from rollbook.projections.lanes.admission import PROBES_IN_FLIGHT, Admission
from rollbook.projections.lanes.notes import MOST_NAMED
from rollbook.projections.lanes.rollcall import RollCall
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Clock
from rollbook.projections.state.roster import Roster

NO_POOL = ""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """An entry stays, for now."""

    reason: str
    unjudged: bool = False
    """Whether it is only not known yet if it may go."""


class Guard:
    """Guards one proxy for one leadership. Who was withheld by the leader before is withheld still."""

    def __init__(
        self,
        policy: Policy,
        served: ProxyPolicy,
        *,
        projector: Projector,
        admission: Admission,
        roll_call: RollCall,
        clock: Clock,
    ) -> None:
        self._policy = policy
        self._served = served
        self._projector = projector
        self._admission = admission
        self._roll_call = roll_call
        self._clock = clock
        self._budget = Budget(served.removal_budget)
        self._asked = asyncio.Semaphore(PROBES_IN_FLIGHT)
        self._asking = 0
        self._forced: dict[Life, str] = {}
        self._withheld: dict[Life, str] = {}
        """Life → pool."""
        self._unjudged: dict[Life, str] = {}
        """Life → why it cannot be judged yet."""

    def begin(self) -> None:
        """Take over what the log says is withheld. Of a fact that is full, everybody of the pool may be."""
        record = self._projector.state.ledger.look(self._served.name)
        for pool, names in record.withheld.items():
            full = len(names) >= MOST_NAMED
            for name in (one for one in record.registrations if self.pool(one) == pool) if full else names:
                worker = self._roster.workers.get(name)
                self._withheld[name, 0 if worker is None else worker.incarnation] = pool

    @property
    def _roster(self) -> Roster:
        return self._projector.state.roster

    @property
    def withheld(self) -> dict[str, str]:
        """Worker → why it stays, for people."""
        found = {name: self._why(pool) for (name, _), pool in self._withheld.items()}
        return found | {name: reason for (name, _), reason in self._unjudged.items()}

    def listed(self, sizes: Mapping[str, int]) -> None:
        """A complete listing has so many entries of ours of each pool."""
        self._budget.listed(sizes, self._clock.monotonic())

    def look(self, removals: Iterable[Remove], forced_by: str | None) -> None:
        """All removals that are planned now.

        With `forced_by`, those among them that are guarded pass without being counted or asked.
        """
        guarded = {(one.worker, one.incarnation) for one in removals if self.ground(one) is Ground.INFERRED}
        self._forced = {life: self._forced[life] for life in guarded if life in self._forced}
        if forced_by is not None:
            self._forced = dict.fromkeys(guarded, forced_by)
        self._withheld = {
            life: pool for life, pool in self._withheld.items() if life in guarded and life not in self._forced
        }
        self._unjudged = {life: reason for life, reason in self._unjudged.items() if life in guarded}

    def ground(self, removal: Remove) -> Ground:
        """What a removal stands on.

        That of a life which belongs here (a spare entry, a move) is certain, and planned if it goes for its weights.
        """
        name, incarnation = removal.worker, removal.incarnation
        if removal.heir is not None:
            return Ground.DIRECT
        if gates.unwanted(self._roster, self._policy, self._served, name, incarnation) is None:
            return Ground.PLANNED if removal.outdated else Ground.DIRECT
        return ground(self._roster, self._policy, self._served, name, incarnation)

    def forced_by(self, removal: Remove) -> str | None:
        """Who lets it pass without being asked."""
        return self._forced.get((removal.worker, removal.incarnation))

    def rests(self, removal: Remove) -> bool:
        """Whether it is withheld and need not be asked now: it answered lately, and nothing else is to be said."""
        life = (removal.worker, removal.incarnation)
        return (
            life in self._withheld and not self._passes(removal) and self._roll_call.answered(life, removal.entry.url)
        )

    async def against(self, removal: Remove) -> Kept | None:
        """Why an entry must stay, for now; None if it may go."""
        life = (removal.worker, removal.incarnation)
        if self._passes(removal):
            self._let_go(life)
            return None
        if (reason := await self._admission.not_listed_yet()) is not None:
            self._unjudged[life] = reason
            return Kept(reason, unjudged=True)
        self._unjudged.pop(life, None)
        pool = self.pool(removal.worker)
        asks = self._admission.can_be_asked(removal.worker)
        if not (asks and life in self._withheld) and self._budget.take(pool, life, self._clock.monotonic()):
            self._let_go(life)
            return None
        if await self._ask(life, removal.entry.url) is not None or self._passes(removal):
            self._let_go(life)
            return None
        self._withheld[life] = pool
        return Kept(self._why(pool))

    def _passes(self, removal: Remove) -> bool:
        return self.ground(removal) is not Ground.INFERRED or self.forced_by(removal) is not None

    def _let_go(self, life: Life) -> None:
        self._withheld.pop(life, None)
        self._unjudged.pop(life, None)

    async def _ask(self, life: Life, url: str) -> str | None:
        """Why the worker is not there; None if it answers, or cannot be asked."""
        self._asking += 1
        try:
            async with self._asked:
                return await self._roll_call.absent(life, url)
        finally:
            self._asking -= 1

    def called(self, removal: Remove) -> None:
        """A call that removes it begins."""
        self._budget.called(self.pool(removal.worker), (removal.worker, removal.incarnation))

    def stayed(self, removal: Remove) -> None:
        """It was let go, and no call was made: it does not count."""
        self._budget.give_back(self.pool(removal.worker), (removal.worker, removal.incarnation))

    def report(self) -> dict[str, tuple[tuple[str, ...], int]] | None:
        """By pool: who is withheld, and the budget. None while workers are being asked: then it is not said yet."""
        if self._asking:
            return None
        pools: dict[str, list[str]] = {}
        for (name, _), pool in self._withheld.items():
            pools.setdefault(pool, []).append(name)
        now = self._clock.monotonic()
        return {pool: (tuple(sorted(names)), self._budget.allowed(pool, now)) for pool, names in pools.items()}

    def _why(self, pool: str) -> str:
        allowed = self._budget.allowed(pool, self._clock.monotonic())
        whose = f"pool {pool}" if pool else "the workers of no known pool"
        return (
            f"it answers, and more than {allowed} of {whose} would go within {WINDOW:g} s on evidence that "
            "nobody saw for certain"
        )

    def pool(self, name: str) -> str:
        """The pool whose budget counts for `name`."""
        worker = self._roster.workers.get(name)
        return (parse_worker(name).pool if worker is None else worker.pool) or NO_POOL
