"""What JetStream answers to a publish, read into one of: a sequence, a conflict, a refusal for good, try again."""

from __future__ import annotations

from typing import Final

import msgspec

from rollbook.adapters.publisher.errors import Refused
from rollbook.adapters.publisher.wire import Answer
from rollbook.projections.ports import AppendConflict, LogUnavailable

_TOO_LARGE: Final = frozenset({10054, 10097})
_WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


def read_ack(answer: Answer, subject: str, expected: int | None = None) -> int:
    """The sequence that the log gave, also if it had the fact already.

    Raises `AppendConflict` (only with `expected`), `Refused`, or `LogUnavailable`: it is not stored, and may be later.
    """
    if answer.status:
        raise LogUnavailable(
            f"no stream takes {subject} (status {answer.status}); it is made when the fleet's controller starts"
        )
    try:
        ack = msgspec.json.decode(answer.payload, type=_PubAck)
    except msgspec.MsgspecError as exc:
        raise LogUnavailable(f"the answer to a publish on {subject} is no acknowledgement: {exc}") from exc
    if ack.error is None:
        return ack.seq
    if ack.error.err_code in _TOO_LARGE:
        raise Refused(f"JetStream refused the fact on {subject}: {ack.error.description}; make it smaller")
    if expected is not None and ack.error.err_code in _WRONG_LAST_SEQUENCE:
        raise AppendConflict(subject, expected)
    raise LogUnavailable(f"JetStream did not take the fact on {subject}: {ack.error.description}")
