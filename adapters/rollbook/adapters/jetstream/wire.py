"""Taking messages off the wire many at a time.

nats-py's parser keeps its bytes in one buffer, cuts every control line and every payload off its front, and awaits a
coroutine for each message: more than half of what reading a long log costs. Here the messages for sinks are cut out of
what the socket gave, one after the other, until something else comes: a line of another sort, or somebody else's
message. From there on nats-py's own parser goes on, as it would have. What comes for one sink without anything in
between is a run, and handed over in one call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

if TYPE_CHECKING:
    from rollbook.adapters.jetstream.client import Client

Arrived = tuple[bytes, bytes, bytes, bytes | None]
"""Subject, reply, payload, and raw headers (None if there are none)."""

Take = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Called with the parts of one message. Must not block."""

TakeRun = Callable[[Sequence[Arrived]], None]
"""Called with one message or more, in order. Must not block."""

_log = structlog.get_logger(__name__)

_LINE: Final = re.compile(rb"MSG (\S+) (\d+) (?:(\S+) )?(\d+)\r\n")
_LINE_WITH_HEADERS: Final = re.compile(rb"HMSG (\S+) (\d+) (?:(\S+) )?(\d+) (\d+)\r\n")
_H: Final = ord("H")
_CRLF: Final = 2


class BulkParser(Parser):
    """nats-py's parser, with a shorter way for messages that go to `sinks` (by the subscription's number)."""

    def __init__(self, client: Client, sinks: Mapping[int, TakeRun]) -> None:
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
        size, at, cut = len(data), 0, False
        whose: bytes | None = None
        take: TakeRun | None = None
        run: list[Arrived] = []
        while at < size:
            with_headers = data[at] == _H
            line = (_LINE_WITH_HEADERS if with_headers else _LINE).match(data, at)
            if line is None:
                break
            if with_headers:
                subject, sid, reply, before, length = line.groups()
            else:
                subject, sid, reply, length = line.groups()
                before = b"0"
            if sid != whose:
                if take is not None:
                    hand_over(take, run)
                    run = []
                whose, take = sid, self._sinks.get(int(sid))
                if take is None:
                    return at, False
            begin = line.end()
            end = begin + int(length)
            if end + _CRLF > size:
                cut = True
                break
            at = end + _CRLF
            if with_headers:
                middle = begin + int(before)
                run.append((subject, reply or b"", data[middle:end], data[begin:middle]))
            else:
                run.append((subject, reply or b"", data[begin:end], None))
        if take is not None and run:
            hand_over(take, run)
        return at, cut


def hand_over(take: TakeRun, run: Sequence[Arrived]) -> None:
    """Call `take`. What it raises would end nats-py's read loop without a word, so it is logged and goes no further."""
    try:
        take(run)
    except Exception:  # noqa: BLE001 - as said above
        _say_failed(run[0])


def one_by_one(take: Take) -> TakeRun:
    """For who wants each message by itself: what is wrong with one concerns no other."""

    def take_each(run: Sequence[Arrived]) -> None:
        for message in run:
            try:
                take(*message)
            except Exception:  # noqa: BLE001 - as said above
                _say_failed(message)

    return take_each


def _say_failed(message: Arrived) -> None:
    _log.exception("nats.sink.failed", subject=message[0].decode(errors="replace"))
