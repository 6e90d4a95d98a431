"""Admission: the gates asked only before an add, and the address that is registered.

Everything here is asked at the moment of the call and kept nowhere [I6]. A "no" keeps a newcomer out and evicts nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from rollbook.events import parse_worker
from rollbook.events.facts.base import LONGEST_URL
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Identity, Located, ProviderError, Readiness, WorkerProvider
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Worker

PROBES_IN_FLIGHT: Final = 32


class Site(msgspec.Struct, frozen=True, gc=False):
    """Where one life of a worker takes requests."""

    url: str
    """As the proxy spells it."""
    bootstrap_port: int | None = None
    """Where decode workers fetch from, of a pool that has such an address."""
    identity: Identity | None = None
    """How it says who it is; None if it cannot tell."""


class Admission:
    """Asks provider and worker. One for all lanes of a controller; `roster` gives the roster as it is now."""

    def __init__(
        self, policy: Policy, roster: Callable[[], Roster], provider: WorkerProvider, readiness: Readiness
    ) -> None:
        self._policy = policy
        self._roster = roster
        self._provider = provider
        self._readiness = readiness
        self._seconds = policy.reconcile.call_deadline
        self._listing: asyncio.Task[str | None] | None = None

    async def locate(
        self, name: str, incarnation: int, proxy: ProxyPolicy, canonical: Callable[[str], str]
    ) -> Site | Held:
        """Where this very life is, or the gate that holds it back from `proxy`."""
        worker = self._roster().workers.get(name)
        if worker is None or worker.incarnation != incarnation:
            return Held(Gate.SERVING, f"incarnation {incarnation} is not the current one any more")
        if (held := self._by_log(proxy, worker)) is not None:
            return held
        located = await self._ask_provider(worker)
        if isinstance(located, Held):
            return located
        if worker.incarnation != incarnation:
            return Held(Gate.SERVING, f"incarnation {incarnation} ended while its address was asked for")
        # Once more: who calls right after this adds nobody below a bar that was raised meanwhile.
        return self._by_log(proxy, worker) or self._site(worker, located, canonical)

    async def where(self, names: Iterable[str]) -> dict[str, Located]:
        """What the provider says now of these workers, in one question; nothing if it does not answer."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._provider.locate(names)
        except Exception:  # noqa: BLE001 - unknown is never no: who cannot be asked about has not moved
            return {}

    def site(self, name: str, located: Located, canonical: Callable[[str], str]) -> Site | Held:
        """Where the present life of `name` is by that answer."""
        worker = self._roster().workers.get(name)
        if worker is None:
            return Held(Gate.NOT_FORGOTTEN, "the log does not know it any more")
        return self._site(worker, located, canonical)

    def may_be_added(self, name: str, proxy: ProxyPolicy) -> bool:
        """Whether nothing that the log says would keep the present life of `name` from being added now."""
        worker = self._roster().workers.get(name)
        return worker is not None and self._by_log(proxy, worker) is None

    def _by_log(self, proxy: ProxyPolicy, worker: Worker) -> Held | None:
        return gates.admission_by_log(self._roster(), self._policy, proxy, worker)

    async def sites(self, names: Iterable[str], canonical: Callable[[str], str]) -> dict[str, Site]:
        """Where these workers are now: of those whose present life is found."""
        found = await self.where(names)
        sites = {name: self.site(name, located, canonical) for name, located in found.items()}
        return {name: site for name, site in sites.items() if isinstance(site, Site)}

    def _site(self, worker: Worker, located: Located, canonical: Callable[[str], str]) -> Site | Held:
        if (held := gates.address(worker, located)) is not None:
            return held
        pool = self._policy.pool(worker.pool)
        if pool.bootstrap is not None and pool.bootstrap not in located.addresses:
            return Held(Gate.ADDRESS_KNOWN, f"it has no address named {pool.bootstrap!r}, to bootstrap from")
        url = gates.worker_url(pool.url, located)
        if isinstance(url, Held):
            return url
        if len(url) > LONGEST_URL:
            return Held(Gate.ADDRESS_KNOWN, f"its url has {len(url)} letters; {LONGEST_URL} are allowed")
        port = None if pool.bootstrap is None else located.addresses[pool.bootstrap].port
        try:
            return Site(canonical(url), port, located.identity)
        except ValueError as exc:
            return Held(Gate.ADDRESS_KNOWN, f"{url!r} cannot be registered: {exc}")

    async def _ask_provider(self, worker: Worker) -> Located | Held:
        try:
            async with asyncio.timeout(self._seconds):
                found = (await self._provider.locate([worker.name])).get(worker.name)
        except TimeoutError:
            return Held(Gate.ADDRESS_KNOWN, f"the provider gave no answer within {self._seconds:g} s")
        except ProviderError as exc:
            return Held(Gate.ADDRESS_KNOWN, str(exc))
        except Exception as exc:  # noqa: BLE001 - as with proxies: whatever it is, one worker waits for it, not the fleet
            return Held(Gate.ADDRESS_KNOWN, f"the provider failed: {type(exc).__name__}: {exc}")
        return Held(Gate.ADDRESS_KNOWN, "the provider does not know it") if found is None else found

    async def ready(self, name: str, site: Site) -> Held | None:
        """Whether the worker at `site` says that it can take requests, and is who it should be."""
        path = self._ready_path(name)
        reason = None if path is None else await self._probe(site.url, path, site.identity)
        return None if reason is None else Held(Gate.READY, reason)

    # -------------------------------------------------------------- asked before an inferred removal [I12]

    async def not_listed_yet(self) -> str | None:
        """None once the provider has given one complete listing; until then it is asked, and this is the reason."""
        if self._listing is None:
            self._listing = asyncio.create_task(self._list())
        listing = self._listing
        reason = await asyncio.shield(listing)
        if reason is not None and self._listing is listing:
            self._listing = None
        return reason

    async def _list(self) -> str | None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._provider.list_workers()
        except TimeoutError:
            return f"the provider has not been listed yet: no answer within {self._seconds:g} s"
        except Exception as exc:  # noqa: BLE001 - as above: a provider that fails has listed nothing
            return f"the provider has not been listed yet: {exc}"
        return None

    async def absent(self, name: str, url: str) -> str | None:
        """Why nobody serves at `url`, or somebody else than `name` does; None if it answers, or cannot be asked."""
        path = self._ready_path(name)
        if path is None:
            return None
        identity: Identity | None = None
        with contextlib.suppress(Exception):  # whoever cannot be asked who it is, is asked whether it is there
            async with asyncio.timeout(self._seconds):
                located = (await self._provider.locate([name])).get(name)
                identity = None if located is None else located.identity
        return await self._probe(url, path, identity)

    def can_be_asked(self, name: str) -> bool:
        """Whether `name` has a page to answer on."""
        return self._ready_path(name) is not None

    def _ready_path(self, name: str) -> str | None:
        worker = self._roster().workers.get(name)
        return self._policy.pool(parse_worker(name).pool if worker is None else worker.pool).ready_path

    async def _probe(self, url: str, path: str, identity: Identity | None) -> str | None:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._readiness.check(url, path, identity)
        except TimeoutError:
            return f"GET {path}: no answer within {self._seconds:g} s"
        except Exception as exc:  # noqa: BLE001 - as with the provider
            return f"GET {path} failed: {type(exc).__name__}: {exc}"
