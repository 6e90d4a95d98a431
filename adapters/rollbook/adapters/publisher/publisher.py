"""The publisher: what a trainer, a health check or a worker process uses to say what happened.

A call notes the fact and returns; a thread of the publisher's own does the rest. Nothing here waits for NATS except
what says so: `result()`, `flush()`, `close()`, entering a probe.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, Unpack

from rollbook.adapters.publisher.entry import Fence
from rollbook.adapters.publisher.errors import PublisherError, PublisherMisconfigured, WouldBlock
from rollbook.adapters.publisher.life import EVIDENCE, Identity, Leased, Life, checked_lease, ends_for_good, is_simple
from rollbook.adapters.publisher.probe import Probe
from rollbook.adapters.publisher.receipt import Flushed, PublisherStats, Receipt, Unsent, in_event_loop
from rollbook.events import (
    Evidence,
    Fact,
    InvalidFact,
    WorkerDown,
    WorkerFact,
    WorkerResumed,
    WorkerStarted,
    WorkerSuspended,
    WorkerUp,
    validate_name,
)
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.events.times import rfc3339

if TYPE_CHECKING:  # nats-py takes a third of a second to import, so only a publisher that is made pays for it
    from rollbook.adapters.jetstream.connection import Connection

LONGEST_TTL: Final = 7 * 86_400.0
"""Seconds for which workers can be suspended at once."""


class Publisher:
    """Publishes the facts of one fleet. Usable from any thread and from asyncio code; one per process is enough.

    `connection` is a `Connection` or a URL. `name` says who publishes, in the log; by default host and process id.
    `outbox` is a file that keeps what is not sent yet, for the next process; without one it is in memory only. `limit`
    is how many facts may wait. The constructor does not wait for NATS.

    Raises `InvalidName`, `LogError` (a wrong URL), `OutboxInUse` or `OutboxUnusable`.
    """

    def __init__(
        self,
        fleet: str,
        connection: Connection | str,
        *,
        name: str | None = None,
        outbox: str | Path | None = None,
        limit: int = 10_000,
    ) -> None:
        from rollbook.adapters.jetstream.connection import Connection
        from rollbook.adapters.publisher.core import Core

        if limit < 1:
            raise PublisherMisconfigured(f"limit is {limit}; at least one fact must be allowed to wait")
        self.fleet = fleet
        self.connection = Connection(url=connection) if isinstance(connection, str) else connection
        """With its credentials: for who reads what this publisher writes."""
        self.name = validate_name("publisher", name if name is not None else _default_name())
        self._core = Core(fleet, self.connection, name=self.name, outbox=outbox, limit=limit)
        self._accept = self._core.accept
        self._lives: dict[str, Life] = {}
        self._making = threading.Lock()
        self._core.sender.renewing(self._leased)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """Make one from ROLLBOOK_FLEET, ROLLBOOK_NATS_URL with its credentials, and ROLLBOOK_OUTBOX (a path, optional).

        `options` are those of the constructor. Raises `PublisherMisconfigured` naming the variable that is missing.
        """
        from rollbook.adapters.jetstream.connection import Connection

        for variable, example in (("ROLLBOOK_FLEET", "math-rl"), ("ROLLBOOK_NATS_URL", "nats://host:4222")):
            if not environ.get(variable):
                raise PublisherMisconfigured(
                    f"{variable} is not set (for example {example}); a Ray worker gets it through "
                    'runtime_env={"env_vars": {...}}'
                )
        options.setdefault("outbox", environ.get("ROLLBOOK_OUTBOX") or None)
        return cls(environ["ROLLBOOK_FLEET"], Connection.from_env(environ), **options)

    # ------------------------------------------------------------ saying what happened

    def worker(self, name: str, **identity: Unpack[Identity]) -> Life:
        """Begin a new life of `name`. It is numbered by the log with its first fact. Raises `InvalidName`."""
        validate_name("worker", name)
        life = self._lives[name] = Life(self._accept, name, identity)
        return life

    def _leased(self) -> list[Leased]:
        """The lives of this publisher that are to be heard of now. Called by its own thread."""
        return [
            Leased(life.name, life.incarnation, life.lease)
            for life in tuple(self._lives.values())
            if life.lease is not None and life.incarnation is not None and not life.ended
        ]

    def worker_started(
        self,
        name: str,
        *,
        incarnation: int | None = None,
        node: str | None = None,
        pid: int | None = None,
        **identity: Unpack[Identity],
    ) -> Receipt[int]:
        """A process began. Without `incarnation` that is a new life, numbered by the log."""
        fields = {"node": node, "pid": pid}
        return self._say_alive(WorkerStarted, name, incarnation, identity, anew=True, fields=fields)

    def worker_up(
        self, name: str, *, incarnation: int | None = None, lease: float | None = None, **identity: Unpack[Identity]
    ) -> Receipt[int]:
        """It can serve. `lease` is as for `Life.up`.

        Without `incarnation` it is about this publisher's life of `name`: the one made last by `worker`,
        `worker_started` or `worker_up`, and a new one if there is none or its process is known to be gone.
        """
        fields = {} if lease is None else {"lease": checked_lease(name, lease)}
        receipt = self._say_alive(WorkerUp, name, incarnation, identity, anew=False, fields=fields)
        if lease is not None:
            self._lives[name].lease = lease
        return receipt

    def worker_down(
        self,
        name: str,
        *,
        incarnation: int | None = None,
        evidence: Evidence = "exited",
        reason: str = "",
        **identity: Unpack[Identity],
    ) -> Receipt[int]:
        """It is gone, or cannot serve.

        Without `incarnation` it is about this publisher's life of `name`; if there is none, or its process is known to
        be gone, about the life that is the current one in the log at this moment. If the log cannot be asked now, the
        receipt ends in `IncarnationUnknown`: it is not kept for later, when it would hit another life.
        """
        # This is what a health thread waits for: each function call costs it.
        life = self._lives.get(name)
        if life is None:
            validate_name("worker", name)
        simple = evidence in EVIDENCE and (reason == "" or is_simple(reason))
        if incarnation is None and life is not None and not life.ended:
            return life.say(WorkerDown, identity=identity, checked=simple, evidence=evidence, reason=reason)
        number = 0 if incarnation is None else _number(name, incarnation)
        down = WorkerDown(worker=name, incarnation=number, evidence=evidence, reason=reason, **identity)
        receipt = self._accept(down, ask=not number, checked=simple and not identity)
        if number and life is not None and life.incarnation == number and ends_for_good(down):
            life.ended = True
        return receipt

    def suspend(self, workers: Iterable[str], *, reason: str, ttl: float) -> tuple[Receipt[int], ...]:
        """They sleep on purpose (weight update, offload): not asked, not dead, and routed only where the pool says so.

        A lease in the log: it ends by `resume`, with the worker's life, or by itself after `ttl` seconds, so that who
        dies while holding it leaves nobody asleep for ever. Suspend again before that to hold it longer. It is about
        each worker's life at this moment; a receipt ends in `IncarnationUnknown` where that cannot be found out now.
        Raises `InvalidName` before anybody is suspended, and `PublisherMisconfigured` for a `ttl` that is no time.
        """
        if not 0 < ttl <= LONGEST_TTL:
            raise PublisherMisconfigured(f"ttl is {ttl}; give seconds, above 0 and at most {LONGEST_TTL:g} (a week)")
        return self._say_now(workers, WorkerSuspended, reason=reason, until=rfc3339(time.time() + ttl), ttl=ttl)

    def resume(self, workers: Iterable[str], *, reason: str = "") -> tuple[Receipt[int], ...]:
        """They are awake again. As `suspend`, which it ends."""
        return self._say_now(workers, WorkerResumed, reason=reason)

    def _say_now(self, workers: Iterable[str], fact: type[WorkerFact], **fields: Any) -> tuple[Receipt[int], ...]:
        """About the life of each that is the current one at this moment, whoever began it."""
        names = [validate_name("worker", name) for name in workers]
        receipts: list[Receipt[int]] = []
        for name in names:
            life = self._lives.get(name)
            if life is not None and life.being_numbered:
                receipts.append(life.say(fact, **fields))
            else:
                receipts.append(self._accept(fact(worker=name, incarnation=0, **fields), ask=True))
        return tuple(receipts)

    def publish(self, fact: Fact) -> Receipt[int]:
        """Any fact, as it is; a worker's fact without `seen` gets what this publisher knows.

        Raises `InvalidFact` (also for a payload too large), `InvalidName`, `InvalidSubject`, `PublisherClosed` or
        `PublisherForked`.
        """
        return self._accept(fact)

    def probe(self, name: str, *, timeout: float = 2.0, **identity: Unpack[Identity]) -> Probe:
        """Check, then act: `with publisher.probe(name) as probe:` or `async with`. See `Probe`.

        Entering raises `LogUnavailable` if the log has not answered after `timeout` seconds.
        """
        validate_name("worker", name)

        def look() -> concurrent.futures.Future[Fence]:
            return self._core.submit(self._core.sender.look(name, timeout))

        return Probe(self._accept, look, name, identity)

    def _say_alive(
        self,
        fact: type[WorkerFact],
        name: str,
        incarnation: int | None,
        identity: Identity,
        *,
        anew: bool,
        fields: dict[str, Any],
    ) -> Receipt[int]:
        """About this publisher's life of `name`, or about a new one: of that number, or to be numbered by the log."""
        validate_name("worker", name)
        self._core.check_open()  # before the lock: in a forked child nobody may be there to release it
        with self._making:
            life = self._lives.get(name)
            if incarnation is not None:
                if life is None or life.incarnation != incarnation:
                    life = Life(self._accept, name, {}, number=_number(name, incarnation))
            elif anew or life is None or life.ended:
                life = Life(self._accept, name, {})
            receipt = life.say(
                fact, identity=identity, checked=all(value is None for value in fields.values()), **fields
            )
            self._lives[name] = life
        return receipt

    # ------------------------------------------------------------ how it is going, and the end

    def stats(self) -> PublisherStats:
        """Counts, and what holds facts up."""
        return self._core.stats()

    @property
    def left_unsent(self) -> tuple[Unsent, ...]:
        """What an earlier process accepted into the durable outbox, and nobody can send any more."""
        return self._core.store.lost

    def flush(self, timeout: float = 10.0) -> Flushed:
        """Wait until everything accepted so far has met its end, at most `timeout` seconds; say what has not been sent.

        Raises `WouldBlock` on the thread of a running event loop, `PublisherClosed` and `PublisherForked`.
        """
        if in_event_loop():
            raise WouldBlock("flush()", "await publisher.aflush()")
        return self._core.submit(self._core.sender.flush(timeout)).result()

    async def aflush(self, timeout: float = 10.0) -> Flushed:
        """As `flush`, for asyncio."""
        return await asyncio.wrap_future(self._core.submit(self._core.sender.flush(timeout)))

    def close(self, timeout: float = 10.0) -> Flushed:
        """Take no more facts, flush, and let go of the thread and the connection; say what has not been sent.

        What is still waiting after `timeout` seconds stays in the durable outbox (`kept`), or is lost. Its receipts end
        in `NotSent`. A server that hangs can hold up the goodbye for five seconds more. Closing again returns the same.
        At the end of the process a publisher that is still open is closed without waiting. Raises `WouldBlock` on the
        thread of a running event loop, and `PublisherForked`.
        """
        return self._core.close(timeout)

    async def aclose(self, timeout: float = 10.0) -> Flushed:
        """As `close`, for asyncio."""
        return await asyncio.to_thread(self._core.close, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        raise PublisherError("a publisher has a thread and a connection and stays in its process; make one in each")


def _number(worker: str, incarnation: int) -> int:
    """`incarnation`, if it can be one."""
    if type(incarnation) is int and 0 < incarnation <= MAX_INTEGER:
        return incarnation
    raise InvalidFact(f"{worker}: {incarnation!r} is no incarnation; it is a whole number from 1 to {MAX_INTEGER}")


def _default_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"
