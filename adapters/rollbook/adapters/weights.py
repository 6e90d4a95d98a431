"""An update of the weights, as a trainer makes it: who takes part is fixed when it begins, and who is ready at its end.

A worker that restarts in the middle comes back with whatever it loads by itself. So what is said of a worker is said of
the life that it had when the update began: if that is over, the fold ignores it, and the new life waits in
`pending_weights` until somebody says what *it* holds. No lock, and nobody has to notice the restart in time.

    with weight_update(publisher, "rollout", version=1200, suspend=120) as update:
        for worker in update.workers:
            push_weights(worker)
            update.loaded(worker)
    update.outcome.restarted     # {'rollout-3-0': 8}
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Coroutine
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.connection import connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import kept_state
from rollbook.adapters.publisher import Publisher, PublisherMisconfigured, Receipt, WouldBlock
from rollbook.adapters.publisher.publisher import LONGEST_TTL
from rollbook.adapters.publisher.receipt import in_event_loop
from rollbook.events import (
    Codec,
    Fact,
    WeightsLoaded,
    WeightsPublished,
    WorkerResumed,
    WorkerSuspended,
    validate_name,
)
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.events.times import rfc3339
from rollbook.projections.log.catchup import folded_on
from rollbook.projections.looking.updating import Updated, ended, participants
from rollbook.projections.ports import LogUnavailable

if TYPE_CHECKING:
    from rollbook.projections.state.fold import State

TIMEOUT: Final = 30.0


class WeightUpdate:
    """Made by `weight_update`, and entered when the update begins, with `with` or `async with`.

    Entering reads who is there, says that they sleep (with `suspend`) and that the version is published, and
    returns when all that is in the log. Leaving wakes whoever still sleeps and reads who is ready; after an error
    in the block, or at the beginning, it wakes them and lets the error pass. Both raise `LogUnavailable` when the
    log does not answer in time; what was said by then stays in the publisher's outbox and is sent, so that only
    `outcome` is not known.
    """

    def __init__(
        self, publisher: Publisher, pools: tuple[str, ...], version: int, suspend: float | None, timeout: float
    ) -> None:
        self.version = version
        self.workers: MappingProxyType[str, int] = MappingProxyType({})
        """Worker → the life that takes part: the workers of the pools that take requests and lived at the beginning."""
        self.outcome: Updated | None = None
        """How it ended; None before that."""
        self._publisher = publisher
        self._pools = pools
        self._suspend = suspend
        self._timeout = timeout
        self._loaded: dict[str, None] = {}
        self._asleep: set[str] = set()
        self._receipts: list[Receipt[int]] = []

    def loaded(self, *workers: str) -> None:
        """These hold the version now: it is said of the lives that take part, and they are woken. Does not wait.

        Whoever takes no part is only noted (`outcome.strangers`). Usable from any thread.
        """
        for name in workers:
            self._loaded[validate_name("worker", name)] = None
            incarnation = self.workers.get(name)
            if incarnation is not None:
                self._say(WeightsLoaded(worker=name, incarnation=incarnation, version=self.version))
                self._wake(name, f"weights {self.version} loaded")

    # -------------------------------------------------------------- beginning and ending

    def __enter__(self) -> Self:
        return self._run(self._begin())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._wake_all(kind)
        if kind is None:
            self._run(self._end())

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._wake_all(kind)
        if kind is None:
            await self._end()

    def _run(self, waiting: Coroutine[Any, Any, Self]) -> Self:
        if in_event_loop():
            waiting.close()
            raise WouldBlock("with weight_update(...)", "async with weight_update(...)")
        return asyncio.run(waiting)

    async def _begin(self) -> Self:
        try:
            async with self._in_time("who is there"):
                self.workers = MappingProxyType(participants((await self._state()).roster, self._pools))
                if self._suspend is not None:
                    ttl, until = self._suspend, rfc3339(time.time() + self._suspend)
                    for name, incarnation in self.workers.items():
                        reason = f"weights {self.version} are being loaded"
                        self._say(
                            WorkerSuspended(worker=name, incarnation=incarnation, reason=reason, until=until, ttl=ttl)
                        )
                        self._asleep.add(name)
                # Before anybody loads it: who restarts from now on is held back until it has said what it holds.
                for pool in self._pools:
                    self._say(WeightsPublished(pool=pool, version=self.version))
                await self._stored()
        except BaseException as exc:
            self._wake_all(type(exc))  # nobody gets to the end of a block that was not entered
            raise
        return self

    async def _end(self) -> Self:
        async with self._in_time("who is ready"):
            await self._stored()
            self.outcome = ended((await self._state()).roster, self.version, self.workers, self._loaded)
        return self

    def _wake_all(self, kind: type[BaseException] | None) -> None:
        for name in sorted(self._asleep):
            why = "the update is over" if kind is None else f"the update failed: {kind.__name__}"
            self._wake(name, f"{why}, and weights {self.version} were not loaded")

    def _wake(self, name: str, reason: str) -> None:
        if name in self._asleep:
            self._asleep.discard(name)
            self._say(WorkerResumed(worker=name, incarnation=self.workers[name], reason=reason))

    def _say(self, fact: Fact) -> None:
        self._receipts.append(self._publisher.publish(fact))

    async def _stored(self) -> None:
        """Wait until all that was said is in the log. Raises what a fact ended with that could not be sent."""
        while self._receipts:
            await self._receipts[0]
            del self._receipts[0]

    async def _state(self) -> State:
        """All that the log says now."""
        fleet = self._publisher.fleet
        client = await connect(self._publisher.connection, name="rollbook-weights")
        try:
            log = JetStreamLog(client, fleet, direct=True)
            return await folded_on(await kept_state(client, fleet, log), log, Codec(fleet), SystemClock())
        finally:
            await client.close()

    @contextlib.asynccontextmanager
    async def _in_time(self, what: str) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as exc:
            raise LogUnavailable(f"the log has not said {what} within {self._timeout:g} s") from exc


def weight_update(
    publisher: Publisher, *pools: str, version: int, suspend: float | None = None, timeout: float = TIMEOUT
) -> WeightUpdate:
    """An update of the weights of `pools` to `version`, a whole number. See `WeightUpdate`.

    With `suspend` the workers sleep until each has loaded it: seconds after which they wake by themselves if the
    trainer dies meanwhile, at most a week. Without it they go on taking requests. `timeout` is in seconds, for the log
    to answer at the beginning and at the end.

    Raises `InvalidName`, and `PublisherMisconfigured` if there is no pool, `version` is no whole number, or `suspend`
    or `timeout` is no time.
    """
    if not pools:
        raise PublisherMisconfigured('name at least one pool, as in weight_update(publisher, "rollout", version=7)')
    for pool in pools:
        validate_name("pool", pool)
    if type(version) is not int or abs(version) > MAX_INTEGER:
        raise PublisherMisconfigured(f"version is {version!r}; give a whole number, such as the training step")
    if suspend is not None and not 0 < suspend <= LONGEST_TTL:
        raise PublisherMisconfigured(f"suspend is {suspend}; give seconds, above 0 and at most {LONGEST_TTL:g}")
    if not 0 < timeout < math.inf:
        raise PublisherMisconfigured(f"timeout is {timeout}; give seconds, above 0 and finite")
    return WeightUpdate(publisher, pools, version, suspend, timeout)
