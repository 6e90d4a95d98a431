"""Taking messages off the wire many at a time.

nats-py's parser keeps its bytes in one buffer, cuts every control line and every payload off its front, and awaits a
coroutine for each message: more than half of what reading a long log costs. Here the messages for sinks are cut out of
what the socket gave, one after the other, until something else comes: a line of another sort, or somebody else's
message. From there on nats-py's own parser goes on, as it would have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

if TYPE_CHECKING:
    from rollbook.adapters.jetstream.client import Client

Take = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Called with subject, reply, payload and raw headers (None if there are none). Must not block."""

_log = structlog.get_logger(__name__)

_LINE: Final = re.compile(rb"MSG (\S+) (\d+) (?:(\S+) )?(\d+)\r\n")
_LINE_WITH_HEADERS: Final = re.compile(rb"HMSG (\S+) (\d+) (?:(\S+) )?(\d+) (\d+)\r\n")
_H: Final = ord("H")
_CRLF: Final = 2


class BulkParser(Parser):
    """nats-py's parser, with a shorter way for messages that go to `sinks` (by the subscription's number)."""

    def __init__(self, client: Client, sinks: Mapping[int, Take]) -> None:
        super().__init__(client)
        self._sinks = sinks

    async def parse(self, data: bytes = b"") -> None:
        """Dispatch what is whole; keep the rest for the next call."""
        if self.state == AWAITING_CONTROL_LINE and self._sinks:
            if self.buf:
                data = bytes(self.buf) + data
                self.buf.clear()
            at, cut = self._take(data)
            if at:
                data = data[at:]
            if cut:
                self.buf.extend(data)
                return
        await super().parse(data)

    def _take(self, data: bytes) -> tuple[int, bool]:
        """Hand over all messages at the front; how many bytes they had, and whether one for a sink is cut off."""
        sinks, size, at = self._sinks, len(data), 0
        while at < size:
            with_headers = data[at] == _H
            line = (_LINE_WITH_HEADERS if with_headers else _LINE).match(data, at)
            if line is None:
                return at, False
            if with_headers:
                subject, sid, reply, before, length = line.groups()
            else:
                subject, sid, reply, length = line.groups()
                before = b"0"
            take = sinks.get(int(sid))
            if take is None:
                return at, False
            begin = line.end()
            end = begin + int(length)
            if end + _CRLF > size:
                return at, True
            at = end + _CRLF
            middle = begin + int(before)
            hand_over(take, subject, reply or b"", data[middle:end], data[begin:middle] if with_headers else None)
        return at, False


def hand_over(take: Take, subject: bytes, reply: bytes, payload: bytes, headers: bytes | None) -> None:
    """Call `take`. What it raises would end nats-py's read loop without a word, so it is logged and goes no further."""
    try:
        take(subject, reply, payload, headers)
    except Exception:  # noqa: BLE001 - as said above
        _log.exception("nats.sink.failed", subject=subject.decode(errors="replace"))
