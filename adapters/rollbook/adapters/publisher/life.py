"""A handle on one life of one worker."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypedDict, get_args

import msgspec

from rollbook.adapters.publisher.entry import Fence, LifeNumber
from rollbook.adapters.publisher.errors import PublisherError
from rollbook.adapters.publisher.receipt import Receipt
from rollbook.events import (
    Evidence,
    Fact,
    InvalidFact,
    WeightsLoaded,
    WorkerDown,
    WorkerDraining,
    WorkerFact,
    WorkerResumed,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.events.facts.base import LONGEST_LEASE

EVIDENCE: Final = frozenset(get_args(Evidence))
_FINAL: Final = frozenset({"exited", "actor_dead"})
"""Evidence after which the same process cannot come back."""
_SHORT: Final = 1000


class Identity(TypedDict, total=False):
    """What a fact can say about its worker beside the name; needed only for free names and for cells of several."""

    pool: str
    cell: str
    rank: int
    cell_size: int
    cell_incarnation: int
    entrypoint: bool


class Leased(msgspec.Struct, frozen=True, gc=False):
    """A life that is to be heard of outside the log."""

    worker: str
    incarnation: int
    lease: float
    """Seconds."""


class Accept(Protocol):
    """How a handle hands its facts to the publisher."""

    def __call__(
        self,
        fact: Fact,
        *,
        life: LifeNumber | None = None,
        ask: bool = False,
        fence: Fence | None = None,
        checked: bool = False,
    ) -> Receipt[Any]:
        """`checked` says that the fact is certainly valid, which saves the caller the full check."""
        ...


class Life:
    """One life, numbered once by the log: with its first fact, whichever that is.

    Made by `publisher.worker(name)`; every such call is a new life. Calling `up()` twice on one handle is one life.
    The methods that publish return at once, from any thread; the facts of a life arrive in the order of the calls.
    They raise `InvalidFact`, `PublisherClosed` or `PublisherForked`.
    """

    def __init__(self, accept: Accept, name: str, identity: Identity, *, number: int = 0) -> None:
        self.name = name
        self.lease: float | None = None
        """Seconds within which this publisher lets hear of it, as it said with `up`."""
        self.ended = False
        """Whether this publisher said that the process is gone (down as `exited` or `actor_dead`, or retired)."""
        self._accept = accept
        self._identity = identity
        self._number = LifeNumber(number)
        self._first: Receipt[int] | None = None

    def __repr__(self) -> str:
        return f"<Life {self.name}/{self.incarnation or 'not numbered yet'}>"

    @property
    def incarnation(self) -> int | None:
        """The number, or None until the log has given it."""
        return self._number.value or None

    @property
    def being_numbered(self) -> bool:
        """Whether its first fact is on its way to the log, which numbers it."""
        return not self._number.value and self._first is not None and self._first.error is None

    async def numbered(self) -> int:
        """Wait for the number. Raises what its first fact ended with, or `PublisherError` if there is none yet."""
        while not self._number.value:
            await self._opening()
        return self._number.value

    def incarnation_result(self, timeout: float | None = None) -> int:
        """As `numbered`, for threads. Raises `TimeoutError` after `timeout` seconds, and `WouldBlock` on a loop."""
        while not self._number.value:
            self._opening().result(timeout)
        return self._number.value

    def started(self, *, node: str | None = None, pid: int | None = None) -> Receipt[int]:
        """The process began; it cannot serve yet."""
        return self.publish(WorkerStarted, node=node, pid=pid)

    def up(self, *, lease: float | None = None) -> Receipt[int]:
        """It can serve. With `lease` (seconds) this publisher goes on to say, outside the log, that it lives.

        If that ends without a word the controller asks the worker, and only then says that it is down.
        """
        if lease is None:
            return self.say(WorkerUp, checked=True)
        receipt = self.say(WorkerUp, lease=checked_lease(self.name, lease))
        self.lease = lease
        return receipt

    def down(self, *, evidence: Evidence = "exited", reason: str = "") -> Receipt[int]:
        """This life is over, or cannot serve until it is up again."""
        return self.say(
            WorkerDown, checked=evidence in EVIDENCE and is_simple(reason), evidence=evidence, reason=reason
        )

    def suspended(self, *, reason: str = "", until: str | None = None, ttl: float | None = None) -> Receipt[int]:
        """Asleep on purpose: for `ttl` seconds, or until `until` (RFC 3339, by the log's clock), or until resumed."""
        return self.publish(WorkerSuspended, reason=reason, until=until, ttl=ttl)

    def resumed(self, *, reason: str = "") -> Receipt[int]:
        """Awake again."""
        return self.publish(WorkerResumed, reason=reason)

    def draining(self, *, reason: str = "", deadline_seconds: float | None = None) -> Receipt[int]:
        """About to stop: no new requests."""
        return self.publish(WorkerDraining, reason=reason, deadline_seconds=deadline_seconds)

    def retired(self, *, reason: str = "") -> Receipt[int]:
        """It left on purpose."""
        return self.publish(WorkerRetired, reason=reason)

    def weights_loaded(self, version: int) -> Receipt[int]:
        """It holds this version of the weights."""
        return self.publish(WeightsLoaded, version=version)

    def publish(self, fact: type[WorkerFact], /, **fields: Any) -> Receipt[int]:
        """Any fact about this life: its class and own fields, as in `life.publish(WorkerSuspected, reason="slow")`."""
        return self.say(fact, **fields)

    def say(
        self, fact: type[WorkerFact], /, *, identity: Identity | None = None, checked: bool = False, **fields: Any
    ) -> Receipt[int]:
        """For the publisher: `identity` is said from now on, and `checked` that the fields are certainly valid."""
        known = {**self._identity, **identity} if identity else self._identity
        made = fact(worker=self.name, incarnation=self._number.value, **known, **fields)
        receipt = self._accept(made, life=self._number, checked=checked and not known)
        self._identity = known
        if not self._number.value and (self._first is None or self._first.error is not None):
            self._first = receipt
        if ends_for_good(made):
            self.ended = True
        return receipt

    def _opening(self) -> Receipt[int]:
        if self._first is None:
            raise PublisherError(f"{self.name}: a life is numbered with its first fact; call started() or up() first")
        return self._first


def checked_lease(worker: str, lease: float) -> float:
    """`lease`, if it can be one. JSON has no NaN, so the codec would take that for none."""
    if 0 < lease <= LONGEST_LEASE:
        return lease
    raise InvalidFact(
        f"{worker}: a lease of {lease} s is none; give seconds, above 0 and at most {LONGEST_LEASE} (a day)"
    )


def is_simple(reason: object) -> bool:
    """Whether a reason is certainly valid."""
    return isinstance(reason, str) and len(reason) <= _SHORT and reason.isascii()


def ends_for_good(fact: WorkerFact) -> bool:
    """Whether the process that `fact` is about cannot come back, so that the next one is a new life."""
    return isinstance(fact, WorkerRetired) or (isinstance(fact, WorkerDown) and fact.evidence in _FINAL)
