"""The controller: one projector for as long as the process lives, and one lane per proxy for as long as it leads.

The order of its life: restore the newest snapshot that the log confirms, fold up to the log's end, and stand by with a
warm roster until the fleet is free; take the lease, fold what came meanwhile, and let the lanes act. On the way out, in
reverse. Who loses the lease stops acting at once and stands by again, so that neither a short outage of NATS nor a
controller that was stopped for a while needs anybody. Every other failure ends all of it: nothing dies in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from rollbook.events import Codec
from rollbook.projections.ending import apart, end
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.lanes.lane import Lane
from rollbook.projections.lanes.rollcall import RollCall
from rollbook.projections.leading.housekeeping import Housekeeping
from rollbook.projections.log.authority import LeadershipLost, StandsDown
from rollbook.projections.log.catchup import newest_state
from rollbook.projections.log.keeper import Keeper
from rollbook.projections.log.projector import Projector, Witness
from rollbook.projections.log.relisting import relist, whole_part
from rollbook.projections.policy import Policy
from rollbook.projections.ports import AlreadyLed, LogUnavailable, Proxy
from rollbook.projections.resources import Resources
from rollbook.projections.state.fold import State

RETRY_SECONDS: Final = 0.5
"""Between two tries to lead when there was no answer, and after standing down."""
LAST_SNAPSHOT_SECONDS: Final = 5.0
"""For the snapshot at a clean stop: whoever asked for the stop, and a standby, wait for it."""


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

    @property
    def withheld(self) -> dict[str, dict[str, str]]:
        """By proxy and worker: why an entry that does not belong there stays for now [I12]."""
        return {name: lane.withheld for name, lane in self.lanes.items()}


Companion = Callable[[Leading], Awaitable[None]]
"""Runs beside the lanes: from the moment they act until leadership ends, when it is cancelled. What it raises ends the
controller; it may also return, which ends nothing."""


class Controller:
    """Runs a fleet, or stands by. Build it, `run` it, `stop` it.

    With `standby=False` it leads at once or not at all: `run` raises `AlreadyLed` instead of waiting, and `StandsDown`
    when leadership is lost. `witnesses` see every message that is folded, from the snapshot on. With `relist=True` it
    passes over snapshots and what is missing from the log, and begins with a listing of the provider's.
    """

    def __init__(
        self,
        policy: Policy,
        resources: Resources,
        proxies: Sequence[Proxy],
        companions: Sequence[Companion] = (),
        *,
        standby: bool = True,
        witnesses: Sequence[Witness] = (),
        relist: bool = False,
    ) -> None:
        self.policy = policy
        self.projector: Projector | None = None
        """None until a snapshot is restored or passed over; then the warm roster, whether this process leads or not."""
        self.leading: Leading | None = None
        """None while it stands by."""
        self.led_by: str | None = None
        """Who leads, while this process stands by and as far as it was told."""
        self.started = asyncio.Event()
        """Set while the lanes run."""
        self._resources = resources
        self._log = resources.log
        self._leadership = resources.leadership
        self._clock = resources.clock
        self._owner = resources.owner
        self._tell = resources.tell
        self._proxies = proxies
        self._companions = companions
        self._standby = standby
        self._witnesses = witnesses
        self._relist = relist
        self._stopping = asyncio.Event()
        self._keeper: Keeper

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """By the proxy's name; empty while it stands by."""
        return {} if self.leading is None else self.leading.lanes

    def stop(self) -> None:
        """Let `run` end cleanly: lanes first, then a snapshot, then leadership."""
        self._stopping.set()

    async def run(self) -> None:
        """Lead or stand by until `stop` (or cancelled). Raises what ended it: `HistoryHole`, `LogRewound`, ...

        However it ends, the lanes are stopped before leadership is given back.
        """
        stopping = asyncio.create_task(self._stop_asked(), name="stop")
        beginning = asyncio.create_task(self._begin(), name="beginning")
        try:
            await asyncio.wait([beginning, stopping], return_when=asyncio.FIRST_COMPLETED)
            if beginning.done():
                await self._go_on(beginning.result(), stopping)
        finally:
            await end(beginning, stopping)

    async def _go_on(self, restored: State | None, stopping: asyncio.Task[None]) -> None:
        """Fold, and lead or stand by, until `stopping` is done."""
        projector = Projector(self._log, Codec(self.policy.fleet), self._clock, restored)
        for witness in self._witnesses:
            projector.witness(witness)
        self.projector = projector
        self._keeper = Keeper(projector, self._resources, self.policy.snapshots, projector.state.sequence)
        folding = asyncio.create_task(projector.run(), name="projector")
        living = asyncio.create_task(self._live(projector), name="leadership")
        try:
            await asyncio.wait([folding, stopping, living], return_when=asyncio.FIRST_COMPLETED)
            for task in (folding, living):
                if task.done():
                    task.result()
        finally:
            # Nothing may act on a fold that has stopped, so the fold is the last to go.
            try:
                await end(living)
            finally:
                await end(folding)

    async def _begin(self) -> State | None:
        """What to fold on from."""
        if self._relist:
            return await whole_part(self._log, self._tell)
        return await newest_state(self._log, self._resources.snapshots, self._tell)

    async def _stop_asked(self) -> None:
        await self._stopping.wait()

    async def _live(self, projector: Projector) -> None:
        """Stand by and lead in turns, for ever."""
        await projector.caught_up()
        while True:
            try:
                await self._lead(projector, await self._acquire())
            except StandsDown as exc:
                if not self._standby:
                    raise
                self._tell("leader.lost", owner=self._owner, reason=str(exc))
            finally:
                if await apart(self._leadership.release()):
                    self._tell("leader.released", owner=self._owner)
            await self._clock.sleep(RETRY_SECONDS)

    # -------------------------------------------------------------- standing by

    async def _acquire(self) -> int:
        """Wait until the fleet is free, and take it."""
        while True:
            try:
                acquired = await self._leadership.acquire(self._owner)
            except AlreadyLed as exc:
                if not self._standby:
                    raise
                if self.led_by != exc.owner:
                    self._tell("controller.standing_by", led_by=exc.owner, reason=str(exc))
                self.led_by = exc.owner
                await self._leadership.free()
            except LogUnavailable as exc:
                if not self._standby:
                    raise
                self._tell("leader.unavailable", reason=str(exc))
                await self._clock.sleep(RETRY_SECONDS)
            else:
                self.led_by = None
                return acquired

    # -------------------------------------------------------------- leading

    async def _lead(self, projector: Projector, acquired: int) -> None:
        """Let the lanes act until leadership is lost. Raises `StandsDown`, or what failed first."""
        lost = asyncio.create_task(self._lost(), name="lease")
        acting = asyncio.create_task(self._act(projector, acquired), name="acting")
        try:
            await asyncio.wait([lost, acting], return_when=asyncio.FIRST_COMPLETED)
            await end(acting)
            for task in (acting, lost):
                if task.done() and not task.cancelled():
                    task.result()
        except asyncio.CancelledError:
            await end(acting)
            await apart(self._last_snapshot())
            raise
        finally:
            await end(acting, lost)

    async def _lost(self) -> None:
        raise LeadershipLost(self.policy.fleet, await self._leadership.lost())

    async def _act(self, projector: Projector, acquired: int) -> None:
        await projector.caught_up()
        epoch = self._outranking(projector, acquired)
        self._tell("leader.taken", owner=self._owner, epoch=epoch)
        if self._relist:
            await relist(self.policy, projector, self._resources, self._keeper)
            self._relist = False
        roster = lambda: projector.state.roster  # noqa: E731 - always the state's present one
        admission = Admission(self.policy, roster, self._resources.provider, self._resources.readiness)
        roll_call = RollCall(admission, roster, self._clock, self._resources.rng)
        lanes = {
            proxy.name: Lane(
                proxy,
                self.policy.proxies[proxy.name],
                self.policy,
                projector=projector,
                admission=admission,
                roll_call=roll_call,
                resources=self._resources,
            )
            for proxy in self._proxies
        }
        leading = Leading(
            policy=self.policy,
            projector=projector,
            lanes=lanes,
            admission=admission,
            epoch=epoch,
            owner=self._owner,
            resources=self._resources,
            proxies=self._proxies,
        )
        forget = [projector.listen(lane.mark) for lane in lanes.values()]
        acting = [
            asyncio.create_task(lane.run(self._owner, epoch), name=f"lane {name}") for name, lane in lanes.items()
        ]
        others = [
            asyncio.create_task(Housekeeping(self.policy.fleet, projector, self._resources).run(), name="housekeeping"),
            asyncio.create_task(self._keeper.run(), name="snapshots"),
            *(asyncio.create_task(_accompany(companion, leading)) for companion in self._companions),
        ]
        self.leading = leading
        self.started.set()
        self._tell("controller.started", sequence=projector.state.sequence, proxies=list(lanes))
        try:
            done, _ = await asyncio.wait([*acting, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.started.clear()
            self.leading = None
            for each in forget:
                each()
            await end(*acting, *others)

    def _outranking(self, projector: Projector, acquired: int) -> int:
        """The epoch to write under: higher than every one in the log.

        It is, as long as the leases are kept where they were. Whoever deletes them (or restores an older copy) lets
        them count from the beginning, and nobody could take a proxy over any more.
        """
        highest = max((record.epoch for record in projector.state.ledger.proxies.values()), default=0)
        if highest < acquired:
            return acquired
        self._tell("leader.outranked", owner=self._owner, epoch=acquired, highest=highest)
        return highest + 1

    async def _last_snapshot(self) -> None:
        try:
            async with asyncio.timeout(LAST_SNAPSHOT_SECONDS):
                await self._keeper.take()
        except TimeoutError:
            self._tell("snapshot.not_saved", reason=f"it took more than {LAST_SNAPSHOT_SECONDS:g} s")


async def _accompany(companion: Companion, leading: Leading) -> None:
    await companion(leading)
    await asyncio.Event().wait()
