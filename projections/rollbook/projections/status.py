"""What `rollbook status` shows: the roster against what the proxies list at this moment, and why.

Looks with the same gates and the same plan as the reconciler, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from rollbook.projections import gates
from rollbook.projections.admission import PROBES_IN_FLIGHT, Admission
from rollbook.projections.decisions import DecisionStatus, decisions
from rollbook.projections.fold import State
from rollbook.projections.gates import Held
from rollbook.projections.listing import bounded
from rollbook.projections.observed import Observed, believed, observe
from rollbook.projections.plan import Add
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Listing, Located, ProviderError, Proxy, ProxyUnavailable, WorkerProvider
from rollbook.projections.urls import in_the_way
from rollbook.projections.worker import Worker


class Standing(StrEnum):
    """A worker at a proxy that serves its pool."""

    REGISTERED = "registered"
    OUT = "out"
    """Not listed, and a gate says why."""
    MISSING = "missing"
    """It belongs there, passes every gate, and is not listed: drift."""
    UNWANTED = "unwanted"
    """It is listed and does not belong there: drift."""
    UNKNOWN = "unknown"
    """The proxy does not answer."""


class RegistrationStatus(msgspec.Struct, frozen=True):
    """One worker at one proxy."""

    proxy: str
    state: Standing
    url: str | None
    gate: str | None
    reason: str | None


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker."""

    name: str
    pool: str | None
    cell: str | None
    rank: int
    incarnation: int
    phase: str
    since: str
    """RFC 3339: when it came into this phase, by the clock of who said so."""
    address: str | None
    """`host:port` by the provider's word now; None if it does not know or does not answer."""
    suspicion: str | None
    registrations: tuple[RegistrationStatus, ...]


class ProxyStatus(msgspec.Struct, frozen=True):
    """One proxy."""

    name: str
    kind: str
    reachable: bool
    reason: str | None
    """Why it is not reachable."""
    registered: int
    """Entries of ours that it lists and that belong there."""
    wanted: int
    """Workers that belong there and pass every gate."""
    foreign: tuple[str, ...]
    """URLs that it lists and Rollbook did not put there."""
    version: str | None


class FleetStatus(msgspec.Struct, frozen=True):
    """The whole fleet at one moment."""

    fleet: str
    sequence: int
    time: str
    converged: bool
    """Every proxy answers and lists exactly what is wanted and admissible."""
    workers: tuple[WorkerStatus, ...]
    proxies: tuple[ProxyStatus, ...]
    notes: tuple[str, ...] = ()
    """What could not be asked, for people."""
    decisions: tuple[DecisionStatus, ...] = ()
    """In the order in which they were made."""
    controller: str | None = None
    """Who leads; None if no controller was asked."""


class Look:
    """Takes one status."""

    def __init__(
        self,
        policy: Policy,
        state: State,
        *,
        proxies: Mapping[str, Proxy],
        provider: WorkerProvider,
        admission: Admission,
    ) -> None:
        self._policy = policy
        self._state = state
        self._proxies = proxies
        self._provider = provider
        self._admission = admission
        self._probes = asyncio.Semaphore(PROBES_IN_FLIGHT)
        self._notes: list[str] = []

    async def take(self, time: str) -> FleetStatus:
        """Ask provider and proxies now, each within the policy's call deadline."""
        listings = asyncio.gather(*(self._list(name) for name in self._proxies))
        located, answers = await asyncio.gather(self._locate(), listings)
        by_worker: dict[str, list[RegistrationStatus]] = {name: [] for name in self._state.roster.workers}
        proxies: list[ProxyStatus] = []
        for name, answer in zip(self._proxies, answers, strict=True):
            found, status = await self._at(name, answer)
            proxies.append(status)
            for worker, registration in found.items():
                by_worker.setdefault(worker, []).append(registration)
        workers = tuple(
            worker_status(worker, located.get(worker.name), tuple(by_worker[worker.name]))
            for worker in self._state.roster.workers.values()
        )
        drifted = {Standing.MISSING, Standing.UNWANTED, Standing.UNKNOWN}
        drift = any(r.state in drifted for registrations in by_worker.values() for r in registrations)
        converged = not drift and all(proxy.reachable for proxy in proxies)
        return FleetStatus(
            self._policy.fleet,
            self._state.sequence,
            time,
            converged,
            workers,
            tuple(proxies),
            tuple(self._notes),
            decisions(self._state.roster),
        )

    async def _locate(self) -> dict[str, Located]:
        names = list(self._state.roster.workers)
        if not names:
            return {}
        try:
            async with asyncio.timeout(self._policy.reconcile.call_deadline):
                return await self._provider.locate(names)
        except TimeoutError:
            self._notes.append("the provider gave no answer in time; addresses are unknown")
        except ProviderError as exc:
            self._notes.append(f"addresses are unknown: {exc}")
        return {}

    async def _list(self, name: str) -> Listing | str:
        proxy, record = self._proxies[name], self._state.ledger.look(name)
        if not proxy.capabilities.list:
            return record.reason if record.reachable is False else believed(record)
        try:
            return await bounded(proxy.list(), self._policy.call_seconds(self._policy.proxies[name]), "list")
        except ProxyUnavailable as exc:
            return str(exc)

    async def _at(self, name: str, answer: Listing | str) -> tuple[dict[str, RegistrationStatus], ProxyStatus]:
        """Every worker's standing at one proxy, by what it listed (or why it did not)."""
        served = self._policy.proxies[name]
        kind = self._proxies[name].kind
        if isinstance(answer, str):
            found = {
                worker: RegistrationStatus(name, Standing.UNKNOWN, None, None, answer)
                for worker in self._served(served)
            }
            return found, ProxyStatus(
                name, kind, reachable=False, reason=answer, registered=0, wanted=len(found), foreign=(), version=None
            )
        observed = observe(self._policy.fleet, self._state.ledger.look(name), answer, self._proxies[name].capabilities)
        names = dict.fromkeys([*self._served(served), *observed.owned])
        standings = await asyncio.gather(*(self._standing(worker, served, observed) for worker in names))
        found = dict(zip(names, standings, strict=True))
        registered = sum(r.state is Standing.REGISTERED for r in standings)
        missing = sum(r.state is Standing.MISSING for r in standings)
        return found, ProxyStatus(
            name,
            kind,
            reachable=True,
            reason=None,
            registered=registered,
            wanted=registered + missing,
            foreign=observed.foreign,
            version=answer.version,
        )

    def _served(self, served: ProxyPolicy) -> list[str]:
        """The workers whose pool this proxy serves."""
        return [worker.name for worker in self._state.roster.workers.values() if worker.pool in served.pools]

    async def _standing(self, name: str, served: ProxyPolicy, observed: Observed) -> RegistrationStatus:
        worker = self._state.roster.workers.get(name)
        listed = observed.owned.get(name, [])
        held = gates.standing(self._state.roster, self._policy, served, name)
        url = listed[0].entry.url if listed else None
        if held is not None:
            state = Standing.UNWANTED if listed else Standing.OUT
            return RegistrationStatus(served.name, state, url, str(held.gate), held.reason)
        current = 0 if worker is None else worker.incarnation
        if listed and any(own.incarnation != current for own in listed):
            return RegistrationStatus(served.name, Standing.UNWANTED, url, None, f"not of incarnation {current}")
        if listed:
            return RegistrationStatus(served.name, Standing.REGISTERED, url, None, None)
        async with self._probes:
            admitted = await self._admitted(name, current, served, observed)
        if isinstance(admitted, Held):
            return RegistrationStatus(served.name, Standing.OUT, None, str(admitted.gate), admitted.reason)
        told = self._state.ledger.look(served.name).registrations.get(name, {}).get(current)
        reason = "not registered yet" if told is None else f"{told.told}: {told.reason}".removesuffix(": ")
        return RegistrationStatus(served.name, Standing.MISSING, admitted, None, reason)

    async def _admitted(self, name: str, incarnation: int, served: ProxyPolicy, observed: Observed) -> str | Held:
        proxy = self._proxies[served.name]
        site = await self._admission.locate(name, incarnation, proxy.canonical_url)
        if isinstance(site, Held):
            return site
        add, state = Add(name, incarnation), self._state
        blocked = in_the_way(state, self._policy, served, proxy.capabilities, add, site.url, observed)
        if blocked is not None and blocked[1] is None:
            return blocked[0]
        return await self._admission.ready(name, site) or site.url


def worker_status(
    worker: Worker, located: Located | None, registrations: tuple[RegistrationStatus, ...]
) -> WorkerStatus:
    """A worker as it is shown; `located` is what the provider says of it, None if it was not asked or does not know."""
    primary = None
    if located is not None and located.incarnation in {0, worker.incarnation}:
        primary = located.addresses.get("primary")
    return WorkerStatus(
        worker.name,
        worker.pool,
        worker.cell,
        worker.rank,
        worker.incarnation,
        str(worker.phase),
        worker.since_time,
        None if primary is None else str(primary),
        worker.suspicion,
        registrations,
    )
