"""Verifying proxies: reading them back, and judging who answers real requests through them.

Used by the controller for whoever asks it, and by `rollbook verify` itself where none runs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from rollbook.adapters.engines import GENERATE
from rollbook.adapters.proxies.opening import client_tls
from rollbook.adapters.settings import ProxySettings, Settings, read_secret
from rollbook.adapters.trial import CHAT, Counting, request_body, send_all, session
from rollbook.events import RollbookError
from rollbook.events.times import rfc3339
from rollbook.projections.deciding.observed import Observed, observe
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.looking.survey import Survey
from rollbook.projections.looking.verification import (
    Belonging,
    ProxyVerification,
    Verdict,
    Verification,
    answerers,
    with_counts,
)
from rollbook.projections.policy import Policy
from rollbook.projections.ports import Clock, Identity, ProviderError, Proxy, ProxyUnavailable, WorkerProvider
from rollbook.projections.state.fold import State

EACH: Final = 3
"""Requests for each listed worker, if it is not said how many."""
LEAST: Final = 8
MOST: Final = 1000
"""Bounds on them."""

MOST_NAMED: Final = 10
"""Workers in a note."""

_ROUTE: Final = {"sglang": GENERATE}
"""Where requests go by kind; `CHAT` everywhere else."""


class WrongPath(RollbookError, ValueError):
    """Where requests should go is no path of the proxy's."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be tried. Raises `WrongPath`: what follows a host and is no path would make another host of it."""

    requests: int | None = None
    """None: three for each listed worker, at least 8. 0: the read-back only."""
    path: str | None = None
    """None: what fits the kind."""
    model: str | None = None
    """None: the pool's, or the first that the proxy names."""

    def __post_init__(self) -> None:
        if self.path is not None and not self.path.startswith("/"):
            raise WrongPath(f"{self.path[:80]!r} is no path; write it as {CHAT}")


class Door(msgspec.Struct, frozen=True):
    """Where clients get into one proxy."""

    kind: str
    url: str | None
    """None if it is not known."""
    headers: dict[str, str]
    tls: ssl.SSLContext | None


def doors(settings: Settings, *, environ: Mapping[str, str], base: Path) -> dict[str, Door]:
    """Of every configured proxy. Raises `ConfigError` for a secret or certificate that is not there.

    The admin key is sent with requests that go to the admin API's own server, and nowhere else.
    """
    return {proxy.name: _door(proxy, environ=environ, base=base) for proxy in settings.proxies}


def _door(proxy: ProxySettings, *, environ: Mapping[str, str], base: Path) -> Door:
    url = proxy.requests_url
    same = url is not None and urlsplit(url)[:2] == urlsplit(proxy.admin_url)[:2]
    headers: dict[str, str] = {}
    if same and proxy.api_key is not None:
        headers["Authorization"] = f"Bearer {read_secret(proxy.api_key, environ=environ, base=base)}"
    return Door(proxy.kind, None if url is None else url.rstrip("/"), headers, client_tls(proxy, base))


class Verifier:
    """Verifies the proxies of one fleet. `state` gives the fold as it is now, `withheld` is as `Survey` has it."""

    def __init__(
        self,
        policy: Policy,
        state: Callable[[], State],
        *,
        proxies: Mapping[str, Proxy],
        doors: Mapping[str, Door],
        provider: WorkerProvider | None,
        admission: Admission | None,
        clock: Clock,
        withheld: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._policy = policy
        self._state = state
        self._proxies = proxies
        self._doors = doors
        self._provider = provider
        self._admission = admission
        self._clock = clock
        self._withheld = withheld

    async def verify(self, names: list[str], ask: Ask, notes: tuple[str, ...] = ()) -> Verification:
        """All of `names`, beside each other."""
        found = await asyncio.gather(*(self._one(name, ask) for name in names))
        return Verification(
            fleet=self._policy.fleet,
            sequence=self._state().sequence,
            time=rfc3339(self._clock.now()),
            proxies=tuple(found),
            notes=notes,
        )

    async def _one(self, name: str, ask: Ask) -> ProxyVerification:
        proxy, state = self._proxies[name], self._state()
        survey = Survey(self._policy, state, proxies=self._proxies, admission=self._admission, withheld=self._withheld)
        try:
            listing = await survey.read(name)
        except ProxyUnavailable as exc:
            return ProxyVerification(proxy=name, kind=proxy.kind, unreachable=str(exc))
        lines, _ = await survey.lines(name, listing)
        observed = observe(self._policy.fleet, state.ledger.look(name), listing, proxy.capabilities)
        notes = [] if proxy.capabilities.list else ["it lists nothing: what it holds is believed, by the log's word"]
        trial = await self._try(name, ask, observed)
        return msgspec.structs.replace(
            trial,
            listed=sum(map(len, observed.owned.values())),
            drift=tuple(line for line in lines if line.differs),
            notes=(*notes, *trial.notes),
            kind=proxy.kind,
        )

    # ------------------------------------------------------------ requests

    async def _try(self, name: str, ask: Ask, observed: Observed) -> ProxyVerification:
        """Send the requests, and judge who answered."""
        door, served = self._doors[name], self._policy.proxies[name]
        listed = sum(map(len, observed.owned.values())) + len(observed.strangers)
        requests = min(max(EACH * listed, LEAST) if ask.requests is None else ask.requests, MOST)
        nothing = ProxyVerification(proxy=name, kind=door.kind)
        if requests == 0:
            return nothing
        if door.url is None:
            told = "no request was sent: its data_url is not in the configuration"
            return msgspec.structs.replace(nothing, notes=(told,))
        if listed == 0:
            return msgspec.structs.replace(nothing, notes=("no request was sent: nobody is registered",))
        identities, notes = await self._identities()
        before = Belonging.of(self._state().roster, self._policy, served)
        path = ask.path or _ROUTE.get(door.kind, CHAT)
        models = [self._policy.pool(pool).model for pool in served.pools]
        async with session(door.headers, door.tls) as through:
            body = await request_body(through, door.url, path, ask.model or next(filter(None, models), None))
            counting = Counting(observed)
            await counting.begin()
            answers, failed = await send_all(through, door.url + path, body, requests, identities)
            counts = await counting.end()
        after = Belonging.of(self._state().roster, self._policy, served)
        found = answerers(answers, before, after)
        if any(one.verdict is Verdict.UNKNOWN for one in found):
            found = with_counts(found, counts, before, after)
        if any(one.verdict is Verdict.UNKNOWN for one in found):
            notes = (*notes, "who answered some requests is not known: see docs/cli.md")
        elif silent := sorted(observed.owned.keys() - {one.worker for one in found}):
            names = ", ".join(silent[:MOST_NAMED]) + (" and others" if len(silent) > MOST_NAMED else "")
            told = f"listed, and answered none of them: {names}"
            notes = (*notes, f"{told} (a router that goes by its cache sends like requests to one worker)")
        return ProxyVerification(
            proxy=name,
            kind=door.kind,
            url=door.url + path,
            sent=requests,
            failed=failed,
            answered=found,
            notes=notes,
        )

    async def _identities(self) -> tuple[dict[str, Identity], tuple[str, ...]]:
        """How each worker says who it is, by the provider's word."""
        names = list(self._state().roster.workers)
        if self._provider is None or not names:
            return {}, ()
        try:
            async with asyncio.timeout(self._policy.reconcile.call_deadline):
                located = await self._provider.locate(names)
        except (ProviderError, TimeoutError) as exc:
            told = str(exc) or "no answer in time"
            return {}, (f"the provider could not be asked how workers say who they are: {told}",)
        return {name: one.identity for name, one in located.items() if one.identity is not None}, ()
