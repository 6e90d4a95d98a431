"""A standing pull: one ephemeral consumer whose messages arrive in order, as they are stored, and never too many.

nats-py's own ways lose messages in silence (ordered consumer), wait for a message at a time (`fetch`), or hang when
the consumer is gone. Here every delivery is checked against the consumer's own numbering, the server proves with
heartbeats that it still delivers, and whatever goes wrong ends the pull with `Broken`: the log opens another one. A
consumer that lives and delivers nothing is found out by asking the stream, which is another witness than the consumer:
does it hold a message beyond the last one delivered?

The server may have at most two requests open, each of at most `BATCH` messages and `max_bytes` bytes, and gets another
one only when the reader comes back for more. So what is buffered here is bounded by the reader's own pace.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import nats.errors

from rollbook.adapters.jetstream.api import NANO, Refused, question
from rollbook.adapters.jetstream.client import Client, Sink
from rollbook.adapters.jetstream.wire import Arrived
from rollbook.projections.ending import end
from rollbook.projections.ports import LogError, LogUnavailable, Stored

BATCH: Final = 2048
"""Messages per request. Two requests are open at a time."""
MAX_BYTES: Final = 4 << 20
"""Bytes per request; more where the server allows larger messages."""
HEARTBEAT: Final = 1.0
"""Seconds between two signs of life of an idle consumer. It dies with the server that it is on: the sooner that is
seen, the less is added to the election of another leader."""
COMPARED: Final = 5
"""Heartbeats between two questions to the stream while nothing comes."""
GRACE: Final = 1.0
"""Seconds that a message which the stream holds may still be on its way."""
MISSED: Final = 3
"""So many heartbeats without a sign mean that the consumer is gone."""
EXPIRES: Final = 60.0
"""Seconds that a request stays open; then it is renewed."""
INACTIVE: Final = 30.0
"""Seconds after which the server removes a consumer that nobody asks any more."""

_ENDED: Final = (b"408", b"409 Message Size Exceeds MaxBytes", b"409 Batch Completed")
"""Statuses that end one request and nothing else; the rest of its credit comes back."""


_ACK: Final = 9
"""Tokens of `$JS.ACK.<stream>.<consumer>.<tries>.<sequence>.<delivery>.<nanoseconds>.<pending>`: the reply of every
delivery. With a JetStream domain there are two more before the stream, and one at the end."""


class Broken(Exception):
    """This pull delivers no more. Always caught where pulls are opened."""


class Pull:
    """Reads one stream from one sequence on. Made by `open`; must be closed."""

    def __init__(self, client: Client, stream: str, consumer: str, first: int, subjects: Sequence[str]) -> None:
        self._client = client
        self._stream = stream
        self._consumer = consumer
        self._subjects = subjects or [">"]
        self._newest = first - 1
        self._sink: Sink
        self._buffer: list[Stored] = []
        self._waiter: asyncio.Future[None] | None = None
        self._broken: str | None = None
        self._delivered = 0
        self._returned = 0
        self._requested = 0
        self._alive = True
        self._missed = 0
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._request = msgspec.json.encode(
            {
                "batch": BATCH,
                "max_bytes": max(MAX_BYTES, 2 * client.max_payload),
                "expires": int(EXPIRES * NANO),
                "idle_heartbeat": int(HEARTBEAT * NANO),
            }
        )
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, client: Client, stream: str, first: int, *, timeout: float, subjects: Sequence[str] = ()
    ) -> Pull:
        """Begin at sequence `first`, or the next one that there is. Raises `LogUnavailable`.

        `subjects` (wildcards are allowed, and none may cover another) leaves the rest of the stream to the server.
        """
        consumer = f"read_{client.new_inbox().rpartition('.')[2]}"
        config: dict[str, Any] = {
            "name": consumer,
            "description": "Rollbook reads the log",
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(first, 1),
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE * NANO),
        }
        if subjects:
            config["filter_subjects"] = list(subjects)
        try:
            body = {"stream_name": stream, "config": config}
            await question(client, f"CONSUMER.CREATE.{stream}.{consumer}", body, timeout=timeout)
        except Refused as exc:
            raise LogUnavailable(f"stream {stream} cannot be read: {exc.description}") from exc
        pull = cls(client, stream, consumer, max(first, 1), subjects)
        try:
            pull._sink = await client.sink_of_runs(pull._take)
        except (nats.errors.Error, OSError) as exc:
            raise LogUnavailable(f"stream {stream} cannot be read: {exc}") from exc
        client.disconnections.add(pull._disconnected)
        pull._watching = asyncio.create_task(pull._watch(), name=f"watch over {consumer}")
        return pull

    async def batch(self) -> Sequence[Stored]:
        """All that has arrived, at least one message; waits for it. Raises `Broken`, after the last one before it."""
        while True:
            if self._requested - self._returned <= BATCH and self._broken is None:
                await self._ask()
            if self._buffer:
                batch, self._buffer = self._buffer, []
                self._returned += len(batch)
                return batch
            if self._broken is not None:
                raise Broken(self._broken)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def close(self) -> None:
        """Let go of the consumer. Never raises; a server that does not hear it removes the consumer by itself."""
        self._client.disconnections.discard(self._disconnected)
        self._break("closed")
        if self._watching is not None:
            await end(self._watching)
        await self._sink.close()
        if self._client.is_connected:
            try:
                # Nobody waits for the answer: closing must not hang on a server that is leaving.
                await self._client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")
            except (nats.errors.Error, OSError):
                return

    async def _ask(self) -> None:
        self._requested += BATCH
        try:
            await self._client.publish(self._next, self._request, self._sink.subject)
        except (nats.errors.Error, OSError) as exc:
            self._break(str(exc))

    def _take(self, run: Sequence[Arrived]) -> None:
        self._alive = True
        append, newest, delivered = self._buffer.append, self._newest, self._delivered
        for subject, reply, payload, headers in run:
            tokens = reply.split(b".")
            if len(tokens) == _ACK:
                _, _, _, _, _, sequence, delivery, stored_at, _ = tokens
            elif len(tokens) > _ACK:
                sequence, delivery, stored_at = tokens[7:10]
            else:
                self._delivered = delivered
                self._status(headers or b"")
                continue
            if self._broken is not None:
                break
            delivered += 1
            if int(delivery) != delivered:
                self._break(f"delivery {int(delivery)} arrived after {delivered - 1}")
                break
            newest = int(sequence)
            append(Stored(newest, str(subject, "utf-8", "replace"), payload, int(stored_at) / NANO))
        self._newest, self._delivered = newest, delivered
        if self._buffer:
            self._wake()

    def _status(self, headers: bytes) -> None:
        status, _, rest = headers.removeprefix(b"NATS/1.0 ").partition(b"\r\n")
        if status.startswith(b"100"):
            delivered = _number(rest, b"Nats-Last-Consumer")
            if delivered is not None and delivered > self._delivered:
                self._break(f"{delivered} were delivered, {self._delivered} arrived")
        elif status.startswith(_ENDED):
            self._requested -= _number(rest, b"Nats-Pending-Messages") or 0
            self._wake()
        else:
            self._break(status.decode(errors="replace") or "an answer without a status")

    async def _watch(self) -> None:
        """Look after the consumer until the pull is broken. A busy loop reads what came first, then looks."""
        for beat in itertools.count(1):
            await asyncio.sleep(HEARTBEAT)
            if self._broken is not None:
                return
            self._missed = 0 if self._alive else self._missed + 1
            self._alive = False
            if self._missed >= MISSED:
                self._break(f"no sign of life for {MISSED * HEARTBEAT:g} s")
            elif self._waiter is not None and beat % COMPARED == 0:
                await self._compare(self._waiter)

    async def _compare(self, waiter: asyncio.Future[None]) -> None:
        """Break the pull if the stream holds a message that `waiter` waits for and does not get."""
        for subject in self._subjects:
            which = {"seq": self._newest + 1, "next_by_subj": subject}
            try:
                found = await question(self._client, f"STREAM.MSG.GET.{self._stream}", which, timeout=HEARTBEAT)
            except LogError:
                continue  # there is none; or nobody answers, which other signs tell
            await asyncio.wait([waiter], timeout=GRACE)
            if not waiter.done():
                held = found["message"]["seq"]
                self._break(f"the stream holds {held}, {self._newest} is the last that was delivered")
            return

    def _disconnected(self) -> None:
        self._break("the connection was lost")

    def _break(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _number(headers: bytes, name: bytes) -> int | None:
    """The value of one header that holds a number."""
    _, found, rest = headers.partition(name + b":")
    value = rest.partition(b"\r\n")[0].strip()
    return int(value) if found and value.isdigit() else None
