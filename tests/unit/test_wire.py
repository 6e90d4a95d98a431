"""Messages are taken off the wire in bulk, just as nats-py's own parser takes them, however the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsClient
from nats.protocol.parser import Parser
from structlog.testing import capture_logs

from rollbook.adapters.jetstream.wire import BulkParser, one_by_one

SINKS = (1, 2)
FIVE = [(b"1", b"v"), (b"1", b"w"), (b"2", b"x"), (b"1", b"y"), (b"1", b"z")]
names = st.from_regex(rb"[a-z]{1,5}(\.[a-z0-9$_-]{1,5}){0,3}", fullmatch=True)
payloads = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 2\r\nxx\r\n", b"PING\r\n"])


@st.composite
def messages(draw) -> bytes:
    subject, sid, payload = draw(names), draw(st.sampled_from([1, 2, 3])), draw(payloads)
    reply = draw(st.none() | names | st.just(b"123"))
    head = b" ".join([subject, str(sid).encode(), *([] if reply is None else [reply])])
    headers = draw(st.none() | st.just(b"NATS/1.0\r\nA: b\r\n\r\n") | st.just(b"NATS/1.0 100 Idle\r\n\r\n"))
    if headers is None:
        return b"MSG %s %d\r\n%s\r\n" % (head, len(payload), payload)
    size = len(headers) + len(payload)
    return b"HMSG %s %d %d\r\n%s%s\r\n" % (head, len(headers), size, headers, payload)


class Seen:
    """What a parser's client is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def take(self, sid: int):
        return lambda run: self.told.extend((sid, *message) for message in run)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.told.append((sid, subject, reply, data, headers))

    async def _process_ping(self) -> None:
        self.told.append(("ping",))

    async def _process_pong(self) -> None:
        self.told.append(("pong",))


async def parsed(parser: Parser, chunks: list[bytes]) -> None:
    for chunk in chunks:
        await parser.parse(chunk)


@given(
    st.lists(messages() | st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n"]), max_size=12),
    st.lists(st.integers(0, 600), max_size=8),
)
def test_it_tells_what_nats_tells_however_the_bytes_are_cut(parts, cuts):
    whole = b"".join(parts)
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    chunks = [whole[a:b] for a, b in itertools.pairwise(edges)]
    theirs, ours = Seen(), Seen()
    asyncio.run(parsed(Parser(theirs), [whole]))
    asyncio.run(parsed(BulkParser(ours, {sid: ours.take(sid) for sid in SINKS}), chunks))
    assert ours.told == theirs.told


def test_what_comes_together_for_one_sink_is_handed_over_together():
    runs = []
    sinks = {1: runs.append, 2: runs.append}
    asyncio.run(parsed(BulkParser(Seen(), sinks), [b"".join(b"MSG a %b 1\r\n%b\r\n" % one for one in FIVE)]))
    assert [[payload for _, _, payload, _ in run] for run in runs] == [[b"v", b"w"], [b"x"], [b"y", b"z"]]


def test_what_a_sink_raises_is_said_and_stops_nobody():
    seen = Seen()

    def broken(run: object) -> None:
        raise ValueError("no")

    parser = BulkParser(seen, {1: broken, 2: seen.take(2)})
    with capture_logs() as logs:
        asyncio.run(parsed(parser, [b"MSG a.b 1 2\r\nxx\r\nMSG c 2 2\r\nyy\r\n"]))
    assert [(entry["event"], entry["subject"]) for entry in logs] == [("nats.sink.failed", "a.b")]
    assert seen.told == [(2, b"c", b"", b"yy", None)]


def test_what_is_raised_about_one_message_concerns_no_other_where_they_are_taken_one_by_one():
    took = []

    def broken(subject: bytes, reply: bytes, payload: bytes, headers: bytes | None) -> None:
        took.append(payload)
        if payload == b"w":
            raise ValueError("no")

    parser = BulkParser(Seen(), dict.fromkeys(SINKS, one_by_one(broken)))
    with capture_logs() as logs:
        asyncio.run(parsed(parser, [b"".join(b"MSG a %b 1\r\n%b\r\n" % one for one in FIVE)]))
    assert [entry["event"] for entry in logs] == ["nats.sink.failed"]
    assert took == [b"v", b"w", b"x", b"y", b"z"]


def test_a_sink_that_is_gone_in_the_middle_gets_no_more():
    seen, sinks = Seen(), {}

    def once(run: object) -> None:
        del sinks[2]

    sinks |= {1: once, 2: seen.take("gone")}
    asyncio.run(parsed(BulkParser(seen, sinks), [b"MSG a 1 1\r\nx\r\nMSG a 2 1\r\ny\r\n"]))
    assert seen.told == [(2, b"a", b"", b"y", None)]


def test_the_client_of_nats_py_has_the_parser_that_is_replaced():
    assert isinstance(NatsClient()._ps, Parser)
