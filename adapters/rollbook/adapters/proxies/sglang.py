"""sglang-router (`/workers`): adds and removes are promises, and what it lists is the only truth.

Measured on 0.3.2 and 0.2.4; docs/proxies/sglang.md says how the router behaves and why each call here is as it is. In
short: an add is queued and its job may fail later; a removal names an id (0.3: a uuid; 0.2: the URL), which is queued
too; an entry keeps the labels of its first registration; a restart forgets everything. Nobody has to say which version
it is: a router before 0.2, which has another API (`sglang_old`), is known by what it does not list.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from rollbook.adapters.proxies import sglang_old
from rollbook.adapters.proxies.base import HttpProxy
from rollbook.adapters.proxies.http import Reply
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.proxies.sglang_old import OLD_CAPABILITIES
from rollbook.adapters.proxies.workers_api import Refusal, WorkersReader, list_urls, listed_url, refused
from rollbook.events import InvalidName, validate_name
from rollbook.projections.ports import Answer, Capabilities, Done, Entry, Failed, Listing, Pending, Target

FLEET_LABEL: Final = "rollbook.fleet"
WORKER_LABEL: Final = "rollbook.worker"
INCARNATION_LABEL: Final = "rollbook.incarnation"

_CAPABILITIES: Final = Capabilities(
    list=True, remove=True, tag=True, drain=False, async_add=True, probes_on_add=True, adds_in_flight=4
)
_INCARNATION: Final = re.compile(r"[1-9][0-9]{0,15}")
"""As many digits as the largest has: with fewer, an entry of ours would be nobody's, and outlive its worker."""

_OTHER_API: Final = "this is not the API of an sglang-router; is admin_url right, and the kind?"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_ID: Final = "none"
_VERSION_BY_CODE: Final = {"BAD_REQUEST": "0.3", "WORKER_NOT_FOUND": "0.2"}
"""What a router says of the id `none`, and so which version it is: 0.3 wants a uuid, 0.2 a URL."""


class _Worker(msgspec.Struct):
    """Only what cannot be missing has a type; a label of somebody else's must not hide an entry."""

    id: str
    url: str
    is_healthy: Any = None
    metadata: Any = None


class _Accepted(msgspec.Struct):
    worker_id: str


class _Job(msgspec.Struct):
    job_type: str
    status: str
    message: str | None = None


class _WorkerState(msgspec.Struct):
    worker_type: str
    """`unknown` for a URL that is not registered."""
    job_status: _Job | None = None
    """The last job for the URL, whoever asked for it, unless it succeeded."""


class SglangProxy(HttpProxy):
    """One sglang-router. The fleet is written into every entry, and names whose entries these are."""

    kind = "sglang"
    no_drain = "sglang-router has no draining; a removed worker finishes what it is working on"

    def __init__(self, config: ProxyConfig) -> None:
        super().__init__(config)
        self._fleet = config.fleet
        self._reader = WorkersReader(config.name)
        self._version: str | None = None
        """`0.3`, `0.2` or `0.1`, by what was listed last; None before that. May be another one by now."""

    def __repr__(self) -> str:
        return f"SglangProxy({self.name!r}, {self._http!r}, fleet={self._fleet!r})"

    @property
    def capabilities(self) -> Capabilities:
        """Those of the version that was seen last; before any was seen, of 0.2 and later.

        Ten jobs are carried out at a time and an add of a dead worker holds one for up to half an hour; so four adds.
        """
        return OLD_CAPABILITIES if self._version == sglang_old.VERSION else _CAPABILITIES

    async def list(self) -> Listing:
        """All of `GET /workers`, which has no pages; where there is none, of `GET /list_workers`. Finds the version."""
        listing = await self._list()
        self._version = listing.version
        return listing

    async def _list(self) -> Listing:
        reply = await self._http.call("GET", "/workers")
        if reply.status == HTTPStatus.NOT_FOUND:
            if reply.body:  # a page of another program, or of a worker to whom a router of another kind passed it on
                raise reply.unusable(_OTHER_API)
            return Listing(await list_urls(self._http, _OTHER_API), version=sglang_old.VERSION)
        entries = self._reader.entries(reply, _Worker, _entry)
        if entries:
            return Listing(entries, version="0.3" if _UUID.fullmatch(entries[0].handle) else "0.2")
        return Listing(entries, version=await self._ask_version())

    async def _ask_version(self) -> str | None:
        """By what it says of an id that is none; None for an answer that no version is known to give."""
        reply = await self._http.call("GET", _path(_NO_ID))
        refusal = reply.read(Refusal)
        return None if refusal is None else _VERSION_BY_CODE.get(refusal.code)

    async def add(self, target: Target) -> Answer:
        """Queue an add with our labels. `Pending` holds the id that the router gave to the URL."""
        if self._version == sglang_old.VERSION:
            return await sglang_old.add_old(self._http, target)
        body: dict[str, Any] = {
            "url": target.url,
            "worker_type": target.role,
            "labels": {
                FLEET_LABEL: self._fleet,
                WORKER_LABEL: target.worker,
                INCARNATION_LABEL: str(target.incarnation),
            },
        }
        if target.bootstrap_port is not None:
            body["bootstrap_port"] = target.bootstrap_port
        if target.model is not None:
            body["model_id"] = target.model
        reply = await self._http.call("POST", "/workers", body)
        if reply.status == HTTPStatus.ACCEPTED:
            return Pending(reply.decode(_Accepted).worker_id)
        return _refused(reply)

    async def remove(self, entry: Entry) -> Answer:
        """Queue a removal by id. An id that the router does not know is not there: `Done`, as far as it can say.

        Where the id is the URL (0.2), the labels are read before: an entry that is somebody else's by now stays.
        """
        if self._version == sglang_old.VERSION:
            return await sglang_old.remove_old(self._http, entry)
        if not _UUID.fullmatch(entry.handle):
            reply = await self._http.call("GET", _path(entry.handle))
            if _unknown(reply):
                return Done()
            if reply.status == HTTPStatus.OK and not _same_life(_entry(reply.decode(_Worker)), entry):
                return Done()
        reply = await self._http.call("DELETE", _path(entry.handle))
        if reply.status == HTTPStatus.ACCEPTED:
            reply.decode(_Accepted)
            return Done()
        return Done() if _unknown(reply) else _refused(reply)

    async def outcome(self, pending: Pending) -> Answer:
        """What the URL's last job says, or that the URL is registered. Whose labels it has, only a listing tells.

        A job that refused a duplicate is `Failed`: the labels are those of whoever came first. A handle that the router
        does not know is `Pending`: it may have restarted, but the end of an earlier removal of the URL also wipes the
        state of the add that follows it.
        """
        reply = await self._http.call("GET", _path(pending.handle))
        if _unknown(reply):
            return pending
        if reply.status != HTTPStatus.OK:
            return _refused(reply)
        state = reply.decode(_WorkerState)
        job = state.job_status
        if job is not None and job.job_type == "AddWorker":
            failed = job.status == "failed"
            return Failed(job.message or "the router's job failed without a reason") if failed else pending
        return pending if state.worker_type == "unknown" else Done()


def _same_life(one: Entry, other: Entry) -> bool:
    return (one.fleet, one.worker, one.incarnation) == (other.fleet, other.worker, other.incarnation)


def _path(handle: str) -> str:
    return f"/workers/{quote(handle, safe='')}"


def _entry(worker: _Worker) -> Entry:
    labels: dict[str, Any] = worker.metadata if isinstance(worker.metadata, dict) else {}
    incarnation = labels.get(INCARNATION_LABEL)
    return Entry(
        url=listed_url(worker.url),
        handle=worker.id,
        fleet=_named("fleet", labels.get(FLEET_LABEL)),
        worker=_named("worker", labels.get(WORKER_LABEL)),
        incarnation=int(incarnation) if isinstance(incarnation, str) and _INCARNATION.fullmatch(incarnation) else None,
        healthy=worker.is_healthy if isinstance(worker.is_healthy, bool) else None,
    )


def _named(kind: str, label: Any) -> str | None:
    """A label that can be a name of ours, else None: anyone may write labels."""
    if not isinstance(label, str):
        return None
    try:
        return validate_name(kind, label)
    except InvalidName:
        return None


def _unknown(reply: Reply) -> bool:
    if reply.status != HTTPStatus.NOT_FOUND:
        return False
    refusal = reply.read(Refusal)
    if refusal is None or refusal.code != "WORKER_NOT_FOUND":
        raise reply.unusable(_OTHER_API)
    return True


def _refused(reply: Reply) -> Failed:
    """A refusal in the router's own words, or `ProxyUnavailable` if those are not its words."""
    return refused(reply, _OTHER_API if reply.status == HTTPStatus.NOT_FOUND else "is admin_url right?")


KIND: Final = ProxyKind(name=SglangProxy.kind, make=SglangProxy, roles=True, model=True, bootstrap=True)
