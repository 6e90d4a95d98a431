"""The leader's answer to an expired lease: ask the worker first, and only then say that it is down.

A publisher that fell silent may have died alone, or be stuck, or be cut off, while its worker serves. So the worker is
asked at its `ready_path`, at the address that the provider tells now. If it answers, its lease begins anew; if it
cannot be looked up, nothing is known; if it does not answer, it is down with evidence `lease_expired`, unless anybody
spoke about it meanwhile. One that is heard of again afterwards, and answers, is up again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rollbook.events import WorkerDown, WorkerFact, WorkerUp
from rollbook.events.reasons import tellable
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Held
from rollbook.projections.ending import end
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.lanes.admission import Site
from rollbook.projections.leading.controller import Leading
from rollbook.projections.leading.vigil import HELD_UP_SECONDS, PAUSE_SECONDS
from rollbook.projections.log.authority import Authority
from rollbook.projections.ports import LogUnavailable, ProviderError

LONGEST_REASON: Final = 300
AT_ONCE: Final = 32
"""Workers asked at a time: a node that is lost takes many leases with it."""


async def expiry(leading: Leading) -> None:
    """Look after the leases for as long as this process leads. Raises `LeadershipLost` when it is time to stop."""
    clock, leases = leading.resources.clock, leading.resources.leases
    examiner = Examiner(leading)
    while True:
        began = clock.monotonic()
        await clock.sleep(PAUSE_SECONDS)
        now = clock.monotonic()
        if now - began > PAUSE_SECONDS + HELD_UP_SECONDS:
            leases.listening(now)
            continue
        roster = leading.projector.state.roster
        names = [*leases.overdue(roster, now), *leases.back(roster, now)]
        for first in range(0, len(names), AT_ONCE):
            asking = [asyncio.create_task(examiner.examine(name)) for name in names[first : first + AT_ONCE]]
            try:
                await asyncio.gather(*asking)  # no task group: it would wrap what the controller stands by on
            finally:
                await end(*asking)


class Examiner:
    """Asks one worker, and writes down what that means for its lease."""

    def __init__(self, leading: Leading) -> None:
        resources = leading.resources
        fleet = leading.policy.fleet
        authority = Authority(resources.leadership, fleet)
        self._leading = leading
        self._verdicts = Verdicts(
            fleet, resources.log, resources.clock, resources.ids, resources.owner, may=authority.require
        )

    async def examine(self, name: str) -> None:
        """One look. What could not be found out is looked at again with the next one.

        Whose turn comes late may have another life by now, or sleep, or have been heard of.
        """
        resources, state = self._leading.resources, self._leading.projector.state
        leases, now = resources.leases, resources.clock.monotonic()
        as_of, worker = state.sequence, state.roster.workers.get(name)
        if worker is None:
            return
        expired = leases.is_back(worker, now)
        if not expired and not leases.is_overdue(worker, state.roster, now):
            return
        incarnation, lease = worker.incarnation, worker.lease
        try:
            wrong = await self._ask(name)
        except ProviderError as exc:
            resources.tell("lease.unknown", worker=name, reason=str(exc))
            return
        if wrong is None and not expired:
            leases.renewed(name, incarnation, resources.clock.monotonic())
            resources.tell("lease.expired_and_answers", worker=name, incarnation=incarnation)
        elif wrong is None:
            await self._write(WorkerUp(worker=name, incarnation=incarnation), as_of)
        elif not expired and self._still_overdue(name, incarnation):
            reason = tellable(f"not heard of for more than {lease:g} s, and {wrong}", LONGEST_REASON)
            down = WorkerDown(worker=name, incarnation=incarnation, evidence="lease_expired", reason=reason)
            await self._write(down, as_of)

    def _still_overdue(self, name: str, incarnation: int) -> bool:
        """Of what has happened since the question, renewals and another rank's sleep fence no verdict."""
        resources, roster = self._leading.resources, self._leading.projector.state.roster
        worker = roster.workers.get(name)
        if worker is None or worker.incarnation != incarnation:
            return False
        return resources.leases.is_overdue(worker, roster, resources.clock.monotonic())

    async def _ask(self, name: str) -> str | None:
        """What is wrong with it now; None if it answers. Raises `ProviderError` if it cannot be looked up."""
        resources, policy = self._leading.resources, self._leading.policy
        try:
            async with asyncio.timeout(policy.reconcile.call_deadline):
                located = (await resources.provider.locate([name])).get(name)
        except TimeoutError as exc:
            raise ProviderError("the provider gave no answer in time") from exc
        except ProviderError:
            raise
        except Exception as exc:
            raise ProviderError(f"the provider failed: {type(exc).__name__}: {exc}") from exc
        worker = self._leading.projector.state.roster.workers.get(name)
        if worker is None or located is None:
            return "the provider does not know it"
        if located.incarnation not in {0, worker.incarnation}:
            raise ProviderError(f"the provider answers for incarnation {located.incarnation}")
        pool = policy.pool(worker.pool)
        if (held := gates.address(worker, located)) is not None:
            return held.reason
        url = gates.worker_url(pool.url, located)
        if isinstance(url, Held):  # about the configuration, and not about the worker
            raise ProviderError(url.reason)
        if pool.ready_path is None:
            return None if worker.evidence == "lease_expired" else "its pool has no ready_path to ask it at"
        unready = await self._leading.admission.ready(name, Site(url, identity=located.identity))
        return None if unready is None else unready.reason

    async def _write(self, fact: WorkerFact, as_of: int) -> None:
        resources = self._leading.resources
        about = {"worker": fact.worker, "incarnation": fact.incarnation}
        try:
            sequence = await self._verdicts.write(fact, as_of=as_of)
        except LogUnavailable as exc:
            resources.tell("log.unavailable", reason=str(exc))
            return
        if sequence is not None:
            resources.tell("lease.back" if isinstance(fact, WorkerUp) else "lease.expired", **about)
            await self._leading.projector.passed(sequence)
