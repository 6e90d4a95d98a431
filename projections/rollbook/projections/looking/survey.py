"""Asking everybody whom a preview needs: what each proxy lists, where newcomers are, whether they are ready.

Changes nothing. The controller does it for whoever asks it, and a command does it by itself where no controller runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.observed import Observed, observe
from rollbook.projections.deciding.plan import Add
from rollbook.projections.lanes.admission import PROBES_IN_FLIGHT, Admission, Site
from rollbook.projections.lanes.listing import listed_now
from rollbook.projections.looking.preview import Answers, Line, Preview, lines_at, newcomers, steps_at, withheld_at
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Listing, Proxy, ProxyUnavailable
from rollbook.projections.state.fold import State


class Survey:
    """Takes previews of one fleet. Without `admission` nobody is asked about newcomers, and their URLs stay unknown.

    `withheld` is what the lanes withhold now, by proxy and worker; without it the log's last word is taken.
    """

    def __init__(
        self,
        policy: Policy,
        state: State,
        *,
        proxies: Mapping[str, Proxy],
        admission: Admission | None,
        withheld: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._policy = policy
        self._state = state
        self._proxies = proxies
        self._admission = admission
        self._withheld = withheld
        self._probes = asyncio.Semaphore(PROBES_IN_FLIGHT)

    async def take(self, time: str, only: Iterable[str] | None = None, notes: tuple[str, ...] = ()) -> Preview:
        """What a pass would do now at the proxies `only`, or at all. Proxies that do not answer are named."""
        names = list(self._proxies if only is None else only)
        found = await asyncio.gather(*(self._at(name) for name in names))
        lines: list[Line] = []
        unreachable: dict[str, str] = {}
        unrecorded = 0
        for name, one in zip(names, found, strict=True):
            if isinstance(one, str):
                unreachable[name] = one
            else:
                lines += one[0]
                unrecorded += one[1]
        return Preview(
            fleet=self._policy.fleet,
            sequence=self._state.sequence,
            time=time,
            lines=tuple(lines),
            unreachable=unreachable,
            unrecorded=unrecorded,
            notes=notes,
        )

    async def _at(self, name: str) -> tuple[list[Line], int] | str:
        try:
            return await self.lines(name, await self.read(name))
        except ProxyUnavailable as exc:
            return str(exc)

    async def read(self, name: str) -> Listing:
        """What one proxy lists, or is believed to hold. Raises `ProxyUnavailable`."""
        seconds = self._policy.call_seconds(self._policy.proxies[name])
        return await listed_now(self._proxies[name], self._state.ledger.look(name), seconds)

    async def lines(self, name: str, listing: Listing) -> tuple[list[Line], int]:
        """What a pass would change at one proxy that lists this, and how many outcomes it would only write down."""
        served, proxy = self._policy.proxies[name], self._proxies[name]
        if self._admission is None:
            unasked = Answers(listing=listing, capabilities=proxy.capabilities, budget=self._budget(name))
            return lines_at(self._state, self._policy, served, unasked)
        answers = await self._ask(self._admission, served, proxy, listing)
        return lines_at(self._state, self._policy, served, answers)

    def _budget(self, name: str) -> Mapping[str, str]:
        return withheld_at(name, self._state.ledger.look(name), self._withheld)

    async def _ask(self, admission: Admission, served: ProxyPolicy, proxy: Proxy, listing: Listing) -> Answers:
        record, capabilities = self._state.ledger.look(served.name), proxy.capabilities
        observed = observe(self._policy.fleet, record, listing, capabilities)
        moved = await self._moved(admission, served, proxy, observed)
        steps, _ = steps_at(self._state, self._policy, served, observed, moved, capabilities)
        adds = newcomers(steps)
        admitted = await asyncio.gather(*(self._admit(admission, served, proxy, add) for add in adds))
        answers = {add.worker: answer for add, answer in zip(adds, admitted, strict=True)}
        return Answers(
            listing=listing, capabilities=capabilities, admitted=answers, moved=moved, budget=self._budget(served.name)
        )

    async def _moved(
        self, admission: Admission, served: ProxyPolicy, proxy: Proxy, observed: Observed
    ) -> dict[str, str]:
        listed = {name: owned[0].entry.url for name, owned in observed.owned.items() if len(owned) == 1}
        found = await admission.sites(listed, proxy.canonical_url)
        elsewhere = {
            name: site
            for name, site in found.items()
            if site.url != listed[name] and admission.may_be_added(name, served)
        }
        held = await asyncio.gather(*(self._ready(admission, name, site) for name, site in elsewhere.items()))
        return {name: site.url for (name, site), no in zip(elsewhere.items(), held, strict=True) if no is None}

    async def _admit(self, admission: Admission, served: ProxyPolicy, proxy: Proxy, add: Add) -> str | Held:
        async with self._probes:
            site = await admission.locate(add.worker, add.incarnation, served, proxy.canonical_url)
        if isinstance(site, Held):
            return site
        return await self._ready(admission, add.worker, site) or site.url

    async def _ready(self, admission: Admission, name: str, site: Site) -> Held | None:
        async with self._probes:
            return await admission.ready(name, site)
