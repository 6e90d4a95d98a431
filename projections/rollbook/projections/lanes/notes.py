"""What a lane writes down on change only: whether its proxy answers, drift, and who is withheld."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from rollbook.events import DriftFound, Fact, ProxyReachable, ProxyUnreachable, RemovalWithheld
from rollbook.events.reasons import tellable
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Plan
from rollbook.projections.lanes.outcomes import LONGEST_REASON
from rollbook.projections.log.projector import Projector
from rollbook.projections.log.writer import FencedWriter
from rollbook.projections.state.ledger import ProxyRecord
from rollbook.projections.tell import Tell

MOST_NAMED: Final = 500
LONGEST_SHOWN: Final = 200
"""How many a fact names of each kind, and letters of a URL in it: whatever a proxy lists, the fact fits [I10]."""


class Notes:
    """Compares with what the log says already; so the next controller repeats nothing."""

    def __init__(self, proxy: str, projector: Projector, writer: FencedWriter, tell: Tell) -> None:
        self._proxy = proxy
        self._projector = projector
        self._writer = writer
        self._tell = tell
        self._answering = asyncio.Lock()
        """At a blind proxy, many calls find out at once."""
        self._drift: tuple[tuple[str, ...], ...] = ((), (), ())

    def begin(self) -> None:
        """Take over what the log says."""
        self._drift = ((), (), self._record.foreign)

    @property
    def _record(self) -> ProxyRecord:
        return self._projector.state.ledger.look(self._proxy)

    async def reachable(self, version: str | None) -> None:
        """It gave a usable answer."""
        async with self._answering:
            if self._record.reachable is not True or self._record.version != version:
                self._tell("proxy.reachable", proxy=self._proxy, version=version)
                await self._write(ProxyReachable(proxy=self._proxy, version=version))

    async def unreachable(self, reason: str) -> None:
        """It gave none."""
        async with self._answering:
            if self._record.reachable is not False:
                self._tell("proxy.unreachable", proxy=self._proxy, reason=reason)
                await self._write(ProxyUnreachable(proxy=self._proxy, reason=tellable(reason, LONGEST_REASON)))

    async def drift(self, made: Plan, observed: Observed, busy: Collection[str]) -> None:
        """What a full pass found. Workers that are `busy` are on their way."""
        missing = tuple(name for name in made.missing if name not in busy)[:MOST_NAMED]
        unexpected = tuple(name for name in made.unexpected if name not in busy)[:MOST_NAMED]
        foreign = tuple(url[:LONGEST_SHOWN] for url in observed.foreign[:MOST_NAMED])
        drift = (missing, unexpected, foreign)
        if drift != self._drift:
            self._drift = drift
            self._tell("proxy.drift", proxy=self._proxy, missing=missing, unexpected=unexpected, foreign=foreign)
            fact = DriftFound(proxy=self._proxy, missing=missing, unexpected=unexpected, foreign=foreign)
            await self._write(fact)

    async def withheld(self, found: Mapping[str, tuple[tuple[str, ...], int]]) -> None:
        """By pool: who is withheld, and how many may go without being asked."""
        known = self._record.withheld
        for pool in sorted(found.keys() | known.keys()):
            names, budget = found.get(pool, ((), 0))
            workers = names[:MOST_NAMED]
            if workers != known.get(pool, ()):
                self._tell("proxy.removal_withheld", proxy=self._proxy, pool=pool, workers=workers, budget=budget)
                await self._write(RemovalWithheld(proxy=self._proxy, pool=pool or None, workers=workers, budget=budget))

    async def _write(self, fact: Fact) -> None:
        await self._projector.passed(await self._writer.write(fact))
