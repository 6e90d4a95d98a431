"""Reading by questions alone, page by page, without a consumer: for credentials that may not make one.

Whoever may make a consumer can make the server deliver messages to any subject in the account, a service's included,
whatever he may publish himself (measured). So a reader gets no such right, and asks: `DIRECT.GET` hands out a thousand
messages at a time. Any replica may answer that, also one that lags, so it is held against what the stream's leader says
is the last message: a page that is too short is no end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from rollbook.adapters.jetstream.api import NANO, NO_MESSAGE, Refused, nanoseconds, question, stream_info, unavailable
from rollbook.adapters.jetstream.client import Client, Message
from rollbook.adapters.jetstream.pull import Broken
from rollbook.projections.ports import LogUnavailable, Stored

PAGE: Final = 1000
"""Messages per question: the most that JetStream hands out."""
MAX_BYTES: Final = 4 << 20
"""Bytes per question."""
POLL: Final = 0.25
"""Seconds between two looks at whether there is more."""

_END: Final = frozenset({204, 404})
"""Statuses after the last message: the page is complete; there is none."""


async def page(client: Client, stream: str, on: str, first: int, *, timeout: float) -> list[Stored]:
    """What stands on the subject `on` (wildcards are allowed) from sequence `first` on, as much as one page holds.

    Raises `LogUnavailable`.
    """
    return [_stored(message) for message in await page_of_messages(client, stream, on, first, timeout=timeout)]


async def page_of_messages(client: Client, stream: str, on: str, first: int, *, timeout: float) -> list[Message]:
    """The same with its headers, for who asks more of them than `Stored` holds."""
    asked = {"seq": max(first, 1), "next_by_subj": on, "batch": PAGE, "max_bytes": MAX_BYTES}
    subject = f"$JS.API.DIRECT.GET.{stream}"
    *messages, end = await client.ask_for_many(
        subject, msgspec.json.encode(asked), is_last=lambda message: message.status > 0, timeout=timeout
    )
    if end.status not in _END:
        raise LogUnavailable(
            f"stream {stream} cannot be read directly (status {end.status}): is JetStream up, and does the stream have "
            "allow_direct?"
        )
    return messages


async def last_on(client: Client, stream: str, subject: str, *, timeout: float) -> int:
    """Sequence of the newest message on `subject` by the leader's word, 0 if there is none. Raises `LogUnavailable`."""
    try:
        answer = await question(client, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}, timeout=timeout)
    except Refused as exc:
        if exc.err_code == NO_MESSAGE:
            return 0
        raise unavailable(stream, exc) from exc
    return int(answer["message"]["seq"])


def _stored(message: Message) -> Stored:
    headers = message.headers()
    stored_at = nanoseconds(headers["Nats-Time-Stamp"]) / NANO
    return Stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], message.payload, stored_at)


class Pages:
    """Reads one stream from one sequence on, as `Pull` does. Made by `open`; must be closed.

    No server says that a stream was made anew, or that it has lost its end. So each look at it is compared with the
    first one, and what happened while the connection was gone is left to whoever opens another one.
    """

    def __init__(self, client: Client, stream: str, first: int, subjects: Sequence[str], timeout: float) -> None:
        self._client = client
        self._stream = stream
        self._next = max(first, 1)
        self._subjects = list(subjects) or [">"]
        self._timeout = timeout
        self._created: str | None = None
        self._broken = False

    @classmethod
    async def open(
        cls, client: Client, stream: str, first: int, *, timeout: float, subjects: Sequence[str] = ()
    ) -> Pages:
        """Begin at sequence `first`, or the next one that there is. Asks nothing yet."""
        pages = cls(client, stream, first, subjects, timeout)
        client.disconnections.add(pages._disconnected)
        return pages

    async def batch(self) -> Sequence[Stored]:
        """The next messages, at least one; waits for it. Raises `Broken`."""
        try:
            while not self._broken:
                found = await self._step()
                if found:
                    return found
        except LogUnavailable as exc:
            raise Broken(str(exc)) from exc
        raise Broken("the connection was lost")

    async def _step(self) -> list[Stored]:
        """All that is certainly next, in order; nothing if there is none now, after a pause."""
        info = await stream_info(self._client, self._stream, timeout=self._timeout)
        end, self._created = info["state"]["last_seq"], self._created or info["created"]
        if info["created"] != self._created:
            raise Broken("the stream was deleted and made anew")
        if end < self._next - 1:
            raise Broken(f"the stream ends at {end}, and {self._next - 1} was there before")
        if end < self._next:
            await asyncio.sleep(POLL)
            return []
        found: list[Stored] = []
        bound = end
        for subject in self._subjects:
            last = await last_on(self._client, self._stream, subject, timeout=self._timeout)
            if last < self._next:
                continue
            got = await page(self._client, self._stream, subject, self._next, timeout=self._timeout)
            found += got
            reached = got[-1].sequence if got else self._next - 1
            if reached < last:
                bound = min(bound, reached)
        ready = sorted((one for one in found if one.sequence <= bound), key=lambda one: one.sequence)
        if bound < self._next:
            await asyncio.sleep(POLL)  # the replica that answered lags behind the leader
        self._next = max(bound + 1, self._next)
        return ready

    def _disconnected(self) -> None:
        self._broken = True

    async def close(self) -> None:
        """Listen no more for the loss of the connection."""
        self._client.disconnections.discard(self._disconnected)
