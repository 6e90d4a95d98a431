"""What the manager says to the log about one worker, life by life."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from rollbook.adapters.publisher import Life, NotSent, Publisher
from rollbook.adapters.ray.spec import WorkerSpec
from rollbook.events import WorkerFact

_AGAIN_SECONDS: Final = 1.0
"""Between two tries to say a life's first fact, when the publisher's outbox was full."""

_log = structlog.get_logger()


class Scribe:
    """The facts of one worker. Nothing here waits for NATS, except `begin`, which waits for the number."""

    def __init__(self, publisher: Publisher, spec: WorkerSpec) -> None:
        self._publisher = publisher
        self._name = spec.name
        self._about: dict[str, Any] = {
            field: value
            for field in ("pool", "cell", "rank", "entrypoint")
            if (value := getattr(spec, field)) is not None
        }
        self._life: Life | None = None
        self._resumed = 0

    def resume(self, incarnation: int) -> None:
        """From now on speak of a life that an earlier manager began."""
        self._life, self._resumed = None, incarnation

    async def begin(self, *, pid: int, node: str) -> int:
        """A process began: say so, and wait as long as it takes for the number that the log gives its life."""
        self._life = life = self._publisher.worker(self._name, **self._about)
        while True:
            life.started(node=node, pid=pid)
            try:
                return await life.numbered()
            except NotSent as exc:
                _log.warning("manager.life.not_numbered", worker=self._name, error=str(exc))
                await asyncio.sleep(_AGAIN_SECONDS)

    def say(self, fact: type[WorkerFact], **fields: Any) -> None:
        """A fact about the newest life; nothing if there never was one. Facts of one life arrive in the order said."""
        if self._life is not None:
            self._life.publish(fact, **fields)
        elif self._resumed:
            self._publisher.publish(fact(worker=self._name, incarnation=self._resumed, **self._about, **fields))
