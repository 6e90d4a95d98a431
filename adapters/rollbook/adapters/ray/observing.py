"""The manager as an observer: it says now and then who lives in its pools, so that an edge that was lost heals.

Each death and each start has its own fact. This is the level beside them: a fact that never reached the log, or that
went with the log's tail, is made good by the next listing. The listing is taken with the log as far as it was folded
here, and says so (`as_of`): whatever began later, also while it is under way, is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import kept_state
from rollbook.adapters.publisher import NotSent, Publisher
from rollbook.adapters.ray.listing import Listing, listing
from rollbook.adapters.ray.spec import WorkerState
from rollbook.events import Codec, FleetObserved, InvalidFact, RollbookError
from rollbook.projections.ending import end
from rollbook.projections.log.projector import Projector

OBSERVE_SECONDS: Final = 60.0
"""Between two listings while nothing changes. A line of one is about 45 bytes: 64 workers write 4 MB a day."""
SETTLE_SECONDS: Final = 1.0
"""Between two looks. What changed is listed once it is the same at two of them: after the changes' own facts."""
_AGAIN_SECONDS: Final = 5.0
"""Between two tries to follow the log."""

States = Callable[[], list[WorkerState]]

_log = structlog.get_logger()


def observing(connection: Connection, every: float) -> Callable[[Publisher, States], Coroutine[Any, Any, None]]:
    """What a manager runs beside its keepers: listings on change and after `every` seconds, until cancelled."""

    async def observe(publisher: Publisher, states: States) -> None:
        told = ""
        while True:
            try:
                await _observe(publisher, states, connection, every)
            except RollbookError as exc:
                if str(exc) != told:
                    told = str(exc)
                    _log.warning("manager.observing.interrupted", reason=told)
            await asyncio.sleep(_AGAIN_SECONDS)

    return observe


async def _observe(publisher: Publisher, states: States, connection: Connection, every: float) -> None:
    """Fold the log and say what is seen, until either fails. Raises `RollbookError`."""
    client = await connect(connection, name=publisher.name)
    try:
        log = JetStreamLog(client, publisher.fleet, direct=True)
        state = await kept_state(client, publisher.fleet, log)
        projector = Projector(log, Codec(publisher.fleet), SystemClock(), state)
        folding = asyncio.create_task(projector.run())
        saying = asyncio.create_task(_Observer(publisher, states, projector, every).run())
        try:
            done, _ = await asyncio.wait([folding, saying], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end(folding, saying)
    finally:
        await client.close()


class _Observer:
    """Takes listings while one projector folds."""

    def __init__(self, publisher: Publisher, states: States, projector: Projector, every: float) -> None:
        self._publisher = publisher
        self._states = states
        self._projector = projector
        self._every = every
        self._said = Listing()
        self._when = float("-inf")
        self._withheld: tuple[tuple[str, str], ...] = ()

    async def run(self) -> None:
        """From the log's present end on, until cancelled. Raises `PublisherClosed`."""
        await self._projector.caught_up()
        before = Listing()
        while True:
            # In one breath, or a life could begin between the two and be in one of them only.
            as_of, now = self._projector.state.sequence, listing(self._projector.state.roster, self._states())
            due = time.monotonic() - self._when >= self._every
            if due or (now.says == before.says != self._said.says):
                await self._say(as_of, now)
            before = now
            await asyncio.sleep(SETTLE_SECONDS)

    async def _say(self, as_of: int, now: Listing) -> None:
        self._when, self._said = time.monotonic(), now
        if now.withheld != self._withheld:
            self._withheld = now.withheld
            for pool, why in now.withheld:
                _log.warning("manager.pool.not_observed", pool=pool, reason=why)
        if not now.pools:
            return
        fact = FleetObserved(observer=self._publisher.name, pools=now.pools, as_of=as_of, workers=now.workers)
        try:
            sequence = await self._publisher.publish(fact)
        except (NotSent, InvalidFact) as exc:
            _log.warning("manager.observation.not_sent", error=str(exc))
        else:
            await self._projector.passed(sequence)
