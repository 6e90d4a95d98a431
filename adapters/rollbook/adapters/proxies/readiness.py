"""The readiness probe: one GET to the worker, with an answer for people when it is not ready.

Routers accept whatever they are told to add, and some hold a scarce slot for as long as it does not answer. So the
worker is asked first.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from rollbook.adapters.proxies.http import in_words

if TYPE_CHECKING:
    from aiohttp import ClientSession

ANSWER_SECONDS: Final = 3.0
"""A health page that takes longer belongs to a worker that is too busy to be given more."""


class HttpReadiness:
    """Asks workers over HTTP, through one session. `seconds` bounds a probe from connecting to the answer's status."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._session: ClientSession | None = None

    async def check(self, url: str, path: str) -> str | None:
        """None if GET `path` on `url` answers 200; otherwise the reason. Never raises for a sick worker."""
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
                return None if response.status == HTTPStatus.OK else f"{asked} answered {response.status}"
        except TimeoutError:
            return f"{asked} gave no answer within {self._seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return f"{asked} failed: {in_words(exc)}"

    async def close(self) -> None:
        """Let go of the session; the next probe makes a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
