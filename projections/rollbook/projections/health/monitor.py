"""The monitor: asks the workers that the log knows, counts their answers, and writes down what they amount to.

It follows the log, so it knows who there is and who sleeps; it resolves each address at the moment of the probe and
keeps none. It decides nothing about proxies. Any number of monitors may watch one fleet.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from rollbook.events import RollbookError, WorkerDown, WorkerFact, WorkerSuspected, WorkerUp
from rollbook.events.reasons import tellable
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Held
from rollbook.projections.ending import end
from rollbook.projections.health.schedule import Due, Pace, Schedule
from rollbook.projections.health.verdict import Down, Finding, Outcome, Suspect, Tally, Up, Verdict, judge, watched
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Marks, Projector
from rollbook.projections.policy import HealthPolicy, PoolPolicy
from rollbook.projections.ports import Clock, Located, ProviderError, WorkerProvider
from rollbook.projections.tell import Tell, tell_nobody

TICK_SECONDS: Final = 0.01
"""Probes that are due within it begin together, with one look-up at the provider."""
IDLE_SECONDS: Final = 0.25
"""The longest pause: after so long a new worker is noticed."""
LOCATE_SECONDS: Final = 5.0
HELD_UP_SECONDS: Final = 1.0
"""A timeout noticed so late says more about the monitor, which was stopped or starved, than about the worker."""
LATENESS_KEPT: Final = 10_000
LONGEST_REASON: Final = 300
"""Letters of a reason in a fact."""


class Subject(msgspec.Struct, frozen=True, gc=False):
    """Who is to be asked, and where it is at this moment."""

    name: str
    incarnation: int
    pool: str
    url: str
    """Without the path."""
    located: Located
    deep: bool
    """Whether one token is to be generated."""
    due: float
    """Monotonic: when the probe was to begin."""


class Check(Protocol):
    """How a worker is asked. The monitor bounds it in time, which it must bear: it is cancelled."""

    async def __call__(self, subject: Subject) -> Finding:
        """What it answers. What this raises counts as an unhealthy worker, `TimeoutError` as a slow one."""
        ...


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, how it is watched, and how its workers are asked."""

    policy: HealthPolicy
    check: Check
    url: str
    """Template of where its workers are asked."""


def watched_pool(pool: PoolPolicy, check: Check) -> Watched:
    """As the configuration says."""
    return Watched(policy=pool.health, check=check, url=pool.health.url or pool.url)


class MonitorStats(msgspec.Struct):
    """Counts since the monitor began."""

    probes: int = 0
    failed: int = 0
    verdicts: int = 0
    """Facts written."""
    superseded: int = 0
    """Verdicts dropped because something happened to the worker during the probe."""
    lateness: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=LATENESS_KEPT))
    """Seconds by which the last probes began after their time."""


class Monitor:
    """Watches the fleet that `projector` folds, which it runs. `run` is its life."""

    def __init__(
        self,
        pools: Mapping[str, Watched],
        *,
        projector: Projector,
        verdicts: Verdicts,
        provider: WorkerProvider,
        clock: Clock,
        rng: random.Random,
        tell: Tell = tell_nobody,
    ) -> None:
        self.stats = MonitorStats()
        self._pools = pools
        self._paces = {
            name: Pace(name, pool.policy.interval, pool.policy.jitter, pool.policy.parallel)
            for name, pool in pools.items()
        }
        self._projector = projector
        self._verdicts = verdicts
        self._provider = provider
        self._clock = clock
        self._tell = tell
        self._schedule = Schedule(rng)
        self._tallies: dict[str, Tally] = {}
        self._trusted: set[str] = set()
        """Pools of which somebody gave a good answer."""
        self._troubles: dict[str, str] = {}
        """By worker, or `""` for the provider: why it could not be asked, as last told."""

    @property
    def watching(self) -> int:
        """How many workers are asked."""
        return len(self._schedule)

    async def run(self) -> None:
        """Watch for ever. Raises what ended it: `HistoryHole`, `LogRewound`."""
        folding = asyncio.create_task(self._projector.run(), name="projector")
        watching = asyncio.create_task(self._watch(), name="watching")
        try:
            await asyncio.wait([folding, watching], return_when=asyncio.FIRST_COMPLETED)
            for task in (folding, watching):
                if task.done():
                    task.result()
        finally:
            await end(watching, folding)

    async def _watch(self) -> None:
        await self._projector.caught_up()
        forget = self._projector.listen(self._mark)
        self._mark(Marks(everything=True))
        self._tell("monitor.started", sequence=self._projector.state.sequence, watching=self.watching)
        try:
            async with asyncio.TaskGroup() as probes:
                while True:
                    due = self._schedule.due(self._clock.monotonic())
                    if due:
                        await self._begin(due, probes)
                    next_at = self._schedule.next_at()
                    pause = IDLE_SECONDS if next_at is None else next_at - self._clock.monotonic()
                    await self._clock.sleep(min(max(pause, TICK_SECONDS), IDLE_SECONDS))
        finally:
            forget()

    # -------------------------------------------------------------- who is asked

    def _mark(self, marks: Marks) -> None:
        """Something happened to these workers: ask them, or ask them no more."""
        roster = self._projector.state.roster
        now = self._clock.monotonic()
        for name in (*roster.workers, *self._tallies) if marks.everything else marks.workers:
            worker = roster.workers.get(name)
            if worker is None:
                self._schedule.remove(name)
                self._tallies.pop(name, None)
                continue
            tally = self._tallies.get(name)
            if tally is None or tally.incarnation != worker.incarnation:
                tally = self._tallies[name] = Tally(worker.incarnation, now)
            pool = self._pools.get(worker.pool or "")
            if pool is None or roster.ended or not watched(worker, pool.policy) or roster.sleep(worker) is not None:
                tally.reset()
                self._schedule.remove(name)
            else:
                self._schedule.add(name, self._paces[worker.pool or ""], now)

    # -------------------------------------------------------------- asking

    async def _begin(self, due: Sequence[Due], probes: asyncio.TaskGroup) -> None:
        """Look up where they are now, and ask them. The look-up is a part of the check, which so begins before it."""
        as_of = self._projector.state.sequence
        located = await self._locate([one.name for one in due])
        workers = self._projector.state.roster.workers
        for one in due:
            worker, tally = workers.get(one.name), self._tallies.get(one.name)
            found = self._subject(one, located.get(one.name)) if located is not None else None
            if worker is None or tally is None or found is None:
                self._schedule.done(one.name, self._clock.monotonic())
            else:
                probes.create_task(self._probe(found, tally, as_of))

    async def _locate(self, names: Sequence[str]) -> dict[str, Located] | None:
        """Where they are; None if the provider cannot say, which says nothing about any worker."""
        try:
            async with asyncio.timeout(LOCATE_SECONDS):
                located = dict(await self._provider.locate(names))
        except TimeoutError:
            self._note("", f"the provider gave no answer within {LOCATE_SECONDS:g} s")
        except ProviderError as exc:
            self._note("", str(exc))
        except Exception as exc:  # noqa: BLE001 - a provider is anybody's code
            self._note("", f"the provider failed: {type(exc).__name__}: {exc}"[:LONGEST_REASON])
        else:
            self._note("", None)
            return located
        return None

    def _subject(self, due: Due, located: Located | None) -> Subject | None:
        """Whom to ask where; None if that is not known, or not known of this very life."""
        worker = self._projector.state.roster.workers.get(due.name)
        pool = self._pools.get(worker.pool or "") if worker is not None else None
        tally = self._tallies.get(due.name)
        if worker is None or pool is None or tally is None:
            return None
        if located is None:
            self._note(due.name, "the provider does not know it")
            return None
        url = gates.address(worker, located) or gates.worker_url(pool.url, located)
        if isinstance(url, Held):
            self._note(due.name, url.reason)
            return None
        policy = pool.policy
        deep = policy.deep != "none" and (tally.deep_failed or tally.probes % policy.deep_every == 0)
        tally.probes += 1
        return Subject(due.name, worker.incarnation, worker.pool or "", url, located, deep, due.at)

    async def _probe(self, subject: Subject, tally: Tally, as_of: int) -> None:
        """Ask, count, and write down what it amounts to."""
        self.stats.lateness.append(self._clock.monotonic() - subject.due)
        pool, resets = self._pools[subject.pool], tally.resets
        try:
            finding = await _asked(pool, subject, self._clock)
            self._note(subject.name, finding.reason if finding.outcome is Outcome.UNKNOWN else None)
            self.stats.probes += 1
            self.stats.failed += finding.outcome not in {Outcome.OK, Outcome.UNKNOWN}
            if subject.deep and finding.outcome is not Outcome.UNKNOWN:
                tally.deep_failed = finding.outcome is not Outcome.OK
            worker = self._projector.state.roster.workers.get(subject.name)
            if worker is None or worker.incarnation != tally.incarnation or subject.name not in self._schedule:
                return
            if tally.resets != resets:  # it slept meanwhile, or another rank of its cell did
                return
            if finding.outcome is Outcome.OK:
                self._trusted.add(subject.pool)
            now, trusted = self._clock.monotonic(), subject.pool in self._trusted
            verdict = judge(tally, pool.policy, worker, finding, now=now, trusted=trusted)
            if verdict is not None:
                await self._say(verdict, subject, tally, as_of)
        finally:
            self._schedule.done(subject.name, self._clock.monotonic())

    async def _say(self, verdict: Verdict, subject: Subject, tally: Tally, as_of: int) -> None:
        fact = _fact(verdict, subject)
        about = {"worker": subject.name, "incarnation": subject.incarnation, "verdict": type(fact).__name__}
        try:
            sequence = await self._verdicts.write(fact, as_of=as_of)
        except RollbookError as exc:  # the counts stay, so the next probe says it again if it is still so
            self._tell("monitor.verdict_failed", **about, reason=str(exc))
            return
        if sequence is None:
            tally.reset()
            self.stats.superseded += 1
            self._tell("monitor.superseded", **about)
            return
        self.stats.verdicts += 1
        self._tell("monitor.verdict", **about, sequence=sequence, reason=getattr(fact, "reason", ""))
        await self._projector.passed(sequence)

    def _note(self, about: str, trouble: str | None) -> None:
        """Tell why a worker cannot be asked, on change only."""
        if trouble is None:
            if self._troubles.pop(about, None) is not None:
                self._tell("monitor.known_again", worker=about)
        elif self._troubles.get(about) != trouble:
            self._troubles[about] = trouble
            self._tell("monitor.unknown", worker=about, reason=trouble)


async def _asked(pool: Watched, subject: Subject, clock: Clock) -> Finding:
    seconds = pool.policy.deep_timeout if subject.deep else pool.policy.timeout
    began = clock.monotonic()
    try:
        async with asyncio.timeout(seconds):
            return await pool.check(subject)
    except TimeoutError:
        if clock.monotonic() - began > seconds + HELD_UP_SECONDS:
            return Finding(Outcome.UNKNOWN, "the monitor itself was held up")
        return Finding(Outcome.SLOW, f"no answer within {seconds:g} s")
    except Exception as exc:  # noqa: BLE001 - a check is anybody's code
        return Finding(Outcome.UNHEALTHY, f"the check raised {type(exc).__name__}: {exc}"[:LONGEST_REASON])


def _fact(verdict: Verdict, subject: Subject) -> WorkerFact:
    name, incarnation = subject.name, subject.incarnation
    match verdict:
        case Suspect(reason):
            return WorkerSuspected(worker=name, incarnation=incarnation, reason=tellable(reason, LONGEST_REASON))
        case Down(evidence, reason):
            reason = tellable(reason, LONGEST_REASON)
            return WorkerDown(worker=name, incarnation=incarnation, evidence=evidence, reason=reason)
        case Up():
            return WorkerUp(worker=name, incarnation=incarnation)
