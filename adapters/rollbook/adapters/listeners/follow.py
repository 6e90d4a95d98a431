"""What the log says of the workers, folded on a thread: so that a listener knows a worker's life when it is called.

A fact about "the worker as it is now" that is numbered later would hit the life that has begun meanwhile. Whoever
follows the log can number it at once, also while NATS is away: then with what was known last.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import Final

import msgspec
import structlog

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import kept_state
from rollbook.events import Codec, RollbookError, validate_name
from rollbook.projections.ending import end
from rollbook.projections.log.projector import Projector
from rollbook.projections.state.worker import Phase

AGAIN_SECONDS: Final = 1.0
"""Between two tries to begin, while there is no server or no log."""
_STOP_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


class Known(msgspec.Struct, frozen=True, gc=False):
    """A worker by the log's word."""

    incarnation: int
    alive: bool
    """Whether nobody has said that this life is over."""
    cell_incarnation: int
    """0 if it has none."""


NOBODY: Final = Known(incarnation=0, alive=False, cell_incarnation=0)


class Follow:
    """Reads the fleet's log on a thread of its own until `stop`. `connection` is a `Connection` or a URL.

    Making one waits for nothing, and the thread does not keep the process from exiting. Raises `InvalidName`.
    """

    def __init__(self, fleet: str, connection: Connection | str) -> None:
        self.fleet = validate_name("fleet", fleet)
        self._connection = Connection(url=connection) if isinstance(connection, str) else connection
        self._projector: Projector | None = None
        self._caught_up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._told = ""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rollbook-follow", daemon=True)
        self._thread.start()

    def look(self, worker: str) -> Known:
        """`worker` as far as the log was read; `NOBODY` if it knows none. From any thread, at once."""
        projector = self._projector
        known = None if projector is None else projector.state.roster.workers.get(worker)
        if known is None:
            return NOBODY
        alive = known.phase not in {Phase.ABSENT, Phase.DOWN, Phase.RETIRED}
        return Known(known.incarnation, alive, known.cell_incarnation or 0)

    def wait(self, timeout: float) -> bool:
        """Wait until the log was read to its end once; False after `timeout` seconds."""
        return self._caught_up in concurrent.futures.wait([self._caught_up], timeout).done

    def stop(self) -> None:
        """End the thread, and wait for it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        stopped = asyncio.create_task(self._stopping.wait())
        while not stopped.done():
            following = asyncio.create_task(self._follow())
            await asyncio.wait([stopped, following], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                self._tell(following.exception())
            await end(following)
            await asyncio.wait([stopped], timeout=AGAIN_SECONDS)

    async def _follow(self) -> None:
        client = await connect(self._connection, name="rollbook-listener")
        try:
            log = JetStreamLog(client, self.fleet, direct=True)
            state = await kept_state(client, self.fleet, log)
            projector = Projector(log, Codec(self.fleet), SystemClock(), state)
            folding = asyncio.create_task(projector.run())
            reading = asyncio.create_task(projector.caught_up())
            try:
                await asyncio.wait([folding, reading], return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    # Not before: what was known until now is newer than a log that is read from its beginning.
                    self._projector = projector
                    if not self._caught_up.done():
                        self._caught_up.set_result(None)
                    self._told = ""
                await folding
            finally:
                await end(folding, reading)
        finally:
            await client.close()

    def _tell(self, trouble: BaseException | None) -> None:
        """Once for each reason: it goes on trying."""
        if not isinstance(trouble, RollbookError):
            _log.error("listener.follow.failed", reason=repr(trouble), exc_info=trouble)
        elif str(trouble) != self._told:
            self._told = str(trouble)
            _log.warning("listener.follow.failed", reason=self._told)
