"""One lane per proxy: make the proxy list what it should, level-triggered, one key at a time.

A request is a key (a worker's name), never a fact. A pass lists the proxy now, reads the roster now, and starts the
next step of every key that asks for one. A key is *in flight* from its step's start until the fold has passed the
outcome, and is not planned meanwhile. A lane knows nothing of other lanes [I10].
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from rollbook.events import DriftFound, ProxyReachable, ProxyUnreachable
from rollbook.projections import plan
from rollbook.projections.admission import Admission
from rollbook.projections.authority import Authority
from rollbook.projections.ending import end
from rollbook.projections.gates import Held
from rollbook.projections.listing import Reader, Seen
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Listing, Proxy, ProxyUnavailable
from rollbook.projections.projector import Marks, Projector
from rollbook.projections.resources import Resources
from rollbook.projections.steps import LONGEST_REASON, Outcome, Steps
from rollbook.projections.writer import FencedWriter

MOST_DOUBLINGS: Final = 20
MOST_NAMED: Final = 500
LONGEST_SHOWN: Final = 200
"""How many a DriftFound names of each kind, and letters of a URL in it: whatever a proxy lists, the fact fits [I10]."""


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
        self._admission = admission
        self._policy = policy
        self._paces = policy.reconcile
        self._projector = projector
        self._clock = resources.clock
        self._rng = resources.rng
        self._tell = resources.tell
        self._reader = Reader(proxy, resources.clock, self._paces.call_deadline)
        self._writer = FencedWriter(self.name, policy.fleet, projector, resources)
        self._steps = Steps(
            proxy,
            served,
            policy,
            projector=projector,
            reader=self._reader,
            writer=self._writer,
            admission=admission,
            authority=Authority(resources.leadership, policy.fleet),
            tell=resources.tell,
        )
        self._wake = asyncio.Event()
        self._dirty: dict[str, None] = {}
        self._everything = True
        self._passing = False
        self._resync_at = 0.0
        self._heal_at = 0.0
        """When a call that slipped from the predecessor has landed: the proxy is read back once more then [I7]."""
        self._retry_at: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._outages = 0
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._moved: dict[str, str] = {}
        """Listed workers that were found at another URL; forgotten after the next step of their key."""
        self._looking: asyncio.Task[None] | None = None
        self._finished: dict[str, int] = {}
        self._drift: tuple[tuple[str, ...], ...] = ((), (), ())
        self._broken: asyncio.Future[None] | None = None

    # -------------------------------------------------------------- being woken and looked at

    def mark(self, marks: Marks) -> None:
        """These workers' standing may have changed."""
        if marks.everything:
            self._everything = True
            self._retry_at.clear()
        self._dirty.update(marks.workers)
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, dirty or waiting to be retried."""
        return not (self.busy or self._retry_at)

    @property
    def busy(self) -> bool:
        """Whether anything is in flight or looked at now, or is to be; what is to be retried later is not."""
        return bool(self._passing or self._in_flight or self._dirty or self._everything)

    # -------------------------------------------------------------- the loop

    async def run(self, owner: str, epoch: int) -> None:
        """Take the proxy over and reconcile it for ever. Raises `Deposed` when another controller writes for it."""
        self._broken = asyncio.get_running_loop().create_future()
        loop: asyncio.Task[None] | None = None
        try:
            await self._projector.passed(await self._writer.take_over(owner, epoch))
            self._heal_at = self._clock.monotonic() + self._paces.call_deadline
            record = self._projector.state.ledger.look(self.name)
            self._drift = ((), (), record.foreign)
            loop = asyncio.create_task(self._loop())
            await asyncio.wait([loop, self._broken], return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            await loop
        finally:
            await self._stop([task for task in (*self._in_flight.values(), loop, self._looking) if task is not None])

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        await end(*tasks)
        await self._reader.close()
        await self._writer.close()

    async def _loop(self) -> None:
        while True:
            await self._work_or_time()
            try:
                await self._pass()
            except ProxyUnavailable as exc:
                await self._note_unreachable(str(exc))
                self._everything = True
                self.refusals += 1
                # One probe for the whole proxy, so it need not grow rare: what the proxy lost meanwhile is repaired
                # within `resync` of its return, as ever.
                await self._clock.sleep(min(self._pause(self._outages), self._paces.resync))
                self._outages += 1

    async def _work_or_time(self) -> None:
        """Wait until a key is dirty, a retry is due, or the read-back is."""
        while not self._everything and not self._dirty:
            due = min(self._resync_at, min(self._retry_at.values(), default=self._resync_at))
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
        full = self._everything or now >= self._resync_at
        for name in [name for name, due in self._retry_at.items() if due <= now]:
            del self._retry_at[name]
            self._dirty[name] = None
        keys, self._dirty, self._everything = self._dirty, {}, False
        try:
            seen = await self._reader.fresh()
        except ProxyUnavailable:
            self._dirty.update(keys)
            raise
        await self._note_reachable(seen.listing)
        if full:
            self._resync_at = self._clock.monotonic() + self._paces.resync
            if now < self._heal_at:
                self._resync_at = min(self._resync_at, self._heal_at)
        await self._act(seen, keys, full=full)

    async def _act(self, seen: Seen, keys: dict[str, None], *, full: bool) -> None:
        state = self._projector.state
        observed = plan.observe(self._policy.fleet, state.ledger.look(self.name), seen.listing)
        made = plan.make_plan(state, self._policy, self._served, observed, None if full else keys, self._moved)
        self._forgive(self._failures.keys() if full else keys.keys(), made)
        if full:
            wanting = {action.worker for action in made.actions if isinstance(action, plan.Add)}
            self.held = {name: held for name, held in self.held.items() if name in wanting}
            self._finished = {name: tick for name, tick in self._finished.items() if tick > seen.began}
            self._steps.forget_before(seen.began)
            await self._note_drift(made, observed, self._finished.keys() | self._in_flight.keys())
            self._look_for_moves(observed)
        if state.roster.holding(self.name) is not None:
            self.passes += full
            return
        stale = {name for name, tick in self._finished.items() if tick > seen.began}
        # Marked while a step of theirs is under way; those that are started below are looked at as they are now.
        self._again.update(name for name in self._in_flight if full or name in keys)
        for action in made.actions:
            name = action.worker
            if name in self._in_flight:
                continue
            if name in stale:
                self._dirty[name] = None
            elif name in keys or name not in self._retry_at:
                self._start(action, seen, observed)
        self._again.update(_more_than_once(made.actions))
        self.passes += full

    def _look_for_moves(self, observed: plan.Observed) -> None:
        """Ask where the listed workers are now, beside the loop: a provider that is slow holds up no step."""
        if self._looking is None or self._looking.done():
            listed = {name: owned[0].entry.url for name, owned in observed.owned.items() if len(owned) == 1}
            self._looking = asyncio.create_task(self._find_moved(listed))
            self._looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        if not looking.cancelled() and (exc := looking.exception()) is not None:
            self._break(exc)

    async def _find_moved(self, listed: dict[str, str]) -> None:
        found = await self._admission.urls(listed, self._proxy.canonical_url)
        for name, url in found.items():
            if url != listed[name] and await self._admission.ready(name, url) is None:
                self._moved[name] = url
                self._dirty[name] = None
                self._wake.set()

    # -------------------------------------------------------------- keys in flight

    def _start(self, action: plan.Action, seen: Seen, observed: plan.Observed) -> None:
        self._retry_at.pop(action.worker, None)
        self._again.discard(action.worker)
        self._in_flight[action.worker] = asyncio.create_task(self._fly(action, seen, observed))

    async def _fly(self, action: plan.Action, seen: Seen, observed: plan.Observed) -> None:
        """One step of one key, from its start until the fold has passed its outcome."""
        try:
            outcome = await self._carry_out(action, seen, observed)
        except Exception as exc:  # noqa: BLE001 - not swallowed: handed to `run`, which ends the lane with it
            self._break(exc)
            return
        name = action.worker
        del self._in_flight[name]
        self._moved.pop(name, None)
        self._finished[name] = self._reader.tick()
        self._note(name, outcome)
        if outcome.evict is not None and outcome.evict.worker not in self._in_flight:
            self._start(outcome.evict, seen, observed)
        self._wake.set()

    def _break(self, exc: BaseException) -> None:
        """End the lane with what one of its tasks failed with."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(exc)

    async def _carry_out(self, action: plan.Action, seen: Seen, observed: plan.Observed) -> Outcome:
        match action:
            case plan.Add():
                return await self._steps.add(action, seen, observed)
            case plan.Remove():
                return await self._steps.remove(action, seen)
            case plan.Settle():
                return await self._steps.settle(action)
            case plan.Adopt():
                return await self._steps.adopt(action)

    def _note(self, name: str, outcome: Outcome) -> None:
        if outcome.held is None:
            self.held.pop(name, None)
        else:
            if self.held.get(name) != outcome.held:
                self._tell(
                    "proxy.held", proxy=self.name, worker=name, gate=outcome.held.gate, reason=outcome.held.reason
                )
            self.held[name] = outcome.held
        if outcome.retry:
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            self._retry_at[name] = self._clock.monotonic() + self._pause(failures - 1)
        else:
            self._failures.pop(name, None)
        if outcome.follow or name in self._again:
            self._again.discard(name)
            self._dirty[name] = None

    def _forgive(self, looked_at: Iterable[str], made: plan.Plan) -> None:
        """Who needs nothing any more has not failed: its next life is not to wait for what its last one did."""
        needing = self._in_flight.keys() | {action.worker for action in made.actions}
        for name in set(looked_at) - needing:
            self._failures.pop(name, None)

    def _pause(self, failures: int) -> float:
        """Exponential backoff with full jitter, in seconds."""
        most = min(self._paces.backoff_most, self._paces.backoff_first * 2 ** min(failures, MOST_DOUBLINGS))
        return self._rng.uniform(0, most)

    # -------------------------------------------------------------- noted on change only

    async def _note_reachable(self, listing: Listing) -> None:
        self._outages = 0
        record = self._projector.state.ledger.look(self.name)
        if record.reachable is not True or record.version != listing.version:
            self._tell("proxy.reachable", proxy=self.name, version=listing.version)
            fact = ProxyReachable(proxy=self.name, version=listing.version)
            await self._projector.passed(await self._writer.write(fact))

    async def _note_unreachable(self, reason: str) -> None:
        if self._projector.state.ledger.look(self.name).reachable is not False:
            self._tell("proxy.unreachable", proxy=self.name, reason=reason)
            fact = ProxyUnreachable(proxy=self.name, reason=reason[:LONGEST_REASON])
            await self._projector.passed(await self._writer.write(fact))

    async def _note_drift(self, made: plan.Plan, observed: plan.Observed, busy: set[str]) -> None:
        missing = tuple(name for name in made.missing if name not in busy)[:MOST_NAMED]
        unexpected = tuple(name for name in made.unexpected if name not in busy)[:MOST_NAMED]
        foreign = tuple(url[:LONGEST_SHOWN] for url in observed.foreign[:MOST_NAMED])
        drift = (missing, unexpected, foreign)
        if drift == self._drift:
            return
        self._drift = drift
        self._tell("proxy.drift", proxy=self.name, missing=missing, unexpected=unexpected, foreign=foreign)
        fact = DriftFound(proxy=self.name, missing=missing, unexpected=unexpected, foreign=foreign)
        await self._projector.passed(await self._writer.write(fact))


def _more_than_once(actions: tuple[plan.Action, ...]) -> set[str]:
    """Workers with several steps to take: after the first, they are planned anew."""
    once: set[str] = set()
    more: set[str] = set()
    for action in actions:
        (more if action.worker in once else once).add(action.worker)
    return more
