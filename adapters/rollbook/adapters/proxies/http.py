"""An admin API over HTTP: one session per proxy, and the one place where HTTP's ways of failing become ours.

Whatever is not an answer of the API that was asked for (no connection, a login page, a redirect, a refused key, a body
without end) is `ProxyUnavailable` and says what came instead. An answer of the API, good or bad, is a `Reply`: what it
means is for the kind of proxy to say.

A call has no deadline here; the caller bounds it. Only connecting is bounded, so that a packet filter that drops
everything is told apart from a slow answer.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.events import RollbookError
from rollbook.projections.ports import ProxyUnavailable

if TYPE_CHECKING:
    from aiohttp import ClientSession

CONNECT_SECONDS: Final = 5.0
"""Bound on making a connection: loopback takes microseconds, a far data centre half a second."""

MOST_BYTES: Final = 32 * 1024 * 1024
"""Bound on a body: a listing of 10,000 workers is about 5 MiB."""

T = TypeVar("T")


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What an admin API answered."""

    asked: str
    """The call in words for people: `router-a: GET http://host:port/workers`."""
    status: int
    content_type: str
    body: bytes

    def decode(self, type: type[T]) -> T:  # noqa: A002  # msgspec's own word for it
        """The body as `type`. Raises `ProxyUnavailable` if it is something else."""
        try:
            return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise self.unusable() from exc

    def read(self, type: type[T]) -> T | None:  # noqa: A002  # as above
        """The body as `type`, or None if it is something else."""
        try:
            return self.decode(type)
        except ProxyUnavailable:
            return None

    def unusable(self, hint: str = "is admin_url right?") -> ProxyUnavailable:
        """The error that this answer is, if it is not one of the API."""
        came = f"{self.status} with {self.content_type}" if self.body else f"{self.status} without a body"
        return ProxyUnavailable(f"{self.asked} answered {came}: {hint}")


class AdminHttp:
    """Calls to one proxy's admin API, below the path of its `admin_url`. The first call makes the connection.

    The key is sent as a bearer token with every call and shown by nothing: not `repr`, not an error, not a log line.
    Redirects are not followed, since they would carry the key to wherever they point.
    """

    def __init__(self, config: ProxyConfig) -> None:
        key = config.api_key
        if key is not None and not (key.isascii() and key.isprintable()):
            raise RollbookError(
                f"{config.name}: api_key holds characters that no HTTP header can carry; a line break inside?"
            )
        self._proxy = config.name
        self._base = canonical_url(config.admin_url)
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._tls = config.tls
        self._session: ClientSession | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"AdminHttp({self._proxy!r}, {self._base!r})"

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        """One call; `path` begins with a slash, `body` is sent as JSON. Raises `ProxyUnavailable`."""
        import aiohttp

        asked = f"{self._proxy}: {method} {self._base}{path}"
        try:
            async with self._open().request(
                method,
                self._base + path,
                data=None if body is None else msgspec.json.encode(body),
                headers={} if body is None else {"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                reply = Reply(asked, response.status, response.content_type, await _bounded(response, asked))
        except (aiohttp.ClientError, OSError) as exc:
            raise ProxyUnavailable(f"{asked} failed: {in_words(exc)}") from exc
        if reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            missing = "it asks for a key; set api_key" if not self._headers else "it refuses the key in api_key"
            raise reply.unusable(missing)
        if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.BAD_REQUEST:
            raise reply.unusable("it redirects; admin_url must be where the API itself is")
        return reply

    async def close(self) -> None:
        """Let go of the connections. Calls after this one fail."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> ClientSession:
        import aiohttp

        if self._closed:
            raise ProxyUnavailable(f"{self._proxy}: called after it was closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                connector=aiohttp.TCPConnector(ssl=True if self._tls is None else self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _bounded(response: Any, asked: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ProxyUnavailable(f"{asked} answered more than {MOST_BYTES >> 20} MiB: is admin_url right?")
    return bytes(body)


def in_words(exc: BaseException) -> str:
    """What went wrong with a connection, in few words: aiohttp's texts repeat addresses and settings."""
    if isinstance(exc, TimeoutError):
        return "it took too long"
    # aiohttp wraps the library's error in an error of its own, and gives it the number of another one.
    cause = getattr(exc, "certificate_error", None) or getattr(exc, "os_error", exc)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}; is the authority that signed it named in ca?"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {cause.reason or cause.strerror}"
    number = getattr(exc, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    text = getattr(exc, "strerror", None) or str(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
