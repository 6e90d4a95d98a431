"""Verifying proxies: reading them back, and sending real requests through them, each of one token.

Used by the controller for whoever asks it, and by `rollbook verify` itself where none runs.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from rollbook.adapters.proxies.http import in_words
from rollbook.adapters.proxies.opening import client_tls
from rollbook.adapters.settings import ProxySettings, Settings, read_secret
from rollbook.events import RollbookError
from rollbook.events.times import rfc3339
from rollbook.projections.admission import Admission
from rollbook.projections.fold import State
from rollbook.projections.listing import bounded
from rollbook.projections.observed import Observed, believed, observe
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Clock, Identity, ProviderError, Proxy, ProxyUnavailable, WorkerProvider
from rollbook.projections.preview import Line
from rollbook.projections.survey import Survey
from rollbook.projections.verification import (
    Belonging,
    ProxyVerification,
    Verdict,
    Verification,
    Who,
    answerers,
    identify,
    with_counts,
)

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

REQUEST_SECONDS: Final = 30.0
"""For one request: a busy engine queues it."""
SCRAPE_SECONDS: Final = 3.0
AT_ONCE: Final = 8
"""Requests on their way through one proxy."""
EACH: Final = 3
"""Requests for each listed worker, if it is not said how many."""
LEAST: Final = 8
MOST: Final = 1000
"""Bounds on them."""
MOST_BYTES: Final = 1 << 20
MOST_METRICS: Final = 16 << 20
"""Of an answer to a request for one token, and of a worker's metrics: what is beyond is not read."""

GENERATE: Final = "/generate"
CHAT: Final = "/v1/chat/completions"
_ROUTE: Final = {"sglang": GENERATE}
"""Where requests go by kind; `CHAT` everywhere else."""

_COUNTERS: Final = re.compile(
    rb"^(?:sglang[:_]num_requests_total|(?:vllm|lmdeploy):request_success_total)(?:\{[^}]*\})? (\S+)", re.MULTILINE
)
"""How engines count the requests that they answered."""


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
    """Verifies the proxies of one fleet. `state` gives the fold as it is now."""

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
    ) -> None:
        self._policy = policy
        self._state = state
        self._proxies = proxies
        self._doors = doors
        self._provider = provider
        self._admission = admission
        self._clock = clock

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
        proxy, served = self._proxies[name], self._policy.proxies[name]
        now = rfc3339(self._clock.now())
        survey = Survey(self._policy, self._state(), proxies=self._proxies, admission=self._admission)
        preview = await survey.take(now, [name])
        try:
            observed = await self._observe(proxy, served)
        except ProxyUnavailable as exc:
            return ProxyVerification(proxy=name, kind=proxy.kind, unreachable=preview.unreachable.get(name) or str(exc))
        notes = [] if proxy.capabilities.list else ["it lists nothing: what it holds is believed, by the log's word"]
        drift: tuple[Line, ...] = tuple(line for line in preview.lines if line.differs)
        listed = sum(map(len, observed.owned.values()))
        trial = await self._try(name, ask, observed)
        return msgspec.structs.replace(trial, listed=listed, drift=drift, notes=(*notes, *trial.notes), kind=proxy.kind)

    async def _observe(self, proxy: Proxy, served: ProxyPolicy) -> Observed:
        record = self._state().ledger.look(proxy.name)
        if proxy.capabilities.list:
            listing = await bounded(proxy.list(), self._policy.call_seconds(served), f"{proxy.name}: list")
        else:
            listing = believed(record)
        return observe(self._policy.fleet, record, listing, proxy.capabilities)

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
        async with _session(door) as session:
            path = ask.path or _ROUTE.get(door.kind, CHAT)
            body = await self._body(session, door.url, path, ask, served)
            counting = _Counting(observed)
            await counting.begin()
            answers, failed = await _send_all(session, door.url + path, body, requests, identities)
            counts = await counting.end()
        after = Belonging.of(self._state().roster, self._policy, served)
        found = answerers(answers, before, after)
        if any(one.verdict is Verdict.UNKNOWN for one in found):
            found = with_counts(found, counts, before, after)
        if any(one.verdict is Verdict.UNKNOWN for one in found):
            notes = (*notes, "who answered some requests is not known: see docs/cli.md")
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

    async def _body(self, session: ClientSession, url: str, path: str, ask: Ask, served: ProxyPolicy) -> dict[str, Any]:
        """A request for one token."""
        if path == GENERATE:
            return {"text": "1", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        models = [self._policy.pool(pool).model for pool in served.pools]
        model = ask.model or next((one for one in models if one), None) or await _first_model(session, url)
        message = {"role": "user", "content": "1"}
        return {"model": model, "messages": [message], "max_tokens": 1, "temperature": 0}


def _session(door: Door) -> ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        headers=door.headers,
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        # A new connection for each: behind a balancer of connections, one would always meet the same worker.
        connector=aiohttp.TCPConnector(ssl=True if door.tls is None else door.tls, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def _first_model(session: ClientSession, url: str) -> str:
    """What `/v1/models` names first; `default` where it names none."""
    import aiohttp

    try:
        async with session.get(f"{url}/v1/models", allow_redirects=False) as answer:
            document = msgspec.json.decode(await _content(answer, MOST_BYTES))
        return str(document["data"][0]["id"])
    except (aiohttp.ClientError, OSError, msgspec.MsgspecError, RecursionError, LookupError, TypeError):
        return "default"


async def _send_all(
    session: ClientSession, url: str, body: dict[str, Any], requests: int, identities: Mapping[str, Identity]
) -> tuple[list[Who | None], dict[str, int]]:
    """Who answered each request that was answered, and what became of the others."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> Who | str | None:
        async with gate:
            return await _send(session, url, body, identities)

    outcomes = await asyncio.gather(*(one() for _ in range(requests)))
    failures = Counter(outcome for outcome in outcomes if isinstance(outcome, str))
    return [outcome for outcome in outcomes if not isinstance(outcome, str)], dict(failures)


async def _send(
    session: ClientSession, url: str, body: dict[str, Any], identities: Mapping[str, Identity]
) -> Who | str | None:
    """Who answered, None if it does not say, or what went wrong."""
    import aiohttp

    try:
        async with session.post(url, json=body, allow_redirects=False) as answer:
            content = await _content(answer, MOST_BYTES)
            if answer.status != HTTPStatus.OK:
                said = " ".join(content[:200].decode(errors="replace").split())
                return f"it answered {answer.status}" + (f": {said}" if said else "")
            headers = {name.lower(): value for name, value in answer.headers.items()}
    except TimeoutError:
        return f"no answer within {REQUEST_SECONDS:g} s"
    except (aiohttp.ClientError, OSError) as exc:
        return f"failed: {in_words(exc)}"
    return identify(headers, _object(content), identities)


async def _content(answer: ClientResponse, most: int) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) >= most:
            break
    return bytes(content[:most])


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class _Counting:
    """What the listed workers count themselves, before and after; those that do not are left out."""

    def __init__(self, observed: Observed) -> None:
        self._lives = {
            own.entry.url: (own.worker, own.incarnation) for owned in observed.owned.values() for own in owned
        }
        self._before: dict[str, float] = {}

    async def begin(self) -> None:
        """Take the counts now."""
        self._before = await self._read()

    async def end(self) -> dict[str, tuple[int, int]]:
        """By worker: which life, and by how much it counted on since."""
        after = await self._read()
        grown = {url: int(after[url] - self._before[url]) for url in self._before.keys() & after.keys()}
        return {self._lives[url][0]: (self._lives[url][1], more) for url, more in grown.items() if more > 0}

    async def _read(self) -> dict[str, float]:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=SCRAPE_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            found = await asyncio.gather(*(_count(session, url) for url in self._lives))
        return {url: count for url, count in zip(self._lives, found, strict=True) if count is not None}


async def _count(session: ClientSession, url: str) -> float | None:
    """The requests that a worker counted in its life; None if it does not tell."""
    import aiohttp

    try:
        async with session.get(f"{url}/metrics", allow_redirects=False) as answer:
            text = await _content(answer, MOST_METRICS)
    except (aiohttp.ClientError, OSError, ValueError):
        return None
    numbers = [float(number) for number in _COUNTERS.findall(text)]
    return sum(numbers) if numbers else None
