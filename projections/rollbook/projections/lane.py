"""One lane per proxy: make the proxy list what it should, level-triggered, one key at a time.

A request is a key (a worker's name), never a fact. A pass lists the proxy now, reads the roster now, and starts the
next step of every key that asks for one. A key is *in flight* from its step's start until the fold has passed the
outcome, and is not planned meanwhile. A lane knows nothing of other lanes [I10].
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rollbook.projections import plan
from rollbook.projections.admission import Admission
from rollbook.projections.authority import Authority
from rollbook.projections.desk import Desk
from rollbook.projections.ending import end
from rollbook.projections.gates import Held
from rollbook.projections.ghosts import Ghosts
from rollbook.projections.guard import Guard
from rollbook.projections.listing import Believer, Reader, Seen
from rollbook.projections.notes import Notes
from rollbook.projections.observed import Observed
from rollbook.projections.outcomes import Outcome, Recorder
from rollbook.projections.patience import Patience
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Proxy, ProxyUnavailable
from rollbook.projections.projector import Marks, Projector
from rollbook.projections.resources import Resources
from rollbook.projections.retries import Retries
from rollbook.projections.settled import Planned, Settled
from rollbook.projections.steps import Steps
from rollbook.projections.strangers import Strangers
from rollbook.projections.writer import FencedWriter


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
        self._admission = admission
        self._policy = policy
        self._paces = policy.reconcile
        self._projector = projector
        self._clock = resources.clock
        self._tell = resources.tell
        self._retries = Retries(policy.reconcile, resources.clock, resources.rng)
        self._writer = FencedWriter(self.name, policy.fleet, projector, resources)
        self._notes = Notes(self.name, projector, self._writer, resources.tell)
        self._guard = Guard(policy, served, projector=projector, admission=admission, clock=resources.clock)
        self._desk = Desk(
            proxy,
            policy,
            projector=projector,
            reader=self._reader_of(proxy),
            recorder=Recorder(self.name, projector, self._writer, self._retries, resources.tell),
            notes=self._notes,
            admission=admission,
            authority=Authority(resources.leadership, policy.fleet),
        )
        self._steps = Steps(self._desk, self._guard)
        others = Retries(policy.reconcile, resources.clock, resources.rng)
        self._strangers = Strangers(self._desk, projector, self._writer, others, resources.tell)
        self._settled = Settled(policy, served, proxy.capabilities, self._guard.pool)
        self._ghosts = Ghosts()
        self._force: str | None = None
        self._patience = Patience(self._desk, self._retries, resources.clock)
        self._wake = asyncio.Event()
        self._dirty: dict[str, None] = {}
        self._everything = True
        self._passing = False
        self._resync_at = 0.0
        self._heal_at = 0.0
        """When a call that slipped from the predecessor has landed: the proxy is read back once more then [I7]."""
        self._outages = 0
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._moved: dict[str, str] = {}
        """Listed workers that were found at another URL; forgotten after the next step of their key."""
        self._looking: asyncio.Task[None] | None = None
        self._finished: dict[str, int] = {}
        self._broken: asyncio.Future[None] | None = None

    def _reader_of(self, proxy: Proxy) -> Reader:
        seconds = self._policy.call_seconds(self._served)
        if proxy.capabilities.list:
            return Reader(proxy, self._clock, seconds)
        return Believer(proxy, self._clock, seconds, lambda: self._desk.record)

    # -------------------------------------------------------------- being woken and looked at

    def mark(self, marks: Marks) -> None:
        """These workers' standing may have changed, or what the log says of their registrations."""
        self._settled.forget(marks.told.get(self.name, ()))
        self._settled.forget(marks.workers)
        if marks.everything:
            self._settled.forget_all()
            self._everything = True
            self._retries.hurry()
        if marks.everything or marks.workers:
            self._dirty.update(marks.workers)
            self._wake.set()

    def force_once(self, by: str) -> None:
        """Let the next full pass exceed the removal budget, on the word of `by`; and let it come now."""
        self._force = by
        self._everything = True
        self._retries.hurry()
        self._wake.set()

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
        return bool(self._passing or self._in_flight or self._dirty or self._everything or self._strangers.busy)

    @property
    def queue(self) -> tuple[int, int, int]:
        """How many workers are dirty, in flight, and waiting to be retried: for those who watch."""
        return len(self._dirty), len(self._in_flight), len(self._retries)

    # -------------------------------------------------------------- the loop

    async def run(self, owner: str, epoch: int) -> None:
        """Take the proxy over and reconcile it for ever. Raises `StandsDown` when this process leads no more."""
        self._broken = asyncio.get_running_loop().create_future()
        loop: asyncio.Task[None] | None = None
        try:
            await self._projector.passed(await self._writer.take_over(owner, epoch))
            self._heal_at = self._clock.monotonic() + self._policy.call_seconds(self._served)
            self._notes.begin()
            self._guard.begin()
            self._strangers.broken = self._broken
            loop = asyncio.create_task(self._loop())
            await asyncio.wait([loop, self._broken], return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            await loop
        finally:
            await self._stop([task for task in (*self._in_flight.values(), loop, self._looking) if task is not None])

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        await end(*tasks)
        await self._strangers.close()
        await self._desk.reader.close()
        await self._writer.close()

    async def _loop(self) -> None:
        while True:
            await self._work_or_time()
            try:
                await self._pass()
            except ProxyUnavailable as exc:
                await self._notes.unreachable(str(exc))
                self._everything = True
                self.refusals += 1
                # One probe for the whole proxy, so it need not grow rare: what the proxy lost meanwhile is repaired
                # within `resync` of its return, as ever.
                await self._clock.sleep(min(self._retries.pause(self._outages), self._paces.resync))
                self._outages += 1

    async def _work_or_time(self) -> None:
        """Wait until a key is dirty, a retry is due, or the read-back is."""
        while not self._everything and not self._dirty:
            due = self._retries.next_due(min(self._resync_at, self._patience.next_at))
            seconds = due - self._clock.monotonic()
            if seconds <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _pass(self) -> None:
        self._passing = True
        try:
            await self._pass_now()
        finally:
            self._passing = False

    async def _pass_now(self) -> None:
        now = self._clock.monotonic()
        full = self._everything or now >= min(self._resync_at, self._patience.next_at)
        self._dirty.update(dict.fromkeys(self._retries.take_due()))
        keys, self._dirty, self._everything = self._dirty, {}, False
        try:
            seen = await self._desk.reader.fresh()
        except ProxyUnavailable:
            self._dirty.update(keys)
            raise
        self._outages = 0
        if not self._desk.blind:
            await self._notes.reachable(seen.listing.version)
        if full:
            self._resync_at = self._clock.monotonic() + self._paces.resync
            if now < self._heal_at:
                self._resync_at = min(self._resync_at, self._heal_at)
        await self._act(seen, keys, full=full)

    async def _act(self, seen: Seen, keys: dict[str, None], *, full: bool) -> None:
        state = self._projector.state
        ghosts = self._ghosts.now(self._desk.record, self._clock.monotonic())
        planned = self._settled.plan(state, seen.listing, None if full else keys, self._moved, ghosts)
        made, observed = planned.plan, planned.observed
        self._guard.listed(planned.sizes)
        needing = self._in_flight.keys() | {action.worker for action in made.actions}
        self._retries.forgive(None if full else keys, needing)
        if full:
            await self._look_at_all(seen, planned)
        if (report := self._guard.report()) is not None:
            await self._notes.withheld(report)
        if state.roster.holding(self.name) is None:
            self._begin(seen, observed, made, keys, full=full)
        else:
            self._patience.rest()
        self.passes += full

    async def _look_at_all(self, seen: Seen, planned: Planned) -> None:
        """What only a full pass can tell."""
        made, observed = planned.plan, planned.observed
        wanting = {action.worker for action in made.actions if isinstance(action, plan.Add)}
        self.held = {name: held for name, held in self.held.items() if name in wanting}
        self._finished = {name: tick for name, tick in self._finished.items() if tick > seen.began}
        self._desk.urls.forget_before(seen.began)
        by, self._force = self._force, None
        removals = [action for action in made.actions if isinstance(action, plan.Remove)]
        self._guard.look(removals, by)
        await self._notes.drift(made, observed, self._finished.keys() | self._in_flight.keys())
        if self._served.exclusive and self._capabilities.remove:
            self._strangers.look(observed.strangers, seen)
        self._look_for_moves(planned.places)

    def _begin(self, seen: Seen, observed: Observed, made: plan.Plan, keys: dict[str, None], *, full: bool) -> None:
        """Start the next step of every key that asks for one."""
        stale = {name for name, tick in self._finished.items() if tick > seen.began}
        # Marked while a step of theirs is under way; those that are started below are looked at as they are now.
        self._again.update(name for name in self._in_flight if full or name in keys)
        for action in self._patience.chosen(made.actions, busy=bool(self._in_flight)):
            name = action.worker
            if name in self._in_flight:
                continue
            if name in stale:
                self._dirty[name] = None
            elif name in keys or name not in self._retries or self._patience.away:
                self._start(action, seen, observed)
        self._again.update(_more_than_once(made.actions))

    def _look_for_moves(self, places: Mapping[str, str]) -> None:
        """Ask where the listed workers are now, beside the loop: a provider that is slow holds up no step."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._find_moved(dict(places)))
            self._looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        if not looking.cancelled() and (exc := looking.exception()) is not None:
            self._break(exc)

    async def _find_moved(self, listed: dict[str, str]) -> None:
        found = await self._admission.sites(listed, self._proxy.canonical_url)
        for name, site in found.items():
            if site.url != listed[name] and await self._admission.ready(name, site) is None:
                self._moved[name] = site.url
                self._dirty[name] = None
                self._wake.set()

    # -------------------------------------------------------------- keys in flight

    def _start(self, action: plan.Action, seen: Seen, observed: Observed) -> None:
        self._retries.started(action.worker)
        self._again.discard(action.worker)
        self._in_flight[action.worker] = asyncio.create_task(self._fly(action, seen, observed))

    async def _fly(self, action: plan.Action, seen: Seen, observed: Observed) -> None:
        """One step of one key, from its start until the fold has passed its outcome."""
        try:
            again = self._retries.failed_before(action.worker)
            outcome = await self._steps.carry_out(action, seen, observed, again=again)
        except Exception as exc:  # noqa: BLE001 - not swallowed: handed to `run`, which ends the lane with it
            self._break(exc)
            return
        name = action.worker
        del self._in_flight[name]
        self._moved.pop(name, None)
        self._finished[name] = self._desk.reader.tick()
        self._note(name, outcome)
        if outcome.evict is not None and outcome.evict.worker not in self._in_flight:
            self._start(outcome.evict, seen, observed)
        self._everything |= self._patience.ended()
        self._wake.set()

    def _break(self, exc: BaseException) -> None:
        """End the lane with what one of its tasks failed with."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(exc)

    def _note(self, name: str, outcome: Outcome) -> None:
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
        if outcome.follow or name in self._again:
            self._again.discard(name)
            self._dirty[name] = None


def _more_than_once(actions: tuple[plan.Action, ...]) -> set[str]:
    """Workers with several steps to take: after the first, they are planned anew."""
    once: set[str] = set()
    more: set[str] = set()
    for action in actions:
        (more if action.worker in once else once).add(action.worker)
    return more
