"""Intents and outcomes of the steps at one proxy: written down, folded, and told to the lane's schedule [I5]."""

from __future__ import annotations

from typing import Final, Literal, TypedDict

import msgspec

from rollbook.events import Deregistered, Deregistering, Registered, Registering, RegistrationFailed
from rollbook.events.reasons import tellable
from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.plan import Remove
from rollbook.projections.lanes.retries import Retries
from rollbook.projections.log.projector import Projector
from rollbook.projections.log.writer import FencedWriter
from rollbook.projections.ports import Failed, Unsupported
from rollbook.projections.tell import Tell


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a step ended, for the lane's schedule."""

    retry: bool = False
    """There is more to do for this key, after a pause that grows with failures in a row."""
    scheduled: bool = False
    """That pause has been drawn already, and stands in the log."""
    follow: bool = False
    """The next step may be planned at once."""
    held: Held | None = None
    """The admission gate that keeps it out."""
    evict: Remove | None = None
    """An entry that must go first: another worker's, since a newer life owns its URL, or an older one of its own."""


class NotCalled(Failed, frozen=True, gc=False):
    """The call was not made, and is tried again after a pause.

    It might still be under way when the lease ends [I7], or the provider has just said something else than before.
    """


class NoAnswer(Failed, frozen=True, gc=False):
    """The proxy gave no usable answer: the call may have worked, and may still work."""


LONGEST_REASON: Final = 500
"""Letters of a reason that a fact takes over. Those of operators, workers and routers can be of any length."""

FINISHED: Final = Outcome()
FOLLOW: Final = Outcome(follow=True)
RETRY: Final = Outcome(retry=True)
SCHEDULED: Final = Outcome(retry=True, scheduled=True)


def held_back(held: Held, evict: Remove | None = None) -> Outcome:
    """A gate keeps it out for now."""
    return Outcome(retry=True, held=held, evict=evict)


class About(msgspec.Struct, frozen=True, gc=False):
    """Which life of which worker, and where."""

    worker: str
    incarnation: int
    url: str


class _Fields(TypedDict):
    proxy: str
    worker: str
    incarnation: int
    url: str


class Recorder:
    """Writes the facts of one proxy's registrations. Every call returns when the fold has passed what it wrote."""

    def __init__(self, proxy: str, projector: Projector, writer: FencedWriter, retries: Retries, tell: Tell) -> None:
        self._proxy = proxy
        self._projector = projector
        self._writer = writer
        self._retries = retries
        self._tell = tell

    async def registering(self, about: About, reason: str) -> int:
        """The intent to add; its sequence."""
        return await self._intent(Registering(**self._fields(about), cause=self._last(about), reason=reason))

    async def deregistering(self, about: About, reason: str, drain_seconds: float | None) -> int:
        """The intent to remove; its sequence."""
        return await self._intent(
            Deregistering(
                **self._fields(about),
                cause=self._last(about),
                reason=tellable(reason, LONGEST_REASON),
                drain_seconds=drain_seconds,
            )
        )

    async def registered(self, about: About, cause: int) -> Outcome:
        """It was seen to be listed."""
        await self._outcome(Registered(**self._fields(about), cause=cause), "proxy.registered")
        return FINISHED

    async def deregistered(self, about: About, cause: int) -> Outcome:
        """It was seen not to be listed."""
        await self._outcome(Deregistered(**self._fields(about), cause=cause), "proxy.deregistered")
        return FOLLOW

    async def refused(
        self, about: About, cause: int, action: Literal["register", "deregister"], answer: Failed | Unsupported
    ) -> Outcome:
        """The proxy said no: for now, or because its kind cannot do it."""
        retryable = isinstance(answer, Failed) and answer.retryable
        called = not isinstance(answer, NotCalled)
        return await self.failed(about, cause, action, answer.reason, retryable=retryable, called=called)

    async def failed(
        self,
        about: About,
        cause: int,
        action: Literal["register", "deregister"],
        reason: str,
        *,
        retryable: bool = True,
        called: bool = True,
    ) -> Outcome:
        """It did not work. What can work is tried again after a pause that is written down with it."""
        pause = self._retries.failed(about.worker) if retryable else None
        fact = RegistrationFailed(
            **self._fields(about),
            cause=cause,
            action=action,
            reason=tellable(reason, LONGEST_REASON),
            retryable=retryable,
            called=called,
            retry_seconds=None if pause is None else round(pause, 3),
        )
        await self._outcome(fact, "proxy.registration_failed")
        return FINISHED if pause is None else SCHEDULED

    async def not_called(
        self, about: About, cause: int, action: Literal["register", "deregister"], reason: str
    ) -> Outcome:
        """What the fold brought between the decision and the call speaks against it: it is planned anew at once."""
        told = tellable(f"not called: {reason}", LONGEST_REASON)
        fact = RegistrationFailed(**self._fields(about), cause=cause, action=action, reason=told, called=False)
        await self._outcome(fact, "proxy.registration_failed")
        return FOLLOW

    async def _intent(self, fact: Registering | Deregistering) -> int:
        sequence = await self._writer.write(fact)
        await self._projector.passed(sequence)
        return sequence

    async def _outcome(self, fact: Registered | Deregistered | RegistrationFailed, event: str) -> None:
        sequence = await self._writer.write(fact)
        self._tell(
            event,
            proxy=fact.proxy,
            worker=fact.worker,
            incarnation=fact.incarnation,
            url=fact.url,
            sequence=sequence,
            cause=fact.cause,
            **({"action": fact.action, "reason": fact.reason} if isinstance(fact, RegistrationFailed) else {}),
        )
        await self._projector.passed(sequence)

    def _fields(self, about: About) -> _Fields:
        return {"proxy": self._proxy, "worker": about.worker, "incarnation": about.incarnation, "url": about.url}

    def _last(self, about: About) -> int:
        """The fact that led to an intent."""
        worker = self._projector.state.roster.workers.get(about.worker)
        return 0 if worker is None else worker.last
