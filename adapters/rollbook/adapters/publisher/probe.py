"""Check, then act: a verdict about a worker that is void if anything happened to the worker during the check."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, Self

from rollbook.adapters.publisher.entry import Fence
from rollbook.adapters.publisher.errors import IncarnationUnknown, PublisherError, WouldBlock
from rollbook.adapters.publisher.life import Accept, Identity
from rollbook.adapters.publisher.receipt import Receipt, Superseded, in_event_loop
from rollbook.events import Evidence, WorkerDown, WorkerFact, WorkerSuspected, WorkerUp

Look = Callable[[], concurrent.futures.Future[Fence]]


class Probe:
    """Made by `publisher.probe(worker)`, and entered when the check begins, with `with` or `async with`.

    Entering asks the log what it knows of the worker, so it waits for NATS: after the probe's deadline it raises
    `LogUnavailable`. A verdict's receipt ends in the sequence, or in `Superseded` if anybody else published about the
    worker, operators included, between the beginning of the check and the verdict. Facts of the same publisher do not
    count.
    """

    def __init__(self, accept: Accept, look: Look, worker: str, identity: Identity) -> None:
        self.worker = worker
        self._accept = accept
        self._look = look
        self._identity = identity
        self._fence: Fence | None = None

    def __enter__(self) -> Self:
        if in_event_loop():
            raise WouldBlock("with publisher.probe(...)", "async with publisher.probe(...)")
        self._fence = self._look().result()
        return self

    def __exit__(self, *_: object) -> None:
        self._fence = None

    async def __aenter__(self) -> Self:
        self._fence = await asyncio.wrap_future(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fence = None

    @property
    def incarnation(self) -> int | None:
        """The life that is checked; None if the log knows no life of this worker."""
        return self._begun().incarnation or None

    def down(self, *, evidence: Evidence = "unhealthy", reason: str = "") -> Receipt[int | Superseded]:
        """The check says: it does not serve."""
        return self.publish(WorkerDown, evidence=evidence, reason=reason)

    def up(self) -> Receipt[int | Superseded]:
        """The check says: it serves."""
        return self.publish(WorkerUp)

    def suspected(self, *, reason: str = "") -> Receipt[int | Superseded]:
        """The check failed, not yet often enough to be sure."""
        return self.publish(WorkerSuspected, reason=reason)

    def publish(self, fact: type[WorkerFact], /, **fields: Any) -> Receipt[int | Superseded]:
        """Any verdict: its class and its own fields.

        Raises `IncarnationUnknown` if the log knows no life of the worker, `InvalidFact`, `PublisherClosed` or
        `PublisherForked`, and `PublisherError` outside of the `with` block.
        """
        fence = self._begun()
        if not fence.incarnation:
            raise IncarnationUnknown(f"the log knows no life of {self.worker}, so there is nothing to say about it")
        return self._accept(
            fact(worker=self.worker, incarnation=fence.incarnation, **self._identity, **fields), fence=fence
        )

    def _begun(self) -> Fence:
        if self._fence is None:
            raise PublisherError("a probe is used inside of `with publisher.probe(worker) as probe:`")
        return self._fence
