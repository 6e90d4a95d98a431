"""JetStream's own protocol, as far as the log needs it: JSON questions to its API, and publishing with headers.

Spoken directly, because nats-py has no word yet for atomic batches and would drop the stream settings that it does
not know when it writes a configuration back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from rollbook.adapters.jetstream.client import Client
from rollbook.projections.ports import LogError, LogUnavailable

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"

ARCHIVED_BEFORE: Final = "rollbook.archived_before"
"""In the stream's metadata: only single messages are left of what is older than this sequence."""

NO_STREAM: Final = 10059
"""err_code: there is no such stream."""
NO_MESSAGE: Final = 10037
"""err_code: there is no such message."""
WRONG_SEQUENCE: Final = frozenset({10071, 10164})
"""err_code: the expected last sequence was wrong."""
STREAM_EXISTS: Final = 10058
"""err_code: a stream of that name exists with another configuration."""
DUPLICATE_IN_BATCH: Final = 10201
"""err_code: an id of the batch is stored already, or twice in the batch."""
BATCHES_OFF: Final = 10174
"""err_code: the stream does not allow atomic batches."""

NANO: Final = 1_000_000_000

_UNAVAILABLE: Final = 503
_NO_ROOM: Final = frozenset({10002, 10023, 10028, 10047})
"""err_code: out of the account's resources, of the server's, of its memory, of its disk."""


class Refusal(msgspec.Struct, frozen=True):
    """Why JetStream said no."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Refused(LogError):
    """JetStream said no. Whoever asked knows what it means, and translates it."""

    def __init__(self, subject: str, refusal: Refusal) -> None:
        super().__init__(f"{subject}: {refusal.description} ({refusal.err_code})")
        self.err_code = refusal.err_code
        self.description = refusal.description


class Ack(msgspec.Struct, frozen=True):
    """The answer to a publish."""

    seq: int = 0
    """Of this message; of the last one for a batch."""
    duplicate: bool = False
    count: int = 0
    """How many messages the batch had; 0 if it was none."""
    error: Refusal | None = None


class _Failure(msgspec.Struct):
    error: Refusal | None = None


_acks = msgspec.json.Decoder(Ack)
_failures = msgspec.json.Decoder(_Failure)


async def question(client: Client, subject: str, body: dict[str, Any] | None = None, *, timeout: float) -> Any:
    """Ask `$JS.API.<subject>`, again where need be, and return the decoded answer.

    Raises `Refused` or `LogUnavailable`.
    """
    payload = msgspec.json.encode(body) if body is not None else b""
    answer = await client.ask(f"$JS.API.{subject}", payload, timeout=timeout, again=True)
    try:
        error = _failures.decode(answer).error
        if error is None:
            return msgspec.json.decode(answer)
    except msgspec.MsgspecError as exc:
        raise LogUnavailable(f"$JS.API.{subject}: the answer is not JetStream's ({exc})") from exc
    raise refused(subject, error)


async def stream_info(client: Client, stream: str, *, timeout: float) -> dict[str, Any]:
    """Configuration and state of a stream, as its leader has them. Raises `LogUnavailable`, also if there is none."""
    try:
        return dict(await question(client, f"STREAM.INFO.{stream}", timeout=timeout))
    except Refused as exc:
        raise unavailable(stream, exc) from exc


def unavailable(stream: str, refused: Refused) -> LogUnavailable:
    """What it means to a reader that JetStream said no to a question about the fleet's stream."""
    more = ""
    if refused.err_code == NO_STREAM:
        more = ": this NATS server has no log of the fleet; start `rollbook up`, which makes it, or correct the "
        more += "fleet's name or the server's address"
    return LogUnavailable(f"stream {stream}: {refused.description}{more}")


async def publish(client: Client, subject: str, payload: bytes, headers: dict[str, str], *, timeout: float) -> Ack:
    """Publish to a stream and wait for its acknowledgement. Raises `Refused` or `LogUnavailable`."""
    answer = await client.ask(subject, payload, headers=headers, timeout=timeout)
    try:
        ack = _acks.decode(answer)
    except msgspec.MsgspecError as exc:
        raise LogUnavailable(f"{subject}: somebody who is no stream answered ({exc})") from exc
    if ack.error is not None:
        raise refused(subject, ack.error)
    return ack


def refused(subject: str, error: Refusal) -> LogError:
    """What JetStream's no is: `LogUnavailable` if it may say yes later, with what to do about it; else `Refused`."""
    if error.err_code in _NO_ROOM:
        return LogUnavailable(
            f"{subject}: {error.description} ({error.err_code}): the server has no room for it. Free space on the disk "
            "of its store_dir, or raise its max_file_store (or the account's limit); what waits is sent then"
        )
    if error.code == _UNAVAILABLE:
        return LogUnavailable(f"{subject}: {error.description} ({error.err_code}); try again")
    return Refused(subject, error)


def nanoseconds(text: str) -> int:
    """A time as the server writes it, with up to nine digits of a second, since the epoch."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * NANO + int(f"{fraction:0<9}")
