"""sglang-router 0.3 (`/workers`): adds and removes are promises, and what it lists is the only truth.

Measured on 0.3.2; docs/sglang.md says how the router behaves and why each call here is as it is. In short: an add is
queued and its job may fail later; a removal names a uuid, which the router turns into a URL and queues; an entry keeps
the labels of its first registration; a restart forgets everything and gives new uuids.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from rollbook.adapters.proxies.http import AdminHttp, Reply
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.adapters.proxies.workers_api import Refusal, WorkersReader, listed_url, refused
from rollbook.events import InvalidName, validate_name
from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Listing,
    Pending,
    Target,
    Unsupported,
)

FLEET_LABEL: Final = "rollbook.fleet"
WORKER_LABEL: Final = "rollbook.worker"
INCARNATION_LABEL: Final = "rollbook.incarnation"

_CAPABILITIES: Final = Capabilities(
    list=True, remove=True, tag=True, drain=False, async_add=True, probes_on_add=True, adds_in_flight=4
)
_INCARNATION: Final = re.compile(r"[1-9][0-9]{0,15}")
"""As many digits as the largest has: with fewer, an entry of ours would be nobody's, and outlive its worker."""

_OTHER_API: Final = "this is not the sglang-router 0.3 API; is admin_url right, and the router not older?"


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


class SglangProxy:
    """One sglang-router. The fleet is written into every entry, and names whose entries these are."""

    def __init__(self, config: ProxyConfig) -> None:
        self._name = config.name
        self._fleet = config.fleet
        self._http = AdminHttp(config)
        self._reader = WorkersReader(config.name)

    def __repr__(self) -> str:
        return f"SglangProxy({self._name!r}, {self._http!r}, fleet={self._fleet!r})"

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self._name

    @property
    def kind(self) -> str:
        """`sglang`."""
        return KIND.name

    @property
    def capabilities(self) -> Capabilities:
        """Ten jobs are carried out at a time and an add of a dead worker holds one for up to half an hour; so four."""
        return _CAPABILITIES

    def canonical_url(self, url: str) -> str:
        """The router lists a URL as it was added; so it is added, and read, in its canonical spelling."""
        return canonical_url(url)

    async def list(self) -> Listing:
        """All of `GET /workers`, which has no pages. The router does not tell its version."""
        reply = await self._http.call("GET", "/workers")
        if reply.status == HTTPStatus.NOT_FOUND:
            raise reply.unusable(_OTHER_API)
        return Listing(self._reader.entries(reply, _Worker, _entry))

    async def add(self, target: Target) -> Answer:
        """Queue an add with our labels. `Pending` holds the uuid that the router gave to the URL."""
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

    async def drain(self, entry: Entry) -> Answer:
        """Not offered: requests in flight finish after a removal anyway."""
        return Unsupported("sglang-router has no draining; a removed worker finishes what it is working on")

    async def remove(self, entry: Entry) -> Answer:
        """Queue a removal by uuid. A uuid that the router does not know is not there: `Done`, as far as it can say."""
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

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()


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


KIND: Final = ProxyKind(name="sglang", make=SglangProxy, roles=True, bootstrap=True)
