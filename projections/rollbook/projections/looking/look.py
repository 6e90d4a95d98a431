"""Takes one status: asks the proxies, the provider and the newcomers now, with the lanes' own gates and plan."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rollbook.events.times import parse_rfc3339, rfc3339
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.deciding.observed import Observed, Owned, observe
from rollbook.projections.deciding.occupied import in_the_way
from rollbook.projections.deciding.outdated import outdated
from rollbook.projections.deciding.plan import Add, removable
from rollbook.projections.lanes.admission import PROBES_IN_FLIGHT, Admission
from rollbook.projections.lanes.listing import listed_now
from rollbook.projections.looking.preview import withheld_at
from rollbook.projections.looking.status import (
    DRIFT,
    Failing,
    FleetStatus,
    ProxyStatus,
    RegistrationStatus,
    Standing,
    bars,
    restarts,
    worker_status,
)
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Listing, Located, ProviderError, Proxy, ProxyUnavailable, WorkerProvider
from rollbook.projections.state.decisions import decisions
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Registration, Told


class Look:
    """Takes one status.

    `withheld` is what the lanes withhold now, by proxy and worker; without it the log's last word is taken.
    """

    def __init__(
        self,
        policy: Policy,
        state: State,
        *,
        proxies: Mapping[str, Proxy],
        provider: WorkerProvider,
        admission: Admission,
        withheld: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._policy = policy
        self._state = state
        self._proxies = proxies
        self._provider = provider
        self._admission = admission
        self._withheld = {name: withheld_at(name, state.ledger.look(name), withheld) for name in proxies}
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
        drift = any(r.state in DRIFT for registrations in by_worker.values() for r in registrations)
        converged = not drift and all(proxy.reachable for proxy in proxies)
        return FleetStatus(
            self._policy.fleet,
            self._state.sequence,
            time,
            converged,
            workers,
            tuple(proxies),
            (*self._notes, *restarts(self._state.roster)),
            decisions(self._state.roster),
            weights=bars(self._state.roster),
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
        except Exception as exc:  # noqa: BLE001 - a provider is anybody's code
            self._notes.append(f"addresses are unknown: the provider failed: {type(exc).__name__}: {exc}")
        return {}

    async def _list(self, name: str) -> Listing | str:
        proxy, record = self._proxies[name], self._state.ledger.look(name)
        if record.reachable is False and not proxy.capabilities.list:
            return record.reason
        try:
            return await listed_now(proxy, record, self._policy.call_seconds(self._policy.proxies[name]))
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
        leaving = outdated(self._state, self._policy, served)
        standings = await asyncio.gather(*(self._standing(worker, served, observed, leaving) for worker in names))
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
            failing=self._failing(name, found),
            withheld=_in(found, Standing.WITHHELD),
            unsupported=_in(found, Standing.UNSUPPORTED),
            unpaired=self._unpaired(found),
        )

    def _unpaired(self, found: Mapping[str, RegistrationStatus]) -> dict[str, str]:
        waiting = (worker for worker, one in found.items() if one.url is not None and one.gate == Gate.PAIR_READY)
        pools = dict.fromkeys(self._state.roster.workers[worker].pool for worker in waiting)
        pairs = ((pool, self._policy.partner(pool)) for pool in pools)
        return {pool: partner for pool, partner in pairs if pool is not None and partner is not None}

    def _failing(self, proxy: str, found: Mapping[str, RegistrationStatus]) -> tuple[Failing, ...]:
        """Who is being tried again is among them: it did not work until now."""
        told = {worker: self._told(proxy, worker) for worker, one in found.items() if one.state in DRIFT}
        return tuple(
            Failing(
                worker,
                last.reason if last.told is Told.FAILED else f"{last.told}: being tried again",
                last.failures,
                _later(last.time, last.retry_seconds),
            )
            for worker, last in sorted(told.items())
            if last is not None and last.failures and last.told in {Told.FAILED, Told.REGISTERING, Told.DEREGISTERING}
        )

    def _told(self, proxy: str, worker: str) -> Registration | None:
        """The log's last word on any life of `worker`."""
        lives = self._state.ledger.look(proxy).registrations.get(worker, {})
        return max(lives.values(), key=lambda life: life.sequence, default=None)

    def _served(self, served: ProxyPolicy) -> list[str]:
        """The workers whose pool this proxy serves."""
        return [worker.name for worker in self._state.roster.workers.values() if worker.pool in served.pools]

    async def _standing(
        self, name: str, served: ProxyPolicy, observed: Observed, leaving: Mapping[str, str]
    ) -> RegistrationStatus:
        worker = self._state.roster.workers.get(name)
        listed = observed.owned.get(name, [])
        held = gates.standing(self._state.roster, self._policy, served, name)
        url = listed[0].entry.url if listed else None
        current = 0 if worker is None else worker.incarnation
        for own in listed:
            if held is not None or own.incarnation != current:
                why = (None, f"not of incarnation {current}") if held is None else (str(held.gate), held.reason)
                found = self._unwanted(served, own, *why)
                if found.state is not Standing.UNSUPPORTED or held is not None:
                    return found
        if held is not None or worker is None:
            return _at(served, Standing.OUT, None, held)
        mine = next((own for own in listed if own.incarnation == current and own.certain), None)
        if mine is not None:
            again = gates.admission_by_log(self._state.roster, self._policy, served, worker)
            if name in leaving and again is not None:
                return self._unwanted(served, mine, str(again.gate), again.reason)
            return _at(served, Standing.REGISTERED, url, again)
        async with self._probes:
            admitted = await self._admitted(name, current, served, observed)
        if isinstance(admitted, Held):
            out = Standing.PENDING_WEIGHTS if admitted.gate is Gate.WEIGHTS_CURRENT else Standing.OUT
            return _at(served, out, None, admitted)
        told = self._state.ledger.look(served.name).registrations.get(name, {}).get(current)
        reason = "not registered yet" if told is None else f"{told.told}: {told.reason}".removesuffix(": ")
        never = told is not None and told.told is Told.ADD_UNSUPPORTED
        return RegistrationStatus(
            served.name, Standing.UNSUPPORTED if never else Standing.MISSING, admitted, None, reason
        )

    def _unwanted(self, served: ProxyPolicy, own: Owned, gate: str | None, reason: str) -> RegistrationStatus:
        """An entry that does not belong there: it goes, or stays for now, or cannot go."""
        record = self._state.ledger.look(served.name)
        lives = record.registrations.get(own.worker, {})
        withheld = self._withheld[served.name].get(own.worker)
        state = Standing.UNWANTED
        if not removable(lives, own, self._proxies[served.name].capabilities):
            state, reason = Standing.UNSUPPORTED, f"{reason}; this proxy cannot remove it"
        elif withheld is not None:
            state, reason = Standing.WITHHELD, f"{reason}; {withheld}"
        return RegistrationStatus(served.name, state, own.entry.url, gate, reason)

    async def _admitted(self, name: str, incarnation: int, served: ProxyPolicy, observed: Observed) -> str | Held:
        proxy = self._proxies[served.name]
        site = await self._admission.locate(name, incarnation, served, proxy.canonical_url)
        if isinstance(site, Held):
            return site
        add, state = Add(name, incarnation), self._state
        blocked = in_the_way(state, self._policy, served, proxy.capabilities, add, site.url, observed)
        if blocked is not None and blocked[1] is None:
            return blocked[0]
        return await self._admission.ready(name, site) or site.url


def _at(served: ProxyPolicy, state: Standing, url: str | None, held: Held | None) -> RegistrationStatus:
    gate, reason = (None, None) if held is None else (str(held.gate), held.reason)
    return RegistrationStatus(served.name, state, url, gate, reason)


def _in(found: Mapping[str, RegistrationStatus], state: Standing) -> tuple[str, ...]:
    return tuple(sorted(worker for worker, one in found.items() if one.state is state))


def _later(time: str, seconds: float | None) -> str | None:
    """A time of a fact and so many seconds; None for what is no time."""
    if seconds is None:
        return None
    try:
        return rfc3339(parse_rfc3339(time) + seconds)
    except ValueError:
        return None
