"""Real requests of one token through a proxy, and what the workers behind it count of them.

Nothing here judges: who answered is read from the answer, and what went wrong is put into words.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rollbook.adapters.engines import GENERATE, ONE_TOKEN, first_model, read_answer
from rollbook.adapters.proxies.http import in_words
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.looking.verification import Who, identify
from rollbook.projections.ports import Identity

if TYPE_CHECKING:
    from aiohttp import ClientSession

REQUEST_SECONDS: Final = 30.0
"""For one request: a busy engine queues it."""
SCRAPE_SECONDS: Final = 3.0
AT_ONCE: Final = 8
"""Requests on their way through one proxy."""
MOST_METRICS: Final = 16 << 20
"""Of a worker's metrics; what is beyond is not read."""

CHAT: Final = "/v1/chat/completions"

_COUNTERS: Final = re.compile(
    rb"^(?:sglang[:_]num_requests_total|(?:vllm|lmdeploy):request_success_total)(?:\{[^}]*\})? (\S+)", re.MULTILINE
)
"""How engines count the requests that they answered."""


def session(headers: Mapping[str, str], tls: ssl.SSLContext | None) -> ClientSession:
    """For the requests through one proxy."""
    import aiohttp

    return aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        # A new connection for each: behind a balancer of connections, one would always meet the same worker.
        connector=aiohttp.TCPConnector(ssl=True if tls is None else tls, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def request_body(session: ClientSession, url: str, path: str, model: str | None) -> dict[str, Any]:
    """A request for one token. Without `model`, the first that the proxy at `url` names."""
    if path == GENERATE:
        return ONE_TOKEN
    message = {"role": "user", "content": "1"}
    model = model or await _model_of(session, url)
    return {"model": model, "messages": [message], "max_tokens": 1, "temperature": 0}


async def _model_of(session: ClientSession, url: str) -> str:
    """The first that the proxy names; `default` where it names none."""
    import aiohttp

    try:
        return await first_model(session, url)
    except (aiohttp.ClientError, OSError, ValueError):
        return "default"


async def send_all(
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
            content = await read_answer(answer)
            if answer.status != HTTPStatus.OK:
                said = " ".join(content[:200].decode(errors="replace").split())
                return f"it answered {answer.status}" + (f": {said}" if said else "")
            headers = {name.lower(): value for name, value in answer.headers.items()}
    except TimeoutError:
        return f"no answer within {REQUEST_SECONDS:g} s"
    except (aiohttp.ClientError, OSError) as exc:
        return f"failed: {in_words(exc)}"
    return identify(headers, _object(content), identities)


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Counting:
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
            text = await read_answer(answer, MOST_METRICS)
    except (aiohttp.ClientError, OSError, ValueError):
        return None
    numbers = [float(number) for number in _COUNTERS.findall(text)]
    return sum(numbers) if numbers else None
