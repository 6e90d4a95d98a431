"""The controller: one projector and one lane per proxy, for as long as this process leads the fleet.

The order of its life: take leadership, restore the newest snapshot that the log confirms, catch up, then let the lanes
act; on the way out, in reverse. A failure anywhere ends all of it: nothing dies in silence.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final

from rollbook.events import Codec, MessageQuarantined, RollbookError, WorkerResumed
from rollbook.events.subjects import worker_subject
from rollbook.events.times import parse_rfc3339, rfc3339
from rollbook.projections.admission import Admission
from rollbook.projections.fold import State, message_id, restore
from rollbook.projections.lane import Lane
from rollbook.projections.policy import Policy
from rollbook.projections.ports import AppendConflict, LogUnavailable, Proxy
from rollbook.projections.projector import Projector
from rollbook.projections.resources import Resources
from rollbook.projections.roster import Roster

HOUSEKEEPING_SECONDS: Final = 1.0
MOST_QUARANTINED_AT_ONCE: Final = 100


class LeadershipLost(RollbookError):
    """This process does not lead the fleet any more."""


class Controller:
    """Runs a fleet. Build it, `run` it in a task, cancel that task to stop it cleanly."""

    def __init__(
        self,
        policy: Policy,
        resources: Resources,
        proxies: Sequence[Proxy],
    ) -> None:
        self.policy = policy
        self.projector: Projector | None = None
        """None until leadership is taken and a snapshot is restored or passed over."""
        self.lanes: dict[str, Lane] = {}
        self.started = asyncio.Event()
        """Set when the fold has caught up and the lanes run."""
        self._resources = resources
        self._log = resources.log
        self._leadership = resources.leadership
        self._clock = resources.clock
        self._owner = resources.owner
        self._tell = resources.tell
        self._proxies = proxies
        self._codec = Codec(policy.fleet)

    async def run(self) -> None:
        """Lead until cancelled. Raises what ended it: `AlreadyLed`, `LeadershipLost`, `Deposed`, `HistoryHole`, ...

        Cancelled, it stops the lanes, takes a snapshot and gives leadership back before it returns.
        """
        epoch = await self._leadership.acquire(self._owner)
        try:
            self._tell("leader.taken", owner=self._owner, epoch=epoch)
            projector = self.projector = Projector(self._log, self._codec, self._clock, await self._restore())
            await self._lead(projector, epoch)
        except asyncio.CancelledError:
            await self._snapshot()
            raise
        finally:
            await self._leadership.release()

    async def _lead(self, projector: Projector, epoch: int) -> None:
        roster = lambda: projector.state.roster  # noqa: E731 - always the state's present one
        admission = Admission(self.policy, roster, self._resources.provider, self._resources.readiness)
        folding = asyncio.create_task(projector.run(), name="projector")
        tasks = [folding, asyncio.create_task(self._deposed(), name="leadership")]
        try:
            await self._first(asyncio.create_task(projector.caught_up(), name="catch-up"), tasks)
            for proxy in self._proxies:
                served = self.policy.proxies[proxy.name]
                lane = self.lanes[proxy.name] = Lane(
                    proxy, served, self.policy, projector=projector, admission=admission, resources=self._resources
                )
                projector.listen(lane.mark)
                tasks.append(asyncio.create_task(lane.run(self._owner, epoch), name=f"lane {proxy.name}"))
            tasks.append(asyncio.create_task(self._keep_house(projector), name="housekeeping"))
            self.started.set()
            self._tell("controller.started", sequence=projector.state.sequence, proxies=list(self.lanes))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # Lanes first: nothing may act on a fold that has stopped.
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _first(self, wanted: asyncio.Task[None], tasks: list[asyncio.Task[None]]) -> None:
        """Wait for `wanted`, unless one of `tasks` fails before."""
        try:
            await asyncio.wait([wanted, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            await wanted
        finally:
            wanted.cancel()

    async def _deposed(self) -> None:
        reason = await self._leadership.lost()
        msg = f"leadership of fleet {self.policy.fleet!r} is lost: {reason}; this controller stands down"
        raise LeadershipLost(msg)

    # -------------------------------------------------------------- snapshots

    async def _restore(self) -> State | None:
        """The newest snapshot's state that the log confirms; None to fold from the beginning."""
        ends = await self._log.state()
        async for snapshot in self._resources.snapshots.newest_first():
            if snapshot.identity != ends.identity or snapshot.sequence > ends.last_sequence:
                self._tell("snapshot.of_another_log", sequence=snapshot.sequence, last=ends.last_sequence)
                continue
            stored = await self._log.get(snapshot.sequence)
            state = restore(snapshot) if stored is not None and message_id(stored) == snapshot.fact_id else None
            if state is None:
                self._tell("snapshot.refused", sequence=snapshot.sequence)
                continue
            self._tell("snapshot.restored", sequence=snapshot.sequence)
            return state
        return None

    async def _snapshot(self) -> None:
        """Keep what has been folded. Best effort: the log is the truth, a missing snapshot costs only time."""
        projector = self.projector
        if projector is None or projector.state.sequence == 0:
            return
        try:
            async with asyncio.timeout(self.policy.reconcile.call_deadline):
                ends = await self._log.state()
                stored = await self._log.get(projector.state.sequence)
                if stored is not None:
                    await self._resources.snapshots.save(projector.state.snapshot(ends.identity, message_id(stored)))
                    self._tell("snapshot.saved", sequence=projector.state.sequence)
        except (TimeoutError, RollbookError) as exc:
            self._tell("snapshot.not_saved", reason=str(exc))

    # -------------------------------------------------------------- housekeeping

    async def _keep_house(self, projector: Projector) -> None:
        while True:
            try:
                await self._quarantine(projector)
                await self._expire(projector)
            except LogUnavailable as exc:
                self._tell("log.unavailable", reason=str(exc))
            await self._clock.sleep(HOUSEKEEPING_SECONDS)

    async def _quarantine(self, projector: Projector) -> None:
        """Write down what could not be read [I9]: where it is and why, once per sequence."""
        waiting = list(projector.state.unreadable.items())[:MOST_QUARANTINED_AT_ONCE]
        if not waiting:
            return
        drafts = [
            self._codec.draft(
                MessageQuarantined(
                    sequence=sequence, subject=found.subject[:300], reason=found.reason, detail=found.detail[:300]
                ),
                id=quarantine_id(self.policy.fleet, sequence),
                time=rfc3339(self._clock.now()),
                publisher=self._owner,
            )
            for sequence, found in waiting
        ]
        sequences = await self._log.append(drafts)
        for sequence, found in waiting:
            self._tell("message.quarantined", sequence=sequence, subject=found.subject, reason=found.reason)
        await projector.passed(max(sequences))

    async def _expire(self, projector: Projector) -> None:
        """End suspensions whose time is over. The fold has no clock, so it is told by a fact."""
        now = self._clock.now()
        for name in _expired(projector.state.roster, now):
            subject = worker_subject(self.policy.fleet, name)
            last = await self._log.last(subject)
            if last is None:
                continue
            await projector.passed(last.sequence)
            if name not in _expired(projector.state.roster, now, only=name):
                continue
            incarnation = projector.state.roster.workers[name].incarnation
            fact = WorkerResumed(worker=name, incarnation=incarnation, seen=last.sequence, reason="its time was over")
            draft = self._codec.draft(fact, id=self._resources.ids.new(), time=rfc3339(now), publisher=self._owner)
            try:
                [sequence] = await self._log.append([draft], expect={subject: last.sequence})
            except AppendConflict:
                continue
            self._tell("suspension.expired", worker=name, incarnation=incarnation)
            await projector.passed(sequence)


def quarantine_id(fleet: str, sequence: int) -> str:
    """The id of the one MessageQuarantined about `sequence`, whoever writes it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"rollbook://{fleet}/quarantine/{sequence}"))


def _expired(roster: Roster, now: float, only: str | None = None) -> list[str]:
    found: list[str] = []
    for name in roster.workers if only is None else [only]:
        worker = roster.workers.get(name)
        until = None if worker is None or worker.suspension is None else worker.suspension.until
        if until is None:
            continue
        try:
            if parse_rfc3339(until) <= now:
                found.append(name)
        except ValueError:
            continue
    return found
