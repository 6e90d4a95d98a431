"""LMDeploy's proxy (`/nodes`): what it answers has to be read, because it says 200 to nearly everything.

docs/proxies/lmdeploy.md says how it behaves. In short: an add asks the worker for its models first, and fails inside a
200; a node that does not answer for 90 seconds is dropped; a second add of a URL replaces the first. `/nodes/terminate`
kills the worker, and is never called.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

import msgspec

from rollbook.adapters.proxies.base import HttpProxy
from rollbook.adapters.proxies.http import Reply
from rollbook.adapters.proxies.kinds import ProxyKind
from rollbook.adapters.proxies.workers_api import listed_url, require_readable
from rollbook.projections.ports import Answer, Capabilities, Done, Entry, Failed, Listing, Role, Target

_OTHER_API: Final = "this is not the API of LMDeploy's proxy; is admin_url right, and the kind?"
_ROLES: Final[dict[Role, int]] = {"regular": 1, "prefill": 2, "decode": 3}
"""LMDeploy numbers them: hybrid, prefill, decode."""
_SUCCESS: Final = re.compile(r"(added|deleted) successfully", re.IGNORECASE)
_NOT_THERE: Final = re.compile(r"is not in the pool")


class _Node(msgspec.Struct):
    """Only what is used, and nothing that could hide an entry by being odd."""

    unfinished: Any = None


class _Failure(msgspec.Struct):
    """What a failed add holds, as JSON inside the JSON string that is answered."""

    error_code: int | str
    text: str = ""


class _Message(msgspec.Struct):
    """How versions after 0.18 say it: `message` in a 200, `detail` in anything else."""

    message: str = ""
    detail: str = ""


class LmdeployProxy(HttpProxy):
    """One `lmdeploy serve proxy`."""

    kind = "lmdeploy"
    capabilities = Capabilities(list=True, remove=True, tag=False, drain=False, async_add=False, probes_on_add=True)
    """An add asks the worker for its models, and is answered after that."""
    no_drain = "LMDeploy's proxy has no draining; a removed worker finishes what it is working on"

    async def list(self) -> Listing:
        """All of `GET /nodes/status`."""
        reply = await self._http.call("GET", "/nodes/status")
        if reply.status != HTTPStatus.OK:
            raise reply.unusable(_OTHER_API)
        nodes = reply.decode(dict[str, _Node])
        require_readable(reply, len(nodes))
        return Listing(tuple(_entry(url, node) for url, node in nodes.items()))

    async def add(self, target: Target) -> Answer:
        """Add a node, or replace the one with that URL. `Failed` if the proxy did not get the worker's models."""
        body: dict[str, Any] = {"url": target.url}
        if target.role != "regular":
            body["status"] = {"role": _ROLES[target.role]}
        return _read(await self._http.call("POST", "/nodes/add", body), target.url)

    async def remove(self, entry: Entry) -> Answer:
        """Take the URL out. One that is not there is `Done`."""
        return _read(await self._http.call("POST", "/nodes/remove", {"url": entry.handle}), entry.url)


def _entry(url: str, node: _Node) -> Entry:
    running = node.unfinished if type(node.unfinished) is int and node.unfinished >= 0 else None
    return Entry(url=listed_url(url), handle=url, running=running)


def _read(reply: Reply, url: str) -> Answer:
    """What a change came to, by the words in the body. Words that are not known are no success."""
    if reply.status == HTTPStatus.OK:
        said = reply.read(str)
        if said is None:
            said = reply.decode(_Message).message
        if _SUCCESS.fullmatch(said.strip()):
            return Done()
        return Failed(_reason(said, url))
    message = reply.read(_Message)
    if message is None or not message.detail:
        raise reply.unusable(_OTHER_API)
    return Done() if _NOT_THERE.search(message.detail) else Failed(message.detail)


def _reason(said: str, url: str) -> str:
    try:
        failure = msgspec.json.decode(said, type=_Failure)
    except (msgspec.DecodeError, RecursionError):
        return f"{url}: the proxy answered {said[:300]!r}"
    return f"the proxy could not ask {url}: error {failure.error_code}, {failure.text[:300] or 'without a reason'}"


KIND: Final = ProxyKind(name=LmdeployProxy.kind, make=LmdeployProxy, roles=True)
