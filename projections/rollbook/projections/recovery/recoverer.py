"""The recoverer: claims cells that are down, restarts them, and says how that went.

Any number may run for one fleet. A claim is appended with the expected sequence of the cell's first worker, so one of
them gets it and the others read who. Who holds it no more, because it expired or the run ended, touches nothing: what
it asked the manager for late is fenced by the lives that it knew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec

from rollbook.events import RecoveryFailed, RecoveryStarted
from rollbook.events.reasons import tellable
from rollbook.events.times import rfc3339
from rollbook.projections.ending import end
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import RecoveryPolicy
from rollbook.projections.ports import Clock, LogUnavailable
from rollbook.projections.recovery.due import Decisions, Due, Exhausted, claimed, decide, is_its_turn
from rollbook.projections.recovery.ports import ManagerError, ManagerUnavailable, Termination, WorkerManager
from rollbook.projections.state.claims import Claim
from rollbook.projections.state.worker import Phase
from rollbook.projections.tell import Tell, tell_nobody

T = TypeVar("T")

LOOK_SECONDS: Final = 0.25
"""Between two looks at the roster."""
AGAIN_SECONDS: Final = 0.5
"""Between two tries to write when the log does not answer, and two questions to a manager that does not."""
CLEANING_PART: Final = 0.1
"""Of a claim's time, kept for cleaning up and saying so before the leader ends it."""
LONGEST_REASON: Final = 300


class Recovered(msgspec.Struct):
    """Counts since the recoverer began."""

    claimed: int = 0
    lost: int = 0
    """Claims that somebody else got."""
    restored: int = 0
    failed: int = 0
    cordoned: int = 0


class _Lost(Exception):
    """The claim is not ours any more."""


class _Cordoned(Exception):
    """A person wants it left alone, and nothing was done to it yet."""


class Recoverer:
    """Restarts what is down of the fleet that `projector` folds, which it runs. `run` is its life.

    `name` is who claims, and the author of what `verdicts` writes; a recoverer that is started again under the same
    name lets go at once of what its former self had claimed. What is claimed under its name later on and not by it is
    somebody else's, who should have a name of his own.
    """

    def __init__(
        self,
        policies: Mapping[str, RecoveryPolicy],
        *,
        name: str,
        projector: Projector,
        verdicts: Verdicts,
        manager: WorkerManager,
        clock: Clock,
        tell: Tell = tell_nobody,
    ) -> None:
        self.stats = Recovered()
        self._policies = policies
        self._name = name
        self._projector = projector
        self._verdicts = verdicts
        self._manager = manager
        self._clock = clock
        self._tell = tell
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._began = 0
        """Where the log stood then."""
        self._unsure: set[str] = set()
        """Cells that it tried to claim and got no answer."""
        self._namesake = False

    async def run(self) -> None:
        """Recover for ever. Raises what ended it: `HistoryHole`, `LogRewound`."""
        folding = asyncio.create_task(self._projector.run(), name="projector")
        looking = asyncio.create_task(self._look(), name="recovering")
        try:
            await asyncio.wait([folding, looking], return_when=asyncio.FIRST_COMPLETED)
            for task in (folding, looking):
                if task.done():
                    task.result()
        finally:
            await end(looking, folding)

    async def _look(self) -> None:
        await self._projector.caught_up()
        self._began = self._projector.state.sequence
        self._tell("recovery.started", sequence=self._began)
        async with asyncio.TaskGroup() as restarts:
            while True:
                now = self._projector.time.now()
                decisions = decide(self._projector.state.roster, self._policies, now)
                self._begin(decisions, self._projector.state.sequence, restarts)
                pause = LOOK_SECONDS if decisions.wake_at is None else min(LOOK_SECONDS, decisions.wake_at - now)
                await self._clock.sleep(max(pause, 0.01))

    def _begin(self, decisions: Decisions, as_of: int, restarts: asyncio.TaskGroup) -> None:
        """Take up what nobody here is at. No await between the look and the `as_of` of what is written about it."""
        for name, task in list(self._busy.items()):
            if task.done():
                del self._busy[name]
        for due in decisions.due:
            if due.first not in self._busy:
                self._busy[due.first] = restarts.create_task(self._restart(due, as_of))
        for one in decisions.exhausted:
            if one.first not in self._busy:
                self._busy[one.first] = restarts.create_task(self._give_up(one, as_of))
        self._let_go(restarts)

    def _let_go(self, restarts: asyncio.TaskGroup) -> None:
        """Of claims of this recoverer's that nobody here is at."""
        for name, claim in claimed(self._projector.state.roster).items():
            if claim.by != self._name or name in self._busy:
                continue
            if claim.sequence <= self._began or name in self._unsure:
                why = f"{self._name} does not remember this claim: it was started again, or was not told that it has it"
                self._busy[name] = restarts.create_task(self._fail(name, claim.sequence, why))
            elif not self._namesake:
                self._namesake = True
                self._tell("recovery.namesake", worker=name, name=self._name)

    # -------------------------------------------------------------- one cell

    async def _restart(self, due: Due, as_of: int) -> None:
        policy = self._policies[due.pool]
        until = self._clock.monotonic() + policy.claim * (1 - CLEANING_PART)
        now = self._projector.time.now()
        fact = RecoveryStarted(
            worker=due.first,
            incarnation=due.incarnation,
            attempt=due.attempt,
            at=rfc3339(now),
            until=rfc3339(now + policy.claim),
        )
        try:
            claim = await self._verdicts.write(fact, as_of=as_of)
        except LogUnavailable as exc:
            # If it is stored after all, it is a claim that nobody here is at, and is let go of.
            self._unsure.add(due.first)
            self._tell("recovery.not_claimed", worker=due.first, reason=str(exc))
            await self._clock.sleep(AGAIN_SECONDS)
            return
        if claim is None:
            await self._projector.caught_up()
            self.stats.lost += 1
            self._tell("recovery.not_mine", worker=due.first, by=self._holder(due.first))
            return
        await self._projector.passed(claim)
        self._unsure.discard(due.first)
        self.stats.claimed += 1
        about = {"worker": due.first, "incarnation": due.incarnation, "attempt": due.attempt}
        self._tell("recovery.claimed", **about, sequence=claim)
        try:
            wrong = await self._replace(due, claim, policy, until)
        except _Lost:
            self._tell("recovery.claim_lost", **about, by=self._holder(due.first))
            return
        except _Cordoned as exc:
            self._tell("recovery.left_alone", **about, reason=str(exc))
            await self._fail(due.first, claim, str(exc))
            return
        if wrong is None:
            self.stats.restored += 1
            self._tell("recovery.restored", **about)
            return
        # Who was stopped meanwhile finds its time over, and in the log that the cell has come up since.
        await self._projector.caught_up()
        if not self._mine(due.first, claim):
            self._tell("recovery.claim_lost", **about, by=self._holder(due.first))
            return
        self._tell("recovery.failed", **about, reason=wrong)
        await self._clean_up(due, claim, policy.claim * CLEANING_PART)
        await self._fail(due.first, claim, wrong)

    async def _replace(self, due: Due, claim: int, policy: RecoveryPolicy, until: float) -> str | None:
        """Why the cell is not up again; None if it is. Raises `_Lost` or `_Cordoned`."""
        away: list[str] = []
        answered = partial(self._answered, due.first, claim, away)
        try:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                while not is_its_turn(self._projector.state.roster, due.first, policy):
                    self._require(due.first, claim)
                    await self._clock.sleep(LOOK_SECONDS)
                self._require_uncordoned(due)
                former = self._lives(due)
                for name, incarnation in former.items():
                    untouched = due if name == next(iter(former)) else None
                    ended = await answered(partial(self._manager.terminate, name, incarnation), untouched)
                    if ended is Termination.STALE:
                        return f"{name} has begun a life after {incarnation} that is not in the log yet"
                await answered(partial(self._manager.start_cell, due.names))
                return await self._come_up(due, claim, former)
        except (_Lost, _Cordoned):
            raise
        except ManagerError as exc:
            return str(exc)
        except TimeoutError:
            return ": ".join((f"it was not up within {policy.claim * (1 - CLEANING_PART):g} s", *away))
        except Exception as exc:  # noqa: BLE001 - a manager is anybody's code: one cell waits for it, not the fleet
            return f"the manager failed: {type(exc).__name__}: {exc}"

    async def _answered(
        self, first: str, claim: int, away: list[str], ask: Callable[[], Awaitable[T]], untouched: Due | None = None
    ) -> T:
        """What the manager answers; as long as it does not, `away` says why. Raises `_Lost`.

        Raises `_Cordoned` if a cell is that is still `untouched`. It is asked again until the claim's time is over:
        that it is away says nothing of the cell, whose attempts would otherwise be used up, and the cell cordoned,
        within a minute.
        """
        while True:
            self._require(first, claim)
            if untouched is not None:
                self._require_uncordoned(untouched)
            try:
                answer = await ask()
            except ManagerUnavailable as exc:
                if not away:
                    self._tell("recovery.manager_away", worker=first, reason=str(exc))
                away[:] = [str(exc)]
            else:
                away.clear()
                return answer
            await self._clock.sleep(AGAIN_SECONDS)

    async def _come_up(self, due: Due, claim: int, former: Mapping[str, int]) -> str | None:
        """Wait until all ranks serve, with which the claim ends. Raises `_Lost` if it ends otherwise."""
        while True:
            ranks = [self._projector.state.roster.workers.get(name) for name in former]
            if all(
                one is not None and one.phase is Phase.SERVING and one.incarnation > former[one.name] for one in ranks
            ):
                return None
            self._require(due.first, claim)
            for one in ranks:
                if one is not None and one.incarnation > former[one.name] and one.phase is Phase.DOWN:
                    return f"{one.name} went down in life {one.incarnation}: {one.reason or one.evidence}"
            await self._clock.sleep(LOOK_SECONDS)

    async def _clean_up(self, due: Due, claim: int, seconds: float) -> None:
        """End what a half restart left, so that the next one finds names, ports and GPUs free.

        What cannot be ended within `seconds` is left to the next restart, which begins with it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for name, incarnation in self._lives(due).items():
                    if not self._mine(due.first, claim):
                        return
                    try:
                        await self._manager.terminate(name, incarnation)
                    except Exception as exc:  # noqa: BLE001 - as above
                        self._tell("recovery.not_cleaned", worker=name, incarnation=incarnation, reason=str(exc))

    async def _fail(self, first: str, claim: int, reason: str) -> None:
        """Let go of the claim, unless somebody else has ended it."""
        while (found := self._claim(first)) is not None and found.sequence == claim:
            state = self._projector.state
            incarnation = state.roster.workers[first].incarnation
            why = tellable(reason, LONGEST_REASON)
            fact = RecoveryFailed(worker=first, incarnation=incarnation, attempt=found.attempt, reason=why)
            if await self._write(fact, state.sequence):
                self.stats.failed += 1
        self._unsure.discard(first)

    async def _give_up(self, one: Exhausted, as_of: int) -> None:
        fact = RecoveryFailed(
            worker=one.first,
            incarnation=one.incarnation,
            attempt=one.attempts,
            reason=tellable(one.reason, LONGEST_REASON),
            cordoned=True,
        )
        if await self._write(fact, as_of):
            self.stats.cordoned += 1
            self._tell("recovery.gave_up", worker=one.first, attempts=one.attempts, reason=one.reason)

    async def _write(self, fact: RecoveryFailed, as_of: int) -> bool:
        """Whether it stands; if not, somebody spoke about the worker meanwhile, which is folded then."""
        try:
            sequence = await self._verdicts.write(fact, as_of=as_of)
        except LogUnavailable as exc:
            self._tell("log.unavailable", reason=str(exc))
            await self._clock.sleep(AGAIN_SECONDS)
            return False
        if sequence is None:
            await self._projector.caught_up()
            return False
        await self._projector.passed(sequence)
        return True

    # -------------------------------------------------------------- what the roster says

    def _lives(self, due: Due) -> dict[str, int]:
        workers = self._projector.state.roster.workers
        return {name: workers[name].incarnation for name in due.names if name in workers}

    def _claim(self, first: str) -> Claim | None:
        worker = self._projector.state.roster.workers.get(first)
        return None if worker is None or worker.restarts is None else worker.restarts.claim

    def _mine(self, first: str, claim: int) -> bool:
        found = self._claim(first)
        return found is not None and found.sequence == claim

    def _require(self, first: str, claim: int) -> None:
        if not self._mine(first, claim):
            raise _Lost

    def _require_uncordoned(self, due: Due) -> None:
        for name in due.names:
            if (cordon := self._projector.state.roster.cordons.get(name)) is not None:
                raise _Cordoned(f"{name} was cordoned by {cordon.by} before anything was done: {cordon.why}")

    def _holder(self, first: str) -> str | None:
        found = self._claim(first)
        return None if found is None else found.by
