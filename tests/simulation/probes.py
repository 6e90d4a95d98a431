"""What a monitor's probes meet, and what they found, as the simulation remembers it.

A probe tells of the moment at which it began, however late its answer comes.
"""

import asyncio
from collections import Counter, defaultdict

import msgspec

from rollbook.adapters.memory.readiness import REFUSED
from rollbook.projections.health.verdict import OK, Finding, Outcome

HANGS = "it hangs"
"""What `MemoryReadiness` answers for a worker that does not answer at all."""
HELD_UP = 1.0
"""Seconds: a timeout that comes later than that was the monitor's own fault."""


class Probe(msgspec.Struct, frozen=True):
    """One probe of one monitor."""

    worker: str
    incarnation: int
    log_end: int
    """Of the log when it began."""
    folded: int
    """How far the monitor had read then."""
    failures: Counter
    """By outcome: of this life, seen by this monitor since its last good answer."""


class Probes:
    """All of one world."""

    def __init__(self, world) -> None:
        self.blind = False
        """Whether monitors have no network."""
        self.behind: dict[str, Probe] = {}
        """By the id of a draft: the probe that it stands on."""
        self._world = world
        self._rng = world.rng("probes")
        self._here: dict[asyncio.Task, Probe] = {}
        self._failures: dict[tuple, Counter] = defaultdict(Counter)

    def of(self, monitor: str, projector):
        """The `Check` of one monitor process."""

        async def check(subject) -> Finding:
            failures = self._failures[monitor, subject.name, subject.incarnation]
            began, end = self._world.loop.time(), len(self._world.log.messages)
            about = subject.name, subject.incarnation, end, projector.state.sequence, failures
            self._here[asyncio.current_task()] = Probe(*about)
            try:
                finding = await self._answer(subject)
            except asyncio.CancelledError:
                seconds = self._world.kept.policy.health.timeout
                failures["timeout"] += self._world.loop.time() - began <= seconds + HELD_UP
                raise
            if finding.outcome is Outcome.OK:
                failures.clear()
            elif finding.outcome is not Outcome.UNKNOWN:
                failures[finding.outcome.value] += 1
            return finding

        return check

    async def _answer(self, subject) -> Finding:
        rng, world = self._rng, self._world
        if self.blind:
            world.counts["probes without network"] += 1
            return Finding(Outcome.UNKNOWN, "no network")
        reason, who = world.readiness._answers.get(subject.url, (REFUSED, None))
        if not world.stopping and rng.random() < world.weather.keeping.slow_probes:
            world.counts["slow probes"] += 1
            await asyncio.sleep(rng.choice([rng.uniform(0, 0.7), rng.uniform(0, 3)]))
        identity = subject.located.identity
        if reason == HANGS:
            await asyncio.sleep(3600)
        if reason == REFUSED:
            return Finding(Outcome.REFUSED, reason)
        if identity is not None and who != identity.value:
            world.counts["probes of strangers"] += 1
            return Finding(Outcome.UNHEALTHY, f"{who} answers")
        if reason is None:
            return OK
        return Finding(Outcome.BUSY if reason.startswith("503") else Outcome.UNHEALTHY, reason)

    def appends(self, drafts) -> None:
        """Somebody writes: if it is a monitor, on what its last probe here found."""
        probe = self._here.get(asyncio.current_task())
        if probe is not None:
            then = msgspec.structs.replace(probe, failures=Counter(probe.failures))
            self.behind.update({draft.id: then for draft in drafts})
