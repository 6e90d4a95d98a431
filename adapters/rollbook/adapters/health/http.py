"""Asking over HTTP: a health page, or one generated token. The one place where HTTP's ways of failing become outcomes.

What fails on this side (no file descriptor left, no network, no name resolution) is `UNKNOWN`: a monitor in trouble
shoots nobody.
"""

from __future__ import annotations

import errno
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rollbook.adapters.engines import GENERATE, ONE_TOKEN, first_model, read_answer
from rollbook.adapters.proxies.http import in_words
from rollbook.adapters.proxies.identity import stranger
from rollbook.projections.health.monitor import Subject
from rollbook.projections.health.verdict import OK, Finding, Outcome
from rollbook.projections.policy import HealthPolicy

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_BUSY: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_NO_SUCH_PAGE: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.NOT_IMPLEMENTED,
    }
)
_OURS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.ENETDOWN}
)
"""Errors of connecting that are about this machine and not about the other."""
_NO_WAY: Final = frozenset({errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})


class HttpProbes:
    """Asks workers through two sessions, made with the first probe. `close` lets go of them.

    Health pages are asked over connections that are kept: the end of the process ends them, and the next probe then
    meets whoever listens. A generated token gets a connection of its own, because a POST is never sent twice.
    """

    def __init__(self) -> None:
        self._kept: ClientSession | None = None
        self._fresh: ClientSession | None = None

    def check(self, policy: HealthPolicy, model: str | None) -> HttpCheck:
        """How the workers of one pool are asked. `model` is the one of which a token is asked, if it is known."""
        return HttpCheck(self, policy, model)

    def session(self, *, kept: bool) -> ClientSession:
        """For one probe."""
        if kept:
            self._kept = self._kept or _session(force_close=False)
            return self._kept
        self._fresh = self._fresh or _session(force_close=True)
        return self._fresh

    async def close(self) -> None:
        """Let go of the connections."""
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()
        self._kept = self._fresh = None


class HttpCheck:
    """The `Check` of one pool.

    Before anybody of the pool has answered a question, "there is no such page here" is not taken for illness: the
    wrong one may be asked for.
    """

    def __init__(self, probes: HttpProbes, policy: HealthPolicy, model: str | None) -> None:
        self._probes = probes
        self._path = policy.path
        self._deep = policy.deep
        self._model = model
        self._answered: set[bool] = set()
        """Which questions somebody has answered: deep ones, and the others."""

    async def __call__(self, subject: Subject) -> Finding:
        """One GET, or one POST that generates a token."""
        import aiohttp

        asked = ""
        try:
            if not subject.deep:
                asked = f"GET {subject.url}{self._path}"
                session = self._probes.session(kept=True)
                async with session.get(subject.url + self._path, allow_redirects=False) as response:
                    return self._heard(asked, response, subject)
            session = self._probes.session(kept=False)
            path, body = await self._question(session, subject)
            asked = f"POST {subject.url}{path}"
            async with session.post(subject.url + path, json=body, allow_redirects=False) as response:
                finding = self._heard(asked, response, subject)
                return finding if finding != OK else self._token(asked, await read_answer(response))
        except aiohttp.ClientConnectorError as exc:
            return Finding(_unconnected(exc), f"{asked} failed: {in_words(exc)}")
        except TimeoutError:
            raise
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as exc:
            return Finding(Outcome.UNKNOWN, f"it cannot be asked at {subject.url}: {in_words(exc)}")
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return Finding(Outcome.UNHEALTHY, f"{asked} failed: {in_words(exc)}")

    def _heard(self, asked: str, response: ClientResponse, subject: Subject) -> Finding:
        finding = _finding(asked, response, subject)
        if finding == OK:
            self._answered.add(subject.deep)
        elif response.status in _NO_SUCH_PAGE and subject.deep not in self._answered:
            key = "deep" if subject.deep else "path"
            doubt = f"nobody of the pool has answered that yet: is health.{key} right?"
            return Finding(Outcome.UNKNOWN, f"{finding.reason}, and {doubt}")
        return finding

    async def _question(self, session: ClientSession, subject: Subject) -> tuple[str, dict[str, Any]]:
        """What makes a server of this kind generate one token."""
        if self._deep == "sglang":
            return GENERATE, ONE_TOKEN
        model = self._model or await first_model(session, subject.url)
        return "/v1/completions", {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}

    def _token(self, asked: str, body: bytes) -> Finding:
        """Whether a token was generated. An engine that died behind its server may answer 200 with nothing in it."""
        try:
            there = _generated(body) if self._deep == "sglang" else _completed(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            there = False
        if there:
            return OK
        said = body[:100].decode(errors="replace")
        return Finding(Outcome.UNHEALTHY, f"{asked} answered 200 and generated nothing: {said!r}")


class _Generated(msgspec.Struct):
    text: str | None = None
    output_ids: list[int] | None = None


class _Completed(msgspec.Struct):
    choices: list[msgspec.Raw]


def _generated(body: bytes) -> bool:
    answer = msgspec.json.decode(body, type=_Generated)
    return answer.text is not None or bool(answer.output_ids)


def _completed(body: bytes) -> bool:
    return bool(msgspec.json.decode(body, type=_Completed).choices)


def _session(*, force_close: bool) -> ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None),  # the monitor bounds every probe
        connector=aiohttp.TCPConnector(limit=0, force_close=force_close),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _finding(asked: str, response: ClientResponse, subject: Subject) -> Finding:
    identity = subject.located.identity
    if identity is not None and identity.header is not None:
        told = response.headers.get(identity.header)
        if told is not None and told != identity.value:
            return Finding(Outcome.UNHEALTHY, stranger(asked, identity, told))
    if response.status == HTTPStatus.OK:
        return OK
    outcome = Outcome.BUSY if response.status in _BUSY else Outcome.UNHEALTHY
    return Finding(outcome, f"{asked} answered {response.status}")


def _unconnected(exc: Any) -> Outcome:
    """What it means that no connection came about."""
    import aiohttp

    if exc.errno == errno.ECONNREFUSED:
        return Outcome.REFUSED
    if isinstance(exc, aiohttp.ClientConnectorDNSError) or exc.errno in _OURS:
        return Outcome.UNKNOWN
    return Outcome.SLOW if exc.errno in _NO_WAY else Outcome.UNHEALTHY
