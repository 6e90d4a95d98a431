"""What must be true of those who watch and restart: of each of their facts, of each of their calls, and at the end.

It reads the log in its own words, and knows what was true of the probes and processes.

- [I3] at every verdict of a monitor: nobody had said anything about the worker since its probe began; it does not
  sleep; and for a Down this very life has failed as often as its pool allows. At every verdict about a lease: the
  worker was asked. At every call of a recoverer: the life that it ends began before its claim had ended.
- [claim] a cell is claimed by one at a time, touched by nobody without a claim, and started by nobody before his turn.
- [budget] no attempt beyond those that the window allows, none before its time; given up is only who had them all.
- [kept] at the end every cell serves, or is cordoned by who gave it up, with the reason; nobody is suspended, nothing
  is claimed; every keeper has what the log folds to.
"""

from collections import defaultdict

import msgspec

from rollbook.events import (
    Codec,
    FleetEnded,
    FleetStarted,
    RecoveryFailed,
    RecoveryStarted,
    Undecodable,
    WorkerDown,
    WorkerFact,
    WorkerSuspected,
    WorkerUncordoned,
)
from rollbook.events.times import parse_rfc3339
from rollbook.projections.state.fold import State

SLACK = 0.5
"""Seconds by which one who reads the log may take its clock to be behind."""


class Claimed(msgspec.Struct):
    """One claim of one cell."""

    by: str
    begun: int
    ended: int | None = None
    """The fact that ended it."""


class Custody:
    """Watches the keepers of one world."""

    def __init__(self, world, kept) -> None:
        self._world = world
        self._kept = kept
        self._codec = Codec(world.policy.fleet)
        self._state = State()
        self._last: dict[str, int] = {}
        """By worker: the sequence of the newest fact on its subject."""
        self._claims: dict[str, list[Claimed]] = defaultdict(list)
        """By the worker on which they stand."""
        self._attempts: dict[str, list[float]] = defaultdict(list)
        """By the same: when each began."""
        self._given_up: set[str] = set()

    # -------------------------------------------------------------- the log

    def read(self) -> None:
        """Catch up."""
        for stored in self._world.log.messages[self._state.sequence :]:
            try:
                recorded = self._codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            except Undecodable:
                recorded = None
            if recorded is not None:
                self._before(recorded)
            _, change = self._state.apply(stored, self._codec)
            if recorded is not None:
                self._after(recorded, ignored=change.ignored is not None)

    def _before(self, recorded) -> None:
        """A fact is about to be folded."""
        fact = recorded.fact
        if isinstance(fact, WorkerFact) and recorded.id in self._kept.probes.behind:
            self._verdict(recorded, self._kept.probes.behind[recorded.id])

    def _after(self, recorded, *, ignored: bool) -> None:
        """It is folded."""
        fact = recorded.fact
        match fact:
            case RecoveryStarted(until=str()) if not ignored:
                self._claim(recorded)
            case RecoveryFailed(cordoned=True) if not ignored:
                self._give_up(recorded)
            case WorkerUncordoned() if not ignored:
                self._attempts.pop(fact.worker, None)
            case FleetStarted() | FleetEnded() if not ignored:
                self._attempts.clear()
            case _:
                pass
        if isinstance(fact, WorkerFact):
            self._last[fact.worker] = recorded.sequence
        for name, claims in self._claims.items():
            last = claims[-1]
            if last.ended is None and self._held(name) != last.begun:
                last.ended = recorded.sequence

    def _held(self, name: str) -> int | None:
        """The sequence of the claim that stands on this worker."""
        worker = self._state.roster.workers.get(name)
        claim = None if worker is None or worker.restarts is None else worker.restarts.claim
        return None if claim is None else claim.sequence

    def _verdict(self, recorded, probe) -> None:
        fact, world = recorded.fact, self._world
        who = f"{recorded.source.rpartition('/')[2]}'s {type(fact).__name__} of {fact.worker} {fact.incarnation}"
        last = self._last.get(fact.worker, 0)
        if last > probe.log_end:
            world.wrong(f"[I3] {who} at {recorded.sequence}: probed at {probe.log_end}, it was spoken of at {last}")
        worker = self._state.roster.workers.get(fact.worker)
        if not isinstance(fact, WorkerDown | WorkerSuspected) or worker is None:
            return
        if worker.incarnation == fact.incarnation and self._sleeps(worker, probe.folded):
            world.wrong(f"[I3] {who} at {recorded.sequence}: it was put to sleep, and is not to be asked")
        if isinstance(fact, WorkerDown) and not self._failed_enough(fact, probe):
            world.wrong(f"[I3] {who} at {recorded.sequence}: {fact.evidence} after {dict(probe.failures)}")

    def _sleeps(self, worker, folded: int) -> bool:
        """A rank that sleeps puts the whole life of its cell to sleep, for whoever has heard of it.

        What is said of the worker itself supersedes a verdict, whether the monitor has heard of it or not.
        """
        workers = self._state.roster.workers
        ranks = [workers[rank.name] for rank in self._cell(worker.name) if rank.name in workers]
        mates = [rank for rank in ranks if rank.cell_incarnation and rank.cell_incarnation == worker.cell_incarnation]
        heard = any(rank.suspension is not None and rank.suspension.sequence <= folded for rank in mates)
        return heard or worker.suspension is not None

    def _cell(self, name: str):
        return self._kept.cells[name.rpartition("-")[0]]

    def _failed_enough(self, fact: WorkerDown, probe) -> bool:
        health, failures = self._kept.policy.health, probe.failures
        if probe.incarnation != fact.incarnation:
            return False
        match fact.evidence:
            case "refused":
                return failures["refused"] >= health.dead_threshold
            case "timeout":
                return failures["timeout"] >= health.slow_threshold
            case _:
                return failures["busy"] >= health.busy_threshold or failures["unhealthy"] >= health.unhealthy_threshold

    def _claim(self, recorded) -> None:
        fact, claims = recorded.fact, self._claims[recorded.fact.worker]
        by = recorded.source.rpartition("/")[2]
        if claims and claims[-1].ended is None:
            self._world.wrong(f"[claim] {fact.worker} was claimed by {by} at {recorded.sequence}, as of {claims[-1]}")
        claims.append(Claimed(by, recorded.sequence))
        policy, at = self._kept.policy.recovery, parse_rfc3339(fact.at)
        recent = self._recent(fact.worker, at - policy.window + SLACK)
        if len(recent) >= policy.attempts:
            self._world.wrong(f"[budget] {fact.worker}: attempt {len(recent) + 1} within {policy.window:g} s by {by}")
        if recent:
            pause = min(policy.backoff_most, policy.backoff_first * 2 ** (len(recent) - 1))
            if at - recent[-1] < pause - SLACK:
                self._world.wrong(f"[budget] {fact.worker}: {by} tried again after {at - recent[-1]:.2f} s")
        self._attempts[fact.worker].append(at)
        self._world.counts["claims"] += 1

    def _recent(self, worker: str, since: float) -> list[float]:
        """When its cell was tried since then, oldest first."""
        tried = [at for rank in self._cell(worker) for at in self._attempts.get(rank.name, ())]
        return sorted(at for at in tried if at > since)

    def _give_up(self, recorded) -> None:
        """Who was stopped before it could say so may say it when the window is over."""
        fact, policy = recorded.fact, self._kept.policy.recovery
        self._given_up.add(fact.worker)
        by, at = recorded.source.rpartition("/")[2], parse_rfc3339(recorded.time)
        woke = [one.woke for one in self._kept.keepers.running if one.name == by]
        slept = woke and abs(woke[0] + self._world.clock.now() - self._world.loop.time() - at) < 1.0
        recent = self._recent(fact.worker, at - policy.window - 2 * SLACK)
        if len(recent) < policy.attempts and not slept:
            self._world.wrong(f"[budget] {fact.worker} was given up after {len(recent)} of {policy.attempts} attempts")
        self._world.counts["given up"] += 1

    # -------------------------------------------------------------- what recoverers ask for

    def begins(self, keeper, workers) -> None:
        """A recoverer is about to have a cell started."""
        claim = self._touches(keeper, workers)
        open_ones = [(name, one) for name, claims in self._claims.items() for one in claims if one.ended is None]
        earlier = {name.rpartition("-")[0] for name, one in open_ones if claim is not None and one.begun < claim.begun}
        if len(earlier) >= self._kept.policy.recovery.parallel:
            self._world.wrong(f"[claim] {keeper.name} starts {workers[0]} before its turn: {earlier} come first")

    def kills(self, keeper, worker: str, incarnation: int) -> None:
        """A recoverer is about to end a life."""
        claim = self._touches(keeper, [rank.name for rank in self._cell(worker)])
        self._world.witness.journal.read()
        began = self._world.witness.journal.began.get((worker, incarnation), 0)
        if claim is not None and claim.ended is not None and began > claim.ended:
            self._world.wrong(f"[I3] {keeper.name} ends {worker} {incarnation}, begun at {began}, by {claim}")

    def _touches(self, keeper, cell) -> Claimed | None:
        """The claim of this cell that stands by all that this recoverer has folded, the oldest; it is to be its own."""
        self.read()
        folded = keeper.projector.state.sequence
        known = [one for name in cell for one in self._claims.get(name, ()) if one.begun <= folded]
        stands = [one for one in known if one.ended is None or one.ended > folded]
        claim = min(stands, key=lambda one: one.begun, default=None)
        if claim is None or claim.by != keeper.name:
            self._world.wrong(f"[claim] {keeper.name} touches {cell[0]}, as of {folded} it is another's: {claim}")
        return claim

    def lease_over(self, fact: WorkerDown, answer: str | None) -> None:
        """A leader is about to say that a lease is over. `answer` is what the worker said in this step, "" for well."""
        located = self._world.fleet.url_of(fact.worker, fact.incarnation)
        rank = self._world.fleet.workers[fact.worker]
        there = rank.alive and rank.incarnation == fact.incarnation and located is not None
        self._world.counts["leases over"] += 1
        if answer == "" or (answer is None and there):
            told = "was not asked" if answer is None else "answered"
            self._world.wrong(f"[I3] the lease of {fact.worker} {fact.incarnation} is called over, and it {told}")

    # -------------------------------------------------------------- the end

    def unsettled(self, state: State) -> list[str]:
        """[kept] what is not as it should be once facts and faults have stopped."""
        self.read()
        roster, found = state.roster, []
        for cell, ranks in self._kept.cells.items():
            known = [roster.workers.get(rank.name) for rank in ranks]
            if roster.ended:
                continue
            cordons = [roster.cordons[rank.name] for rank in ranks if rank.name in roster.cordons]
            for rank, worker in zip(ranks, known, strict=True):
                found += self._amiss(rank, worker, given_up=bool(cordons))
            for cordon in cordons:
                if not cordon.why or self._given_up.isdisjoint(rank.name for rank in ranks):
                    found.append(f"[kept] {cell} is cordoned by {cordon.by}, who did not give it up: {cordon.why!r}")
        leader = self._world.controllers.leader
        if leader is not None and (silent := leader.resources.observers.untold(self._world.loop.time())):
            found.append(f"[kept] nobody has said that {silent} are silent")
        return found

    def _amiss(self, rank, worker, *, given_up: bool) -> list[str]:
        if worker is None or worker.phase == "retired":
            return [f"[kept] {rank.name} was not launched: {worker}"]
        found: list[str] = []
        serving = worker.phase == "serving" and worker.incarnation == rank.incarnation
        truly = rank.alive and rank.serving
        if serving != truly and not (given_up and truly):
            told = f"alive {rank.alive}, serving {rank.serving}"
            found.append(f"[truth] {rank.name} {rank.incarnation}: {told}; roster {worker}")
        if not serving and not given_up:
            found.append(f"[kept] {rank.name} does not serve, and nobody gave it up: {worker}")
        if self._held(rank.name) is not None:
            found.append(f"[kept] {rank.name} is still claimed: {worker.restarts}")
        if worker.suspension is not None:
            found.append(f"[kept] {rank.name} is still suspended: {worker.suspension}")
        if serving and worker.suspicion is not None:
            found.append(f"[kept] {rank.name} is still suspected: {worker.suspicion}")
        return found

    def replayed(self, state: State) -> list[str]:
        """[I5] every monitor and recoverer has what the log folds to."""
        return [
            f"[I5] folding the log again gives another state than {keeper.name} has"
            for keeper in self._kept.keepers.running
            if keeper.projector.state.digest() != state.digest()
        ]
