"""What the manager says to the log about one worker, life by life."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from rollbook.adapters.publisher import Life, NotSent, Publisher, Receipt
from rollbook.adapters.ray.spec import WorkerSpec
from rollbook.events import WorkerFact
from rollbook.events.reasons import tellable
from rollbook.projections.ports import LogUnavailable

_AGAIN_SECONDS: Final = 1.0
"""Between two tries to ask the log, and to say a life's first fact when the publisher's outbox was full."""
_ASK_SECONDS: Final = 5.0
LONGEST_REASON: Final = 500
"""Letters that are kept of why something ended, here and in the log."""

_log = structlog.get_logger()


class Scribe:
    """The facts of one worker in a cell of `cell_size`. Nothing here waits for NATS, except what says so."""

    def __init__(self, publisher: Publisher, spec: WorkerSpec, cell_size: int) -> None:
        self._publisher = publisher
        self._name = spec.name
        self._size = cell_size
        self._about: dict[str, Any] = {
            field: value
            for field in ("pool", "cell", "rank", "entrypoint")
            if (value := getattr(spec, field)) is not None
        }
        self._life: Life | None = None
        self._resumed = 0

    def resume(self, incarnation: int, cell_incarnation: int) -> None:
        """From now on speak of a life that an earlier manager began."""
        self._in_cell(cell_incarnation)
        self._life, self._resumed = None, incarnation

    async def last_number(self) -> int:
        """The highest number that the log has given to a life of this worker; waits as long as it takes."""
        while True:
            try:
                async with self._publisher.probe(self._name, timeout=_ASK_SECONDS) as probe:
                    return probe.incarnation or 0
            except LogUnavailable as exc:
                _log.warning("manager.cell.not_numbered", worker=self._name, error=str(exc))
                await asyncio.sleep(_AGAIN_SECONDS)

    async def begin(self, cell_incarnation: int, *, pid: int, node: str) -> int:
        """A process began: say so, and wait as long as it takes for the number that the log gives its life."""
        self._in_cell(cell_incarnation)
        self._life = life = self._publisher.worker(self._name, **self._about)
        while True:
            life.started(node=node, pid=pid)
            try:
                return await life.numbered()
            except NotSent as exc:
                _log.warning("manager.life.not_numbered", worker=self._name, error=str(exc))
                await asyncio.sleep(_AGAIN_SECONDS)

    def say(self, fact: type[WorkerFact], **fields: Any) -> Receipt[Any] | None:
        """A fact about the newest life; nothing if there never was one. Facts of one life arrive in the order said.

        A `reason` may be of any length, and of any letters: it comes from the worker's own code.
        """
        if "reason" in fields:
            fields["reason"] = tellable(fields["reason"], LONGEST_REASON)
        if self._life is not None:
            return self._life.publish(fact, **fields)
        if self._resumed:
            return self._publisher.publish(fact(worker=self._name, incarnation=self._resumed, **self._about, **fields))
        return None

    def _in_cell(self, cell_incarnation: int) -> None:
        """What its facts say of the cell; nothing in a cell of one worker."""
        if self._size > 1 and cell_incarnation:
            self._about |= {"cell_size": self._size, "cell_incarnation": cell_incarnation}
