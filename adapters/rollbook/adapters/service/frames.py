"""How a reply travels: as few messages as the server's `max_payload` allows, in order, with a header that says which.

A small reply is one message of plain JSON, as any NATS tool shows it. A large one (10,000 workers' status) is deflated,
and cut if that is not enough.

| header | means |
|---|---|
| `Rollbook-Frame: progress` | on the way; JSON of the verb's progress |
| `Rollbook-Frame: alive` | still at work; empty |
| `Rollbook-Part: 2/3` | a part of the reply; without the header it is whole |
| `Rollbook-Encoding: deflate` | the joined parts are zlib-deflated JSON |
| `Nats-Service-Error`, `Nats-Service-Error-Code` | there is no reply; the body is a `Problem` |
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from rollbook.events import RollbookError

FRAME: Final = "Rollbook-Frame"
PART: Final = "Rollbook-Part"
ENCODING: Final = "Rollbook-Encoding"
PROGRESS: Final = "progress"
ALIVE: Final = "alive"
ALIVE_SECONDS: Final = 2.0
"""Between two signs of life to who waits."""
DEFLATE: Final = "deflate"

PLAIN_BYTES: Final = 64 * 1024
"""Up to which size a reply is left as it is."""
HEADER_BYTES: Final = 4096
"""Left free in every message: headers count towards `max_payload`."""
MOST_BYTES: Final = 512 * 1024
"""Of one message, also where the server would take more: others wait behind it on the same connection."""
MOST_INFLATED: Final = 1024 * 1024 * 1024
"""What a reply may become; a longer one is none of ours."""


class BrokenReply(RollbookError):
    """What came is no whole reply."""


def cut(reply: bytes, max_payload: int) -> Iterator[tuple[bytes, dict[str, str]]]:
    """The messages of a reply: body and headers."""
    room = max(1, min(max_payload - HEADER_BYTES, MOST_BYTES))
    if len(reply) <= min(PLAIN_BYTES, room):
        yield reply, {}
        return
    body = zlib.compress(reply, 1)
    parts = -(-len(body) // room)
    for number in range(parts):
        headers = {ENCODING: DEFLATE}
        if parts > 1:
            headers[PART] = f"{number + 1}/{parts}"
        yield body[number * room : (number + 1) * room], headers


class Joining:
    """Puts a reply together again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def take(self, body: bytes, headers: Mapping[str, str]) -> bytes | None:
        """The reply, if this was its last message. Raises `BrokenReply`."""
        number, _, of = headers.get(PART, "1/1").partition("/")
        if number != str(len(self._parts) + 1) or not of.isdecimal():
            msg = f"part {headers.get(PART)} of a reply came after {len(self._parts)}; ask again"
            raise BrokenReply(msg)
        self._parts.append(body)
        if len(self._parts) < int(of):
            return None
        whole = b"".join(self._parts)
        return _inflate(whole) if headers.get(ENCODING) == DEFLATE else whole


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        whole = inflater.decompress(body, MOST_INFLATED)
    except zlib.error as exc:
        msg = f"a reply cannot be inflated: {exc}; ask again"
        raise BrokenReply(msg) from exc
    if not inflater.eof:
        raise BrokenReply("a reply ends too early, or is far too long; ask again")
    return whole
