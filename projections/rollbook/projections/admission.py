"""Admission: the gates asked only before an add, and the address that is registered.

Everything here is asked at the moment of the call and kept nowhere [I6]. A "no" keeps a newcomer out and evicts nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from rollbook.events.facts.base import LONGEST_URL
from rollbook.projections import gates
from rollbook.projections.gates import Gate, Held
from rollbook.projections.policy import Policy
from rollbook.projections.ports import Located, ProviderError, Readiness, WorkerProvider
from rollbook.projections.roster import Roster
from rollbook.projections.worker import Worker

PROBES_IN_FLIGHT: Final = 32


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

    async def locate(self, name: str, incarnation: int, canonical: Callable[[str], str]) -> str | Held:
        """The URL of this very life, as the proxy spells it, or the gate that holds it back."""
        worker = self._roster().workers.get(name)
        if worker is None or worker.incarnation != incarnation:
            return Held(Gate.SERVING, f"incarnation {incarnation} is not the current one any more")
        if (held := gates.weights(self._roster(), worker)) is not None:
            return held
        located = await self._ask_provider(worker)
        if isinstance(located, Held):
            return located
        if worker.incarnation != incarnation:
            return Held(Gate.SERVING, f"incarnation {incarnation} ended while its address was asked for")
        return self._url(worker, located, canonical)

    async def urls(self, names: Iterable[str], canonical: Callable[[str], str]) -> dict[str, str]:
        """Where these workers are now, in one question: of those whose present life may be added and is found there."""
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._provider.locate(names)
        except Exception:  # noqa: BLE001 - unknown is never no: who cannot be asked about has not moved
            return {}
        urls: dict[str, str] = {}
        for name, located in found.items():
            worker = self._roster().workers.get(name)
            if worker is None or gates.weights(self._roster(), worker) is not None:
                continue
            url = self._url(worker, located, canonical)
            if isinstance(url, str):
                urls[name] = url
        return urls

    def _url(self, worker: Worker, located: Located, canonical: Callable[[str], str]) -> str | Held:
        if (held := gates.address(worker, located)) is not None:
            return held
        url = gates.worker_url(self._policy.pool(worker.pool).url, located)
        if isinstance(url, Held):
            return url
        if len(url) > LONGEST_URL:
            return Held(Gate.ADDRESS_KNOWN, f"its url has {len(url)} letters; {LONGEST_URL} are allowed")
        try:
            return canonical(url)
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

    async def ready(self, name: str, url: str) -> Held | None:
        """Whether the worker at `url` says that it can take requests."""
        worker = self._roster().workers.get(name)
        path = self._policy.pool(None if worker is None else worker.pool).ready_path
        if path is None:
            return None
        try:
            async with asyncio.timeout(self._seconds):
                reason = await self._readiness.check(url, path)
        except TimeoutError:
            reason = f"GET {path}: no answer within {self._seconds:g} s"
        except Exception as exc:  # noqa: BLE001 - as with the provider
            reason = f"GET {path} failed: {type(exc).__name__}: {exc}"
        return None if reason is None else Held(Gate.READY, reason)
