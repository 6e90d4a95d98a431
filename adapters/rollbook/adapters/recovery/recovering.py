"""The recoverer as one runs it: connected to the log, as an asyncio task."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import structlog

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.health.monitoring import monitor_name
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import kept_state
from rollbook.events import Codec, RollbookError, validate_name
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.recovery.due import shortest_window
from rollbook.projections.recovery.ports import WorkerManager
from rollbook.projections.recovery.recoverer import Recovered, Recoverer

_log = structlog.get_logger("rollbook")
_BAD: Final = frozenset(
    {
        "recovery.failed",
        "recovery.gave_up",
        "recovery.claim_lost",
        "recovery.namesake",
        "recovery.not_claimed",
        "recovery.not_cleaned",
    }
)


class RecoveryMisconfigured(RollbookError):
    """There is nothing that this recoverer could restart, or a crash loop would never end."""


class WorkerRecovery:
    """Restarts the cells of one fleet that are down, as `pools` say (their `recovery`), through `manager`.

    `connection` is a `Connection` or a URL. `name` says who claims, in the log; by default `recoverer-<host>-<pid>`.
    One that keeps its name over its own restarts lets go at once of what it had claimed before. Raises `InvalidName` or
    `RecoveryMisconfigured`.
    """

    def __init__(
        self,
        fleet: str,
        connection: Connection | str,
        manager: WorkerManager,
        pools: Mapping[str, PoolPolicy],
        *,
        name: str | None = None,
    ) -> None:
        self.fleet = validate_name("fleet", fleet)
        self.name = validate_name("publisher", name or monitor_name("recoverer"))
        self._connection = Connection(url=connection) if isinstance(connection, str) else connection
        self._manager = manager
        self._policies = {pool: policy.recovery for pool, policy in pools.items() if policy.recovery.restart}
        if not self._policies:
            raise RecoveryMisconfigured("no pool is to be restarted; declare one whose recovery.restart is not false")
        for pool, policy in self._policies.items():
            if policy.window < (least := shortest_window(policy)):
                raise RecoveryMisconfigured(
                    f"pool {pool!r}: {policy.attempts} restarts that hang take up to {least:g} s, and would go on for "
                    f"ever in a window of {policy.window:g} s; make it as long, or the claim shorter"
                )
        self._recoverer: Recoverer | None = None

    @property
    def stats(self) -> Recovered:
        """Counts since `run` began."""
        return Recovered() if self._recoverer is None else self._recoverer.stats

    async def run(self) -> None:
        """Recover until cancelled. Outages of NATS and of the manager end nothing.

        Raises `LogError` if the log cannot be reached at the start, has no stream of this fleet, or cannot be folded.
        """
        async with following(self.fleet, self._connection, self.name) as (projector, verdicts):
            self._recoverer = Recoverer(
                self._policies,
                name=self.name,
                projector=projector,
                verdicts=verdicts,
                manager=self._manager,
                clock=SystemClock(),
                tell=_tell,
            )
            await self._recoverer.run()


@contextlib.asynccontextmanager
async def following(fleet: str, connection: Connection, name: str) -> AsyncGenerator[tuple[Projector, Verdicts]]:
    """A projector of the fleet's log, which is not running yet, and the right to write to it as `name`."""
    client = await connect(connection, name=name)
    try:
        log, clock = JetStreamLog(client, fleet, direct=True), SystemClock()
        state = await kept_state(client, fleet, log)
        yield Projector(log, Codec(fleet), clock, state), Verdicts(fleet, log, clock, UuidV7(), name)
    finally:
        await client.close()


def _tell(event: str, /, **keys: object) -> None:
    (_log.warning if event in _BAD else _log.info)(event, **keys)
