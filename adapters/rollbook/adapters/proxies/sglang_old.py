"""sglang-router before 0.2: a URL is all that it knows of a worker, and a sentence is all that it answers.

Measured on 0.1.9. An add waits until the worker answers and is given up when nobody waits for it any more; a removal is
answered with 200 whatever it removed. `SglangProxy` finds out by itself that it talks to one of these.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from rollbook.adapters.proxies.http import AdminHttp, Reply
from rollbook.projections.ports import Answer, Capabilities, Done, Entry, Failed, Target, Unsupported

OLD_CAPABILITIES: Final = Capabilities(
    list=True, remove=True, tag=False, drain=False, async_add=False, probes_on_add=True, adds_in_flight=4
)
VERSION: Final = "0.1"

_LONGEST_SENTENCE: Final = 1000


async def add_old(http: AdminHttp, target: Target) -> Answer:
    """Add it and wait until the worker answers. "Already exists" is `Failed`: whose it is, the log must say."""
    if target.role != "regular":
        return Unsupported(
            f"this sglang-router is older than 0.2, and cannot be told that a worker is for {target.role}"
        )
    return _sentence(await http.call("POST", f"/add_worker?url={quote(target.url, safe='')}"))


async def remove_old(http: AdminHttp, entry: Entry) -> Answer:
    """Remove whatever has the entry's URL, which is all that the router knows of it; `Done` also if nothing has."""
    return _sentence(await http.call("POST", f"/remove_worker?url={quote(entry.handle, safe='')}"))


def _sentence(reply: Reply) -> Answer:
    if reply.status not in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST} or reply.content_type != "text/plain":
        raise reply.unusable()
    text = reply.body[:_LONGEST_SENTENCE].decode(errors="replace")
    return Done() if reply.status == HTTPStatus.OK else Failed(text or "the router refused without a reason")
