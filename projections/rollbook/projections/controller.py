"""The controller: one projector and one lane per proxy, for as long as this process leads the fleet.

The order of its life: take leadership, restore the newest snapshot that the log confirms, catch up, then let the lanes
act; on the way out, in reverse. A failure anywhere ends all of it: nothing dies in silence.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from rollbook.events import Codec, MessageQuarantined, RollbookError, WorkerResumed
from rollbook.events.subjects import worker_subject
from rollbook.events.times import parse_rfc3339, rfc3339
from rollbook.projections.admission import Admission
from rollbook.projections.catchup import newest_state
from rollbook.projections.ending import end
from rollbook.projections.fold import message_id
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


class Leading(msgspec.Struct, frozen=True, kw_only=True):
    """What there is while this process leads: for those who serve, show or command it meanwhile."""

    policy: Policy
    projector: Projector
    lanes: Mapping[str, Lane]
    """By the proxy's name."""
    admission: Admission
    epoch: int
    owner: str
    resources: Resources
    proxies: Sequence[Proxy]


Companion = Callable[[Leading], Awaitable[None]]
"""Runs beside the lanes: from the moment they act until leadership ends, when it is cancelled. What it raises ends the
controller; it may also return, which ends nothing."""


class Controller:
    """Runs a fleet. Build it, `run` it, `stop` it."""

    def __init__(
        self,
        policy: Policy,
        resources: Resources,
        proxies: Sequence[Proxy],
        companions: Sequence[Companion] = (),
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
        self._companions = companions
        self._codec = Codec(policy.fleet)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let `run` end cleanly: lanes first, then a snapshot, then leadership."""
        self._stopping.set()

    async def run(self) -> None:
        """Lead until `stop` (or cancelled). Raises what ended it: `AlreadyLed`, `LeadershipLost`, `Deposed`, ...

        However it ends, the lanes are stopped before leadership is given back.
        """
        epoch = await self._leadership.acquire(self._owner)
        try:
            self._tell("leader.taken", owner=self._owner, epoch=epoch)
            restored = await newest_state(self._log, self._resources.snapshots, self._tell)
            projector = self.projector = Projector(self._log, self._codec, self._clock, restored)
            await self._lead(projector, epoch)
            await self._snapshot(projector)
        except asyncio.CancelledError:
            if self.projector is not None:
                await self._snapshot(self.projector)
            raise
        finally:
            await self._leadership.release()
            self._tell("leader.released", owner=self._owner)

    async def _lead(self, projector: Projector, epoch: int) -> None:
        roster = lambda: projector.state.roster  # noqa: E731 - always the state's present one
        admission = Admission(self.policy, roster, self._resources.provider, self._resources.readiness)
        folding = asyncio.create_task(projector.run(), name="projector")
        stopping = asyncio.create_task(self._stop_asked(), name="stop")
        tasks = [folding, asyncio.create_task(self._deposed(), name="leadership"), stopping]
        try:
            if not await self._caught_up(projector, tasks):
                return
            for proxy in self._proxies:
                served = self.policy.proxies[proxy.name]
                lane = self.lanes[proxy.name] = Lane(
                    proxy, served, self.policy, projector=projector, admission=admission, resources=self._resources
                )
                projector.listen(lane.mark)
                tasks.append(asyncio.create_task(lane.run(self._owner, epoch), name=f"lane {proxy.name}"))
            tasks.append(asyncio.create_task(self._keep_house(projector), name="housekeeping"))
            leading = Leading(
                policy=self.policy,
                projector=projector,
                lanes=self.lanes,
                admission=admission,
                epoch=epoch,
                owner=self._owner,
                resources=self._resources,
                proxies=self._proxies,
            )
            tasks += [asyncio.create_task(_accompany(companion, leading)) for companion in self._companions]
            self.started.set()
            self._tell("controller.started", sequence=projector.state.sequence, proxies=list(self.lanes))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # Lanes first: nothing may act on a fold that has stopped.
            for task in reversed(tasks):
                await end(task)

    async def _caught_up(self, projector: Projector, tasks: list[asyncio.Task[None]]) -> bool:
        """Wait until the fold is at the log's end; False if `stop` came first. Raises what failed first."""
        caught_up = asyncio.create_task(projector.caught_up(), name="catch-up")
        try:
            await asyncio.wait([caught_up, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
                    return False
            await caught_up
        finally:
            await end(caught_up)
        return True

    async def _stop_asked(self) -> None:
        await self._stopping.wait()

    async def _deposed(self) -> None:
        reason = await self._leadership.lost()
        msg = f"leadership of fleet {self.policy.fleet!r} is lost: {reason}; this controller stands down"
        raise LeadershipLost(msg)

    # -------------------------------------------------------------- snapshots

    async def _snapshot(self, projector: Projector) -> None:
        """Keep what has been folded. Best effort: the log is the truth, a missing snapshot costs only time."""
        if projector.state.sequence == 0:
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


async def _accompany(companion: Companion, leading: Leading) -> None:
    await companion(leading)
    await asyncio.Event().wait()


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
