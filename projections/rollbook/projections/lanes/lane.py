"""One lane per proxy: make the proxy list what it should, level-triggered, one key at a time.

A request is a key (a worker's name), never a fact. A pass lists the proxy now, reads the roster now, and starts the
next step of every key that asks for one. A key is *in flight* from its step's start until the fold has passed the
outcome, and is not planned meanwhile. A lane knows nothing of other lanes [I10].
"""

from __future__ import annotations

import asyncio

from rollbook.projections.deciding import plan
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.deciding.ghosts import Ghosts
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.settled import Planned, Settled
from rollbook.projections.ending import end, in_turn
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.lanes.agenda import Agenda
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.lanes.flights import Flights
from rollbook.projections.lanes.guard import Guard
from rollbook.projections.lanes.listing import Seen, reader_of
from rollbook.projections.lanes.moves import Moves
from rollbook.projections.lanes.notes import Notes
from rollbook.projections.lanes.outcomes import Outcome, Recorder
from rollbook.projections.lanes.patience import Patience
from rollbook.projections.lanes.retries import Retries
from rollbook.projections.lanes.rollcall import RollCall
from rollbook.projections.lanes.steps import Steps
from rollbook.projections.lanes.strangers import Strangers
from rollbook.projections.log.authority import Authority
from rollbook.projections.log.projector import Marks, Projector
from rollbook.projections.log.writer import FencedWriter
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Proxy, ProxyUnavailable
from rollbook.projections.resources import Resources


class Lane:
    """Reconciles one proxy. `run` is its life; `mark` wakes it."""

    def __init__(
        self,
        proxy: Proxy,
        served: ProxyPolicy,
        policy: Policy,
        *,
        projector: Projector,
        admission: Admission,
        roll_call: RollCall,
        resources: Resources,
    ) -> None:
        self.name = served.name
        self.held: dict[str, Held] = {}
        """Workers that belong here and are kept out by an admission gate, as last asked."""
        self.passes = 0
        """Full passes whose steps have been started."""
        self.refusals = 0
        """Passes that ended because the proxy could not be listed."""
        self._served = served
        self._proxy = proxy
        self._capabilities = proxy.capabilities
        self._policy = policy
        self._projector = projector
        self._clock = resources.clock
        self._tell = resources.tell
        self._retries = Retries(policy.reconcile, resources.clock, resources.rng)
        self._writer = FencedWriter(self.name, policy.fleet, projector, resources)
        self._notes = Notes(self.name, projector, self._writer, resources.tell)
        self._guard = Guard(
            policy, served, projector=projector, admission=admission, roll_call=roll_call, clock=resources.clock
        )
        self._desk: Desk = Desk(
            proxy,
            policy,
            projector=projector,
            reader=reader_of(proxy, resources.clock, policy.call_seconds(served), lambda: self._desk.record),
            recorder=Recorder(self.name, projector, self._writer, self._retries, resources.tell),
            notes=self._notes,
            admission=admission,
            authority=Authority(resources.leadership, policy.fleet),
        )
        steps = Steps(self._desk, self._guard)
        tick = self._desk.reader.tick
        self._flights = Flights(steps, self._retries, tick, landed=self._note, failed=self._break)
        others = Retries(policy.reconcile, resources.clock, resources.rng)
        self._strangers = Strangers(self._desk, projector, self._writer, others, resources.tell, self._break)
        self._settled = Settled(policy, served, proxy.capabilities, self._guard.pool)
        self._ghosts = Ghosts()
        self._force: str | None = None
        self._patience = Patience(self._desk, self._retries, resources.clock)
        self._agenda = Agenda(self._retries, self._patience, resources.clock, policy.reconcile.resync)
        self._passing = False
        self._outages = 0
        self._moves = Moves(self._desk, self._look_again, self._break)
        self._broken: asyncio.Future[None] | None = None

    # -------------------------------------------------------------- being woken and looked at

    def mark(self, marks: Marks) -> None:
        """These workers' standing may have changed, or what the log says of their registrations."""
        self._settled.forget(marks.told.get(self.name, ()))
        self._settled.forget(marks.workers)
        if marks.everything:
            self._settled.forget_all()
            self._agenda.add_everybody(hurry=True)
        if marks.workers:
            self._agenda.add(marks.workers)
            # Whoever waits for a partner may have found one among them.
            self._agenda.add(name for name, held in self.held.items() if held.gate is Gate.PAIR_READY)

    def force_once(self, by: str) -> None:
        """Let the next full pass exceed the removal budget, on the word of `by`; and let it come now."""
        self._force = by
        self._agenda.add_everybody(hurry=True)

    @property
    def withheld(self) -> dict[str, str]:
        """Workers that are listed, do not belong here, and stay for now, with the reason [I12]."""
        return self._guard.withheld

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, dirty or waiting to be retried."""
        return not (self.busy or self._retries)

    @property
    def busy(self) -> bool:
        """Whether anything is in flight or looked at now, or is to be; what is to be retried later is not."""
        return bool(self._passing or self._flights or self._agenda.waits or self._strangers.busy)

    @property
    def queue(self) -> tuple[int, int, int]:
        """How many workers are dirty, in flight, and waiting to be retried: for those who watch."""
        return len(self._agenda), len(self._flights), len(self._retries)

    # -------------------------------------------------------------- the loop

    async def run(self, owner: str, epoch: int) -> None:
        """Take the proxy over and reconcile it for ever. Raises `StandsDown` when this process leads no more."""
        self._broken = asyncio.get_running_loop().create_future()
        loop: asyncio.Task[None] | None = None
        try:
            await self._projector.passed(await self._writer.take_over(owner, epoch))
            # By then a call that slipped from the predecessor has landed [I7].
            self._agenda.heal_after(self._policy.call_seconds(self._served))
            self._notes.begin()
            self._guard.begin()
            loop = asyncio.create_task(self._loop())
            await asyncio.wait([loop, self._broken], return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            await loop
        finally:
            # What fails while all ends is no news any more.
            broken, self._broken = self._broken, None
            if broken.done():
                broken.exception()
            # Whatever is left running here would act when this process leads again, on what was true before [I7].
            await in_turn(
                lambda: end(*([] if loop is None else [loop])),
                self._flights.close,
                self._moves.close,
                self._strangers.close,
                self._desk.reader.close,
                self._writer.close,
            )

    async def _loop(self) -> None:
        while True:
            await self._agenda.due()
            try:
                await self._pass()
            except ProxyUnavailable as exc:
                self._force = None  # of a pass that is over: who asked for it is told that it did not even list
                await self._notes.unreachable(str(exc))
                self._agenda.add_everybody()
                self.refusals += 1
                # One probe for the whole proxy, so it need not grow rare: what the proxy lost meanwhile is repaired
                # within `resync` of its return, as ever.
                await self._clock.sleep(min(self._retries.pause(self._outages), self._policy.reconcile.resync))
                self._outages += 1

    async def _pass(self) -> None:
        self._passing = True
        try:
            await self._pass_now()
        finally:
            self._passing = False

    async def _pass_now(self) -> None:
        began = self._clock.monotonic()
        keys, full, news = self._agenda.take()
        try:
            seen = await self._desk.reader.fresh()
        except ProxyUnavailable:
            self._agenda.add(keys)
            raise
        self._outages = 0
        if not self._desk.blind:
            await self._notes.reachable(seen.listing.version)
        if full:
            self._agenda.looked_at_everybody(began)
        await self._act(seen, keys, full=full, news=news)

    async def _act(self, seen: Seen, keys: dict[str, None], *, full: bool, news: bool) -> None:
        state = self._projector.state
        ghosts = self._ghosts.now(self._desk.record, self._clock.monotonic())
        leaving = self._desk.outdated()
        if not full:
            keys |= dict.fromkeys(name for name in leaving if name not in self._retries)
        planned = self._settled.plan(state, seen.listing, None if full else keys, self._moves.to, ghosts, leaving)
        made, observed = planned.plan, planned.observed
        self._guard.listed(planned.sizes)
        needing = {*self._flights.names, *(action.worker for action in made.actions)}
        self._retries.forgive(None if full else keys, needing)
        if full:
            await self._look_at_all(seen, planned)
        if (report := self._guard.report()) is not None:
            await self._notes.withheld(report)
        if state.roster.holding(self.name) is None:
            self._begin(seen, observed, made, keys, news=news)
        else:
            self._patience.rest()
        self.passes += full

    async def _look_at_all(self, seen: Seen, planned: Planned) -> None:
        """What only a full pass can tell."""
        made, observed = planned.plan, planned.observed
        wanting = {action.worker for action in made.actions if isinstance(action, plan.Add)}
        self.held = {name: held for name, held in self.held.items() if name in wanting}
        self._flights.forget_before(seen.began)
        self._desk.urls.forget_before(seen.began)
        by, self._force = self._force, None
        removals = [action for action in made.actions if isinstance(action, plan.Remove)]
        self._guard.look(removals, by)
        await self._notes.drift(made, observed, self._flights.busy)
        if self._served.exclusive and self._capabilities.remove:
            self._strangers.look(observed.strangers, seen)
        self._moves.look(planned.places)

    def _begin(self, seen: Seen, observed: Observed, made: plan.Plan, keys: dict[str, None], *, news: bool) -> None:
        """Start the next step of every key that asks for one. `news`: there may be some for everybody."""
        flights = self._flights
        # Marked while a step of theirs is under way; those that are started below are looked at as they are now. A look
        # that only comes round marks nobody: after a step that takes longer than that, no pause would ever be kept.
        flights.again([name for name in flights.names if news or name in keys])
        awake = [one for one in made.actions if not (isinstance(one, plan.Remove) and self._guard.rests(one))]
        outdated = [one.worker for one in awake if one.worker not in flights and flights.outdate(seen, one.worker)]
        self._agenda.add(name for name in outdated if self._may_begin(name, keys))
        # Of those that can begin: one that is chosen and does not would be waited for, for ever.
        for action in self._patience.chosen([one for one in awake if one.worker not in outdated], busy=bool(flights)):
            if action.worker not in flights and self._may_begin(action.worker, keys):
                flights.start(action, seen, observed)
        flights.again(plan.several(made.actions))

    def _may_begin(self, name: str, keys: dict[str, None]) -> bool:
        """Whether it need not wait to be tried again."""
        return name in keys or name not in self._retries or self._patience.away

    # -------------------------------------------------------------- what comes of it

    def _look_again(self, name: str) -> None:
        """Something has come to light about `name`."""
        self._agenda.add([name])

    def _break(self, exc: BaseException) -> None:
        """End the lane with what one of its tasks failed with."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(exc)

    def _note(self, name: str, outcome: Outcome) -> None:
        """A step of `name` has ended."""
        self._moves.forget(name)
        if outcome.held is None:
            self.held.pop(name, None)
        else:
            if self.held.get(name) != outcome.held:
                self._tell(
                    "proxy.held", proxy=self.name, worker=name, gate=outcome.held.gate, reason=outcome.held.reason
                )
            self.held[name] = outcome.held
        if not outcome.retry:
            self._retries.succeeded(name)
        elif not outcome.scheduled:
            self._retries.failed(name)
        if self._flights.wants_another_look(name) or outcome.follow:
            self._agenda.add([name])
        if self._patience.ended():
            self._agenda.add_everybody()
        self._agenda.reconsider()
