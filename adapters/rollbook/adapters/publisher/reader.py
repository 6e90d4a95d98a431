"""What a publisher asks the log: who spoke last about a worker, what was said since, which life is the current one.

The last sequence is asked of the stream's leader; the messages themselves may come from any replica, a thousand at a
time, so a replica that lags behind the leader's answer counts as no answer.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from rollbook.adapters.jetstream.api import Refused, question
from rollbook.adapters.jetstream.client import Message
from rollbook.adapters.jetstream.direct import page_of_messages
from rollbook.adapters.publisher.link import ASK_WITHIN, Link
from rollbook.events import Codec, Fact, Undecodable, UnknownFact, WorkerFact, stream_name, worker_subject
from rollbook.events.facts.base import Incarnation
from rollbook.events.times import parse_rfc3339
from rollbook.projections.ports import LogUnavailable


class Found(msgspec.Struct, frozen=True, gc=False):
    """One message on a subject."""

    sequence: int
    id: str
    """Of the fact; empty for what was published without one."""
    stored_at: float
    """Seconds since the epoch by the log's clock."""
    payload: bytes


class Census(msgspec.Struct, frozen=True, gc=False):
    """What the log says about a worker's lives, up to a sequence of its subject."""

    sequence: int = 0
    stored_at: float = 0.0
    """When that was stored, by the log's clock: another log has another message there."""
    incarnation: int = 0
    """The highest; 0 if there was none."""
    first: int = 0
    """The sequence of its first fact."""
    began: float = 0.0
    """When that was stored, by the log's clock."""


class _Numbered(msgspec.Struct):
    incarnation: Incarnation


class Reader:
    """Asks through whatever connection there is. Every method raises `LogUnavailable` when there is no answer."""

    def __init__(self, codec: Codec, link: Link) -> None:
        self._codec = codec
        self._link = link
        self._stream = stream_name(codec.fleet)
        self._census: dict[str, Census] = {}

    async def last(self, subject: str) -> tuple[int, float]:
        """Sequence of the last message on `subject` and when it was stored; zeros if there is none."""
        stored = await self._link.log().last(subject)
        return (stored.sequence, stored.stored_at) if stored is not None else (0, 0.0)

    async def after(self, subject: str, sequence: int) -> list[Found]:
        """All messages on `subject` above `sequence`, in order."""
        return await self._between(subject, sequence, (await self.last(subject))[0])

    async def census(self, worker: str) -> Census:
        """The lives of `worker`. Only what is new since the last question is read, and the last before it.

        All of the subject counts and not only its last message, which may be a late fact about an earlier life.
        """
        subject = worker_subject(self._codec.fleet, worker)
        known = self._census.get(worker, Census())
        last, _ = await self.last(subject)
        found = await self._between(subject, max(known.sequence - 1, 0), last)
        if known.sequence:
            if found and (found[0].sequence, found[0].stored_at) == (known.sequence, known.stored_at):
                del found[0]
            else:  # archived meanwhile, or the log lost its end, or was made anew
                known, found = Census(), await self._between(subject, 0, last)
        for message in found:
            known = self._count(known, message, subject)
        self._census[worker] = known
        return known

    async def clock(self) -> float:
        """What to add to this process's monotonic clock to get a lower bound of the log's clock at that moment.

        The log stamped its answer before it came in, so its clock is at least this far.
        """
        try:
            info: Any = await question(self._link.client(), f"STREAM.INFO.{self._stream}", timeout=ASK_WITHIN)
            return parse_rfc3339(info["ts"]) - time.monotonic()
        except (Refused, LookupError, ValueError) as exc:
            raise LogUnavailable(f"stream {self._stream} does not tell the time ({exc})") from exc

    async def _between(self, subject: str, sequence: int, last: int) -> list[Found]:
        found: list[Found] = []
        while (reached := found[-1].sequence if found else sequence) < last:
            client = self._link.client()
            page = await page_of_messages(client, self._stream, subject, reached + 1, timeout=ASK_WITHIN)
            if not page:
                raise LogUnavailable(f"the replica of {self._stream} that answered lags behind its leader")
            found += map(_found, page)
        return found

    def _count(self, known: Census, message: Found, subject: str) -> Census:
        """`known` and one more message. Whatever is not a fact of ours counts for nothing."""
        sequence, stored_at = message.sequence, message.stored_at
        try:
            incarnation = incarnation_of(self._codec.decode(message.payload, subject=subject, sequence=sequence).fact)
        except Undecodable:
            incarnation = 0
        if incarnation > known.incarnation:
            return Census(sequence, stored_at, incarnation, first=sequence, began=stored_at)
        return msgspec.structs.replace(known, sequence=sequence, stored_at=stored_at)


def _found(answer: Message) -> Found:
    headers = answer.headers()
    stored_at = parse_rfc3339(headers["Nats-Time-Stamp"])
    return Found(int(headers["Nats-Sequence"]), headers.get("Nats-Msg-Id", ""), stored_at, answer.payload)


def incarnation_of(fact: Fact) -> int:
    """Also of a fact that only a later version knows: numbering must not fall behind it."""
    if isinstance(fact, WorkerFact):
        return fact.incarnation
    if isinstance(fact, UnknownFact):
        try:
            return msgspec.json.decode(fact.data, type=_Numbered).incarnation
        except msgspec.MsgspecError:
            return 0
    return 0
