"""The fleet's log on JetStream: the real `EventLog`.

Appending many is one atomic batch, and every message carries its id, so that a repeated append is recognised. JetStream
says so only for a single message without expectations; otherwise a repetition is refused, as wrong last sequence or as
duplicate in a batch. So a refusal is never believed before one's own ids were looked for.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import structlog

from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.api import Refused, publish, question
from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.adapters.jetstream.direct import Pages
from rollbook.adapters.jetstream.pull import Broken, Pull
from rollbook.events import Draft, stream_name
from rollbook.events.times import rfc3339
from rollbook.projections.ports import (
    AppendConflict,
    HistoryHole,
    LogMisconfigured,
    LogState,
    LogUnavailable,
    Stored,
)

_log = structlog.get_logger(__name__)

MAX_BATCH: Final = 1000
"""Messages that JetStream takes in one atomic batch."""
_SLOWEST_RETRY: Final = 1.0
"""Seconds between two attempts to open a pull."""
_HEADERS: Final = 150
"""Bytes for the line before the headers, and for those of a batch."""
_WINDOW_MARGIN: Final = 5.0
"""Seconds looked further back than the duplicate window."""


class JetStreamLog:
    """The log of one fleet. `provision` has made its stream. Belongs to the client's loop.

    `timeout` (seconds) bounds every question; `patience` (seconds) is how long `read` keeps trying before it raises
    `LogUnavailable`. An id without an expectation is recognised within the stream's duplicate window (two minutes).
    `direct` reads without a consumer, by questions alone: slower, and all that a reader's credentials permit.
    """

    def __init__(
        self, client: Client, fleet: str, *, timeout: float = 5.0, patience: float = 10.0, direct: bool = False
    ) -> None:
        self._client = client
        self._stream = stream_name(fleet)
        self._timeout = timeout
        self._patience = patience
        self._way: type[Pull | Pages] = Pages if direct else Pull

    # ------------------------------------------------------------ appending

    async def append(self, drafts: Sequence[Draft], *, expect: Mapping[str, int] | None = None) -> list[int]:
        """Append all drafts, in order, or none; return their sequences.

        At most 1000 drafts, and no more expectations than drafts: each message carries one. Otherwise `ValueError`.
        Raises `AppendConflict` (nothing stored) or `LogUnavailable` (unknown; repeat with the same drafts).
        """
        expected = dict(expect or {})
        unique = list({draft.id: draft for draft in drafts}.values())
        stored = await self._store(unique, expected)
        return [stored[draft.id] for draft in drafts]

    async def _store(self, drafts: Sequence[Draft], expect: dict[str, int]) -> dict[str, int]:
        """Sequences by id."""
        if not drafts:
            return {}
        messages = _messages(drafts, expect)
        self._refuse_oversized(messages)
        try:
            if len(drafts) == 1:
                draft, headers = messages[0]
                ack = await publish(self._client, draft.subject, draft.payload, headers, timeout=self._timeout)
            else:
                ack = await self._publish_batch(messages)
        except Refused as exc:
            return await self._refused(drafts, expect, exc)
        first = ack.seq - len(drafts) + 1
        return {draft.id: first + index for index, draft in enumerate(drafts)}

    def _refuse_oversized(self, messages: Sequence[tuple[Draft, dict[str, str]]]) -> None:
        """The server would drop the connection, again at every retry."""
        for draft, headers in messages:
            size = len(draft.payload) + _HEADERS + sum(len(name) + len(value) + 4 for name, value in headers.items())
            if size > self._client.max_payload:
                raise LogMisconfigured(
                    f"stream {self._stream} cannot take a fact of {size} bytes on {draft.subject}: the server's "
                    f"max_payload is {self._client.max_payload}. Raise it there (its default is 1048576)"
                )

    async def _publish_batch(self, messages: Sequence[tuple[Draft, dict[str, str]]]) -> api.Ack:
        batch = self._client.new_inbox().rpartition(".")[2]
        for number, (_, headers) in enumerate(messages, 1):
            headers[api.BATCH_ID] = batch
            headers[api.BATCH_SEQUENCE] = str(number)
        *others, (draft, headers) = messages
        await self._client.tell(((d.subject, d.payload, h) for d, h in others), timeout=self._timeout)
        headers[api.BATCH_COMMIT] = "1"
        return await publish(self._client, draft.subject, draft.payload, headers, timeout=self._timeout)

    async def _refused(self, drafts: Sequence[Draft], expect: dict[str, int], refused: Refused) -> dict[str, int]:
        """Find out whether `drafts` were refused because they are stored already; store what is not."""
        if refused.err_code in api.WRONG_SEQUENCE:
            found = await self._find(drafts, expect)
            if len(found) == len(drafts):
                return found
            raise await self._conflict(expect, refused)
        if refused.err_code == api.DUPLICATE_IN_BATCH:
            found = await self._find(drafts, expect)
            if found:
                return found | await self._store([draft for draft in drafts if draft.id not in found], expect)
        if refused.err_code == api.BATCHES_OFF:
            raise LogMisconfigured(
                f"stream {self._stream} cannot append many facts or none: allow_atomic is False and must be True. "
                "Correct it (`nats stream edit`)"
            )
        raise LogUnavailable(f"stream {self._stream} did not take {len(drafts)} facts: {refused.description}")

    async def _find(self, drafts: Sequence[Draft], expect: Mapping[str, int]) -> dict[str, int]:
        """Which of `drafts` stand on their subjects: after the expectation, or within the duplicate window."""
        missing: dict[str, set[str]] = {}
        for draft in drafts:
            missing.setdefault(draft.subject, set()).add(draft.id)
        found: dict[str, int] = {}
        since: dict[str, Any] = {}
        if any(subject not in expect for subject in missing):
            info = await self._info()
            begin = (api.nanoseconds(info["ts"]) - info["config"]["duplicate_window"]) / api.NANO - _WINDOW_MARGIN
            since = {"start_time": rfc3339(begin)}
        for subject, ids in missing.items():
            start: dict[str, Any] = {"seq": expect[subject] + 1} if subject in expect else since
            while ids:
                message = await self._message({**start, "next_by_subj": subject})
                if message is None:
                    break
                fact_id = _id_of(message)
                if fact_id in ids:
                    ids.discard(fact_id)
                    found[fact_id] = message["seq"]
                start = {"seq": message["seq"] + 1}
        return found

    async def _conflict(self, expect: Mapping[str, int], refused: Refused) -> AppendConflict:
        """Which expectation was wrong. JetStream names the sequence only."""
        said = re.search(r"\d+$", refused.description)
        if len(expect) == 1:
            subject, expected = next(iter(expect.items()))
            return AppendConflict(subject, expected, int(said.group()) if said else None)
        for subject, expected in expect.items():
            newest = await self.last(subject)
            if (newest.sequence if newest else 0) != expected:
                return AppendConflict(subject, expected, newest.sequence if newest else 0)
        raise LogUnavailable(f"stream {self._stream} changed while it was asked ({refused.description}); try again")

    # ------------------------------------------------------------ reading

    async def read(self, after: int, subjects: Sequence[str] = ()) -> AsyncGenerator[Sequence[Stored]]:
        """Yield everything with a sequence above `after`, in order, in batches, then go on as facts arrive.

        `subjects` (wildcards are allowed, and none may cover another) leaves out the rest; by default all are read.
        Goes on after reconnections, lost consumers and lost deliveries. Closing the generator frees its consumer.
        Raises `LogUnavailable` when it cannot for `patience` seconds, or when the log has lost its end; and
        `HistoryHole` when the log was replaced by another one meanwhile.
        """
        identity: str | None = None
        newest: Stored | None = None
        pauses = 0
        while True:
            before = newest
            identity, newest, pull = await self._open(after, identity, newest, subjects)
            try:
                if before is not None:
                    batch = _after(before, await pull.batch())
                    if batch:
                        yield batch
                        newest = batch[-1]
                while True:
                    batch = await pull.batch()
                    yield batch
                    newest, pauses = batch[-1], 0
            except Broken as exc:
                after = newest.sequence if newest is not None else after
                _log.info("log.read.reopened", stream=self._stream, after=after, reason=str(exc))
            finally:
                await pull.close()
            await asyncio.sleep(min(_SLOWEST_RETRY, 0.01 * 2**pauses) if pauses else 0)
            pauses += 1

    async def _open(
        self, after: int, identity: str | None, newest: Stored | None, subjects: Sequence[str]
    ) -> tuple[str, Stored | None, Pull | Pages]:
        """Which log it is, the message at `after` by which it is known again, and a pull from behind that on.

        With `newest`, which was read at `after`, the pull begins with it.
        """
        until = time.monotonic() + self._patience
        while True:
            try:
                state = await self.state()
                _check(state, after, identity)
                first = after + 1 if newest is None else after
                known = await self.get(after) if newest is None else newest
                opening = self._way.open(self._client, self._stream, first, timeout=self._timeout, subjects=subjects)
                return state.identity, known, await opening
            except LogUnavailable as exc:
                if isinstance(exc, (_LostEnd, NotPermitted)) or self._client.is_closed or time.monotonic() > until:
                    raise
                _log.info("log.read.waiting", stream=self._stream, after=after, reason=str(exc))
                await asyncio.sleep(_SLOWEST_RETRY / 4)

    # ------------------------------------------------------------ looking

    async def state(self) -> LogState:
        """Ends and identity of the log now. Raises `LogUnavailable`."""
        info = await self._info()
        state = info["state"]
        first = state["first_seq"] if state["messages"] else state["last_seq"] + 1
        kept_from = int((info["config"].get("metadata") or {}).get(api.ARCHIVED_BEFORE, 0))
        at = api.nanoseconds(info["ts"]) / api.NANO
        return LogState(info["created"], max(first, kept_from), state["last_seq"], at)

    async def get(self, sequence: int) -> Stored | None:
        """The message at `sequence`, or None if the log does not hold it (any more). Raises `LogUnavailable`."""
        return _stored(await self._message({"seq": sequence})) if sequence > 0 else None

    async def last(self, subject: str) -> Stored | None:
        """The newest message on `subject` (wildcards are allowed), or None. Raises `LogUnavailable`."""
        return _stored(await self._message({"last_by_subj": subject}))

    async def _info(self) -> dict[str, Any]:
        return await api.stream_info(self._client, self._stream, timeout=self._timeout)

    async def _message(self, which: dict[str, Any]) -> dict[str, Any] | None:
        # Asked of the stream's leader. A direct get may be answered by a replica that has not heard the latest.
        try:
            answer = await question(self._client, f"STREAM.MSG.GET.{self._stream}", which, timeout=self._timeout)
        except Refused as exc:
            if exc.err_code == api.NO_MESSAGE:
                return None
            raise api.unavailable(self._stream, exc) from exc
        return dict(answer["message"])


class _LostEnd(LogUnavailable):
    """Told apart from an outage only inside this module: trying again does not help."""


def _check(state: LogState, after: int, identity: str | None) -> None:
    """Whether this is still the log that was read up to `after`."""
    if identity not in {None, state.identity}:
        raise HistoryHole(after + 1, "the stream was deleted and made anew")
    if state.last_sequence < after:
        raise _LostEnd(f"the log ends at {state.last_sequence}, but {after} was read already; it lost its end")


def _messages(drafts: Sequence[Draft], expect: Mapping[str, int]) -> list[tuple[Draft, dict[str, str]]]:
    """Each draft with its headers. An expectation stands on the first draft of its subject, or on any free one."""
    if len(drafts) > MAX_BATCH:
        msg = f"{len(drafts)} facts in one append; JetStream takes {MAX_BATCH}"
        raise ValueError(msg)
    left = dict(expect)
    messages: list[tuple[Draft, dict[str, str]]] = []
    free: list[dict[str, str]] = []
    for draft in drafts:
        headers = {api.MSG_ID: draft.id}
        messages.append((draft, headers))
        expected = left.pop(draft.subject, None)
        if expected is None:
            free.append(headers)
        else:
            headers[api.EXPECTED_SEQUENCE] = str(expected)
    if len(left) > len(free):
        msg = f"{len(expect)} expectations on {len(drafts)} facts; JetStream checks one per message"
        raise ValueError(msg)
    for headers, (subject, expected) in zip(free, left.items(), strict=False):
        headers[api.EXPECTED_SEQUENCE] = str(expected)
        headers[api.EXPECTED_SUBJECT] = subject
    return messages


def _after(newest: Stored, batch: Sequence[Stored]) -> Sequence[Stored]:
    """`batch` without `newest`, with which it overlaps. Raises `HistoryHole` if another message stands there now."""
    if batch[0].sequence != newest.sequence:
        return batch  # archived meanwhile; the reader checks that nothing is missing
    if (batch[0].subject, batch[0].payload) != (newest.subject, newest.payload):
        raise HistoryHole(newest.sequence, "another message stands there than was read before")
    return batch[1:]


def _stored(message: dict[str, Any] | None) -> Stored | None:
    if message is None:
        return None
    payload = base64.b64decode(message.get("data") or "")
    return Stored(message["seq"], message["subject"], payload, api.nanoseconds(message["time"]) / api.NANO)


def _id_of(message: dict[str, Any]) -> str:
    for line in base64.b64decode(message.get("hdrs") or "").split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == api.MSG_ID.encode():
            return value.strip().decode(errors="replace")
    return ""
