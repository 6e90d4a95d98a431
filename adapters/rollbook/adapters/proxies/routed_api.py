"""XTuner's routed API proxy (`/v1/models`): it takes changes and shows nothing.

docs/proxies/routed-api.md says how it behaves. In short: what is registered there stands in Rollbook's log alone; a
second registration of a worker would count twice; and a delete that names no worker wipes the whole model, so there is
no way to send one from here.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from rollbook.adapters.proxies.base import HttpProxy
from rollbook.adapters.proxies.http import Reply
from rollbook.adapters.proxies.kinds import ProxyConfig, ProxyKind
from rollbook.adapters.secret_ref import SecretRef
from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Listing,
    ProxyUnavailable,
    Target,
    Unsupported,
)

_OTHER_API: Final = "this is not the routed API; is admin_url right, and the kind?"
NO_KEY: Final = "EMPTY"
"""What workers without a key are given by convention: many clients cannot send none."""


class RoutedApiOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the routed API files workers under."""

    model_name: str
    """The model that clients ask for; every worker that this proxy serves is filed under it."""
    worker_key: SecretRef | None = None
    """The key that the workers ask for, handed to the proxy with each of them. By default `EMPTY`, for workers that ask
    for none."""

    def __post_init__(self) -> None:
        if not self.model_name.strip():
            raise ValueError("model_name is empty; write the name that clients ask for")


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of one model: all that a delete can be about. An empty `api_base` would mean every worker."""

    model_name: str
    api_base: str

    def __post_init__(self) -> None:
        if not self.model_name or not self.api_base:
            raise ValueError("a deployment has a model_name and an api_base: without one, a delete wipes the model")


class _Said(msgspec.Struct):
    """What an answer may hold beside its status."""

    error: object = None
    success: bool = True


class RoutedApiProxy(HttpProxy):
    """One routed API, with the workers of one model."""

    kind = "routed-api"
    capabilities = Capabilities(list=False, remove=True, tag=False, drain=False, async_add=False, probes_on_add=False)
    """It can be told, and not be asked."""
    no_drain = "the routed API has no draining"

    def __init__(self, config: ProxyConfig) -> None:
        options = config.options
        if not isinstance(options, RoutedApiOptions):
            raise TypeError(f"{config.name}: made with {type(options).__name__}, not with RoutedApiOptions")
        super().__init__(config)
        self._model = options.model_name
        self._worker_key = config.secrets.get("worker_key", NO_KEY)

    def __repr__(self) -> str:
        return f"RoutedApiProxy({self.name!r}, {self._http!r}, model={self._model!r})"

    async def list(self) -> Listing:
        """Raises `ProxyUnavailable`: there is no listing. `capabilities.list` says so beforehand."""
        raise ProxyUnavailable(f"{self.name}: the routed API has no listing")

    async def add(self, target: Target) -> Answer:
        """File exactly this worker, once: what may be there of it is deleted first, so that a repetition adds none."""
        if target.role != "regular":
            return Unsupported(f"the routed API does not tell {target.role} workers from others")
        if target.model is not None and target.model != self._model:
            return Unsupported(f"its pool has the model {target.model!r}, this proxy files under {self._model!r}")
        worker = Deployment(model_name=self._model, api_base=target.url)
        cleared = await self._delete(worker)
        if not isinstance(cleared, Done):
            return cleared
        body = {"model_name": worker.model_name, "api_key": self._worker_key, "api_base": worker.api_base}
        return self._read(await self._http.call("POST", "/v1/models/new", body))

    async def remove(self, entry: Entry) -> Answer:
        """Delete exactly the worker with this URL. One that is not there is `Done`."""
        return await self._delete(Deployment(model_name=self._model, api_base=entry.url))

    async def _delete(self, worker: Deployment) -> Answer:
        """The only place that deletes; a `Deployment` always names one worker."""
        body = {"model_name": worker.model_name, "api_base": worker.api_base}
        return self._read(await self._http.call("POST", "/v1/models/delete", body), gone_is_done=True)

    def _read(self, reply: Reply, *, gone_is_done: bool = False) -> Answer:
        """What a change came to. A 404 in the API's own words means that there is no such worker."""
        said = reply.read(_Said)
        if said is None:
            raise reply.unusable(_OTHER_API)
        if reply.status == HTTPStatus.NOT_FOUND and said.error is not None and gone_is_done:
            return Done()
        if said.error is not None:
            # Some servers repeat what they were sent, and this goes into the log.
            return Failed(str(said.error).replace(self._worker_key, "***")[:300])
        if reply.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
            raise reply.unusable(_OTHER_API)
        return Done() if said.success else Failed("the proxy answered that it did not succeed")


KIND: Final = ProxyKind(
    name=RoutedApiProxy.kind, make=RoutedApiProxy, options=RoutedApiOptions, model=True, serves_clients=False
)
