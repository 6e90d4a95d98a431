"""The fleet's log, followed in the demo's own process: what its table shows, and by which it knows who leads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.service.client import Controllers
from rollbook.adapters.service.messages import INFO, Info, InfoRequest
from rollbook.events import Codec, LeadershipTaken, Recorded
from rollbook.projections.log.projector import Projector
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State

ANSWER_SECONDS = 20.0
"""For the controller to say how far it has folded."""


class Watching:
    """A fold of the log that `run` keeps up to date, whatever becomes of the server."""

    def __init__(self, client: Client, fleet: str, show: Callable[[Stored, Recorded], None]) -> None:
        self.log = JetStreamLog(client, fleet, direct=True)
        self.leader: str | None = None
        """The owner of the last takeover in the log."""
        self.takeovers = 0
        self._fleet = fleet
        self._client = client
        self._show = show
        self._projector = Projector(self.log, Codec(fleet), SystemClock(), State())
        self._projector.witness(lambda stored, recorded, _: self._note(stored, recorded))

    @property
    def state(self) -> State:
        """The fold, up to what was read."""
        return self._projector.state

    async def run(self) -> None:
        """Follow until cancelled. Raises `HistoryHole` or `LogRewound` for a log that cannot be folded."""
        await self._projector.run()

    async def caught_up(self) -> None:
        """Wait until all that is in the log now is folded."""
        await self._projector.caught_up()

    async def ask(self) -> Info:
        """What the leading controller says of itself, with the digest of its state. Raises `RollbookError`."""
        request = InfoRequest(digest=True, deadline_seconds=ANSWER_SECONDS)
        return await Controllers(self._client, self._fleet).ask(INFO, request)

    def _note(self, stored: Stored, recorded: Recorded | None) -> None:
        if recorded is None:
            return
        if isinstance(recorded.fact, LeadershipTaken):
            self.leader = recorded.fact.owner
            self.takeovers += 1
        self._show(stored, recorded)


@contextlib.asynccontextmanager
async def watching(
    connection: Connection, fleet: str, show: Callable[[Stored, Recorded], None]
) -> AsyncGenerator[Watching]:
    """Connect. Does not follow yet. Raises `LogError`."""
    client = await connect(connection, name="rollbook-demo")
    try:
        yield Watching(client, fleet, show)
    finally:
        await client.close()
