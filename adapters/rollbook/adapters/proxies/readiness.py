"""The readiness probe: one GET to the worker, with an answer for people when it is not ready.

Routers accept whatever they are told to add, and some hold a scarce slot for as long as it does not answer. So the
worker is asked first.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from rollbook.adapters.proxies.http import in_words
from rollbook.adapters.proxies.identity import stranger
from rollbook.projections.ports import Identity

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

ANSWER_SECONDS: Final = 3.0
"""A health page that takes longer belongs to a worker that is too busy to be given more."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""Bound on the page that says who a worker is: an inference server's whole configuration is some 100 KiB."""


class HttpReadiness:
    """Asks workers over HTTP, through one session. `seconds` bounds a probe from connecting to the answer's status."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._session: ClientSession | None = None

    async def check(self, url: str, path: str, identity: Identity | None = None) -> str | None:
        """None if GET `path` on `url` answers 200 and it is who `identity` says; otherwise the reason.

        Never raises for a sick worker.
        """
        if identity is None or identity.header is not None:
            return await self._ask(url, path, identity)
        return await self._ask(url, path, None) or await self._ask(url, identity.path or path, identity)

    async def _ask(self, url: str, path: str, identity: Identity | None) -> str | None:
        """One GET, whose answer must be 200 and say what `identity` says."""
        import aiohttp

        asked = f"GET {url}{path}"
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                # A probe must meet the process that listens now, not a connection to one that is gone.
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
            )
        try:
            async with self._session.get(url + path, allow_redirects=False) as response:
                if response.status != HTTPStatus.OK:
                    return f"{asked} answered {response.status}"
                if identity is None:
                    return None
                told = await _who(response, identity)
        except TimeoutError:
            return f"{asked} gave no answer within {self._seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return f"{asked} failed: {in_words(exc)}"
        return None if told == identity.value else stranger(asked, identity, told)

    async def close(self) -> None:
        """Let go of the session; the next probe makes a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _who(response: ClientResponse, identity: Identity) -> str | None:
    """What the answer says of who gave it; None if it says nothing that can be read."""
    if identity.header is not None:
        return response.headers.get(identity.header)
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    try:
        told = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    value = told.get(identity.field or "")
    return None if value is None else str(value)
