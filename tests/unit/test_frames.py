"""A reply of any size arrives whole, in messages that the server takes, or not at all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters.service.frames import (
    ENCODING,
    HEADER_BYTES,
    MOST_BYTES,
    PART,
    PLAIN_BYTES,
    BrokenReply,
    Joining,
    cut,
)

MEGABYTE = 1024 * 1024


def join(messages):
    joining = Joining()
    *others, last = messages
    assert all(joining.take(*message) is None for message in others)
    return joining.take(*last)


@given(st.binary(max_size=300_000), st.integers(HEADER_BYTES + 1, 2 * MEGABYTE))
def test_what_is_cut_is_joined_again(reply, max_payload):
    if max_payload < 2 * HEADER_BYTES:
        reply = reply[:5000]  # byte by byte it takes long
    messages = list(cut(reply, max_payload))
    assert join(messages) == reply
    assert all(len(body) + HEADER_BYTES <= max_payload for body, _ in messages)


def test_a_small_reply_is_one_message_as_any_tool_shows_it():
    assert list(cut(b'{"a":1}', MEGABYTE)) == [(b'{"a":1}', {})]


def test_what_does_not_deflate_goes_in_several_messages():
    reply = random.Random(1).randbytes(3 * MOST_BYTES)
    messages = list(cut(reply, MEGABYTE))
    assert [headers[PART] for _, headers in messages] == ["1/4", "2/4", "3/4", "4/4"]
    assert join(messages) == reply


def test_a_large_reply_of_text_is_small_on_the_way():
    reply = b'{"name":"rollout-1-0","phase":"serving"},' * 10_000
    ((body, headers),) = cut(reply, MEGABYTE)
    assert len(body) < PLAIN_BYTES < len(reply)
    assert headers == {ENCODING: "deflate"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([(b"b", {PART: "2/2"})], "part 2/2 of a reply came after 0"),
        ([(b"a", {PART: "1/3"}), (b"c", {PART: "3/3"})], "part 3/3 of a reply came after 1"),
        ([(b"a", {PART: "1/x"})], "part 1/x"),
        ([(b"not deflated", {ENCODING: "deflate"})], "cannot be inflated"),
        ([(next(cut(b"a" * 200_000, MEGABYTE))[0][:-9], {ENCODING: "deflate"})], "ends too early"),
    ],
)
def test_a_reply_that_is_not_whole_is_none(messages, said):
    joining = Joining()
    *others, last = messages
    for message in others:
        joining.take(*message)
    with pytest.raises(BrokenReply, match=said):
        joining.take(*last)
