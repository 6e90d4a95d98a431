"""The publisher: what a trainer, a health check or a worker process uses to say what happened.

A call notes the fact and returns; a thread of the publisher's own does the rest. Nothing here waits for NATS except
what says so: `result()`, `flush()`, `close()`, entering a probe.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, Unpack

import msgspec
import structlog

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.publisher.entry import Entry, Fence, LifeNumber
from rollbook.adapters.publisher.errors import (
    NotSent,
    OutboxFull,
    PublisherClosed,
    PublisherError,
    PublisherForked,
    PublisherMisconfigured,
    WouldBlock,
)
from rollbook.adapters.publisher.life import Identity, Life, ends_for_good, is_simple
from rollbook.adapters.publisher.outbox import DurableOutbox
from rollbook.adapters.publisher.probe import Probe
from rollbook.adapters.publisher.receipt import Book, Flushed, PublisherStats, Receipt, Unsent, in_event_loop
from rollbook.events import Codec, Evidence, Fact, WorkerDown, WorkerFact, validate_name
from rollbook.events.facts.base import MAX_INTEGER

if TYPE_CHECKING:  # nats-py takes a third of a second to import, so only a publisher that is made pays for it
    from rollbook.adapters.jetstream.connection import Connection

_log = structlog.get_logger(__name__)

_SOME_ID: Final = "0" * 36
_CLOSED: Final = "the publisher was closed before the log acknowledged it"


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
        from rollbook.adapters.publisher.sender import Sender
        from rollbook.adapters.publisher.store import Store

        if limit < 1:
            raise PublisherMisconfigured(f"limit is {limit}; at least one fact must be allowed to wait")
        self.fleet = fleet
        self.name = validate_name("publisher", name if name is not None else _default_name())
        self._codec = Codec(fleet)
        self._book = Book(UuidV7())
        self._limit = limit
        self._gone: type[PublisherError] | None = None
        self._closing = threading.Lock()
        self._closed: Flushed | None = None
        self._lives: dict[str, Life] = {}
        self._making = threading.Lock()
        self._overflow = 0
        self._overflow_told = 0.0
        if isinstance(connection, str):
            connection = Connection(url=connection)
        self._store = Store(DurableOutbox(outbox) if outbox is not None else None, self._codec, self._book)
        self._sender = Sender(self._codec, self.name, connection, limit=limit, store=self._store)
        self._known = self._sender.memory.known
        self._sender.start()
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())
        atexit.register(self._at_exit)

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
        life = Life(self.accept, name, identity)
        with self._making:
            self._lives[name] = life
        return life

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
        life = self._life(name, incarnation, identity, anew=True)
        return life.started(node=node, pid=pid)

    def worker_up(self, name: str, *, incarnation: int | None = None, **identity: Unpack[Identity]) -> Receipt[int]:
        """It can serve.

        Without `incarnation` it is about this publisher's life of `name`: the one made last by `worker`,
        `worker_started` or `worker_up`, and a new one if there is none or its process is known to be gone.
        """
        return self._life(name, incarnation, identity, anew=False).up()

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
        validate_name("worker", name)
        life = self._lives.get(name)
        simple = is_simple(evidence, reason) and not identity
        if incarnation is None:
            if life is not None and not life.ended:
                life.identity.update(identity)
                return life.down(evidence=evidence, reason=reason)
            down = WorkerDown(worker=name, incarnation=0, evidence=evidence, reason=reason, **identity)
            return self.accept(down, ask=True, checked=simple)
        down = WorkerDown(worker=name, incarnation=incarnation, evidence=evidence, reason=reason, **identity)
        if life is not None and life.incarnation == incarnation and ends_for_good(down):
            life.ended = True
        return self.accept(down, checked=simple and type(incarnation) is int and 0 < incarnation <= MAX_INTEGER)

    def publish(self, fact: Fact) -> Receipt[int]:
        """Any fact, as it is; a worker's fact without `seen` gets what this publisher knows.

        Raises `InvalidFact` (also for a payload too large), `InvalidName`, `InvalidSubject`, `PublisherClosed` or
        `PublisherForked`.
        """
        return self.accept(fact)

    def probe(self, name: str, *, timeout: float = 2.0, **identity: Unpack[Identity]) -> Probe:
        """Check, then act: `with publisher.probe(name) as probe:` or `async with`. See `Probe`.

        Entering raises `LogUnavailable` if the log has not answered after `timeout` seconds.
        """
        validate_name("worker", name)

        def look() -> concurrent.futures.Future[Fence]:
            self._refuse_if_gone()
            return self._sender.submit(self._sender.look(name, timeout))

        return Probe(self.accept, look, name, identity)

    def accept(
        self,
        fact: Fact,
        *,
        life: LifeNumber | None = None,
        ask: bool = False,
        fence: Fence | None = None,
        checked: bool = False,
    ) -> Receipt[Any]:
        """For the handles `Life` and `Probe`; everybody else calls `publish`."""
        if self._gone is not None:
            self._refuse_if_gone()
        if not checked:
            self._check(fact, numbered_later=ask or life is not None)
        receipt: Receipt[Any] = Receipt(self._book)
        known = self._known.get(fact.worker, 0) if isinstance(fact, WorkerFact) else 0
        if not self._sender.intake.put(Entry(receipt, fact, time.monotonic(), known, life, ask, fence)):
            self._refuse_for_want_of_room(receipt)
        elif self._sender.intake.ended:
            self._sweep()
        return receipt

    def _check(self, fact: Fact, *, numbered_later: bool) -> None:
        """Raise now, where the caller can see it, what would make the fact unsendable later."""
        if numbered_later and isinstance(fact, WorkerFact) and not fact.incarnation:
            fact = msgspec.structs.replace(fact, incarnation=MAX_INTEGER)
        self._codec.draft(fact, id=_SOME_ID, time=_SOME_ID, publisher=self.name)

    def _life(self, name: str, incarnation: int | None, identity: Identity, *, anew: bool) -> Life:
        """This publisher's life of `name`, or a new one: of that number, or to be numbered by the log."""
        validate_name("worker", name)
        with self._making:
            life = self._lives.get(name)
            if incarnation is not None:
                if life is None or life.incarnation != incarnation:
                    life = self._lives[name] = Life(self.accept, name, identity, number=incarnation)
            elif anew or life is None or life.ended:
                life = self._lives[name] = Life(self.accept, name, identity)
        life.identity.update(identity)
        return life

    # ------------------------------------------------------------ how it is going, and the end

    def stats(self) -> PublisherStats:
        """Counts, and what holds facts up."""
        sender = self._sender
        counts, arriving = sender.counts, len(sender.intake)
        return PublisherStats(
            accepted=counts.accepted + arriving,
            acknowledged=counts.acknowledged,
            waiting=len(sender.open) + arriving,
            refused=counts.refused + self._overflow,
            superseded=counts.superseded,
            reconnects=sender.link.reconnects,
            connected=sender.link.connected,
            last_error=sender.trouble or self._store.error,
        )

    @property
    def left_unsent(self) -> tuple[Unsent, ...]:
        """What an earlier process accepted into the durable outbox, and nobody can send any more."""
        return self._store.lost

    def flush(self, timeout: float = 10.0) -> Flushed:
        """Wait until everything accepted so far has met its end, at most `timeout` seconds; say what has not been sent.

        Raises `WouldBlock` on the thread of a running event loop, `PublisherClosed` and `PublisherForked`.
        """
        if in_event_loop():
            raise WouldBlock("flush()", "await publisher.aflush()")
        self._refuse_if_gone()
        return self._sender.submit(self._sender.flush(timeout)).result()

    async def aflush(self, timeout: float = 10.0) -> Flushed:
        """As `flush`, for asyncio."""
        self._refuse_if_gone()
        return await asyncio.wrap_future(self._sender.submit(self._sender.flush(timeout)))

    def close(self, timeout: float = 10.0) -> Flushed:
        """Take no more facts, flush, and let go of the thread and the connection; say what has not been sent.

        What is still waiting after `timeout` seconds stays in the durable outbox (`kept`), or is lost. Its receipts end
        in `NotSent`. Closing again returns the same. Raises `WouldBlock` on the thread of a running event loop.
        """
        if in_event_loop():
            raise WouldBlock("close()", "await publisher.aclose()")
        if self._gone is PublisherForked:
            raise PublisherForked
        with self._closing:
            if self._closed is None:
                self._gone = PublisherClosed
                atexit.unregister(self._at_exit)
                flushed = self._sender.submit(self._sender.stop(timeout)).result()
                self._closed = self._clear_up(flushed)
        return self._closed

    async def aclose(self, timeout: float = 10.0) -> Flushed:
        """As `close`, for asyncio."""
        return await asyncio.to_thread(self.close, timeout)

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

    def _refuse_if_gone(self) -> None:
        if self._gone is PublisherForked:
            raise PublisherForked
        if self._gone is not None:
            raise PublisherClosed("the publisher is closed; make a new one")

    def _refuse_for_want_of_room(self, receipt: Receipt[Any]) -> None:
        error = OutboxFull(self._limit)
        receipt.settle(None, error)
        with self._making:
            self._overflow += 1
            told, now = self._overflow_told, time.monotonic()
            if now - told < 1:
                return
            self._overflow_told = now
        _log.warning("publisher.outbox.full", refused=self._overflow, reason=str(error))

    def _clear_up(self, flushed: Flushed) -> Flushed:
        """The thread is ending: whatever has no end yet is reported, and its receipt says so."""
        self._sender.join()
        self._store.close()
        left = [*self._sender.open.values(), *self._sweep()]
        given_up = [unsent for unsent in flushed.unsent if not unsent.kept]
        reason = f"{_CLOSED}: {self._sender.trouble}" if self._sender.trouble else _CLOSED
        return Flushed(flushed.sent, (*given_up, *(_give_up(entry, reason) for entry in left)))

    def _sweep(self) -> Iterable[Entry]:
        """What was accepted at the very moment of closing."""
        late = list(self._sender.intake.take())
        for entry in late:
            entry.receipt.settle(None, NotSent(_CLOSED))
            _log.warning("publisher.fact.unsent", id=entry.receipt.id, fact=entry.what, reason=_CLOSED)
        return late

    def _at_exit(self) -> None:
        unsent = self.close(timeout=0).unsent
        if unsent:
            _log.warning("publisher.exit.unsent", publisher=self.name, unsent=len(unsent), next="call close() before")

    def _forked(self) -> None:
        """In a forked child: there is no thread here, and nothing that was accepted is this process's to send."""
        self._gone = PublisherForked
        atexit.unregister(self._at_exit)
        self._book.lock = threading.Lock()
        for entry in (*self._sender.open.values(), *self._sender.intake.take()):
            entry.receipt.settle(None, PublisherForked())


def _give_up(entry: Entry, reason: str) -> Unsent:
    kept = entry.receipt.persisted
    if kept:
        reason += "; it is in the durable outbox"
    entry.receipt.settle(None, NotSent(reason))
    _log.warning("publisher.fact.unsent", id=entry.receipt.id, fact=entry.what, reason=reason, kept=kept)
    return entry.unsent(reason, kept=kept)


def _default_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"
