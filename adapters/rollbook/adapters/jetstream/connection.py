"""How to reach NATS, and the one place where a connection is made and its errors are translated.

::

    LogError
    ├── LogUnavailable      nobody answers at that address
    │   └── NotPermitted    these credentials may not do it (`client`)
    ├── LogMisconfigured    something answers, but JetStream is not enabled there
    └── NotAuthorised       NATS wants other credentials than it was given
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import nats.errors
import structlog

from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.projections.ending import end
from rollbook.projections.ports import LogError, LogMisconfigured, LogUnavailable

_log = structlog.get_logger(__name__)

_DENIED: Final = re.compile(r'permissions violation for (?P<act>publish|subscription) to "(?P<subject>[^"]+)"')
"""As nats-py hands on what the server said: in lower case."""

RECONNECT_WAIT = 0.2
"""Seconds between two attempts at one server."""
PING_EVERY = 10
"""Seconds; after two unanswered pings the connection counts as dead."""

NO_CREDENTIALS: Final = "no credentials"


class NotAuthorised(LogError):
    """NATS wants other credentials than it was given. The message names the setting, never the secret."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Where NATS is and what it is told. Secrets never show in `repr`, `str` or an error.

    Credentials inside the URL (`nats://user:pass@host`, `nats://token@host`) are moved into their fields.
    """

    url: str = "nats://127.0.0.1:4222"
    """One server, or several of a cluster separated by commas. Shown without its credentials."""
    token: str | None = None
    user: str | None = None
    password: str | None = None
    creds: Path | None = None
    """A credentials file (JWT and seed); needs the package nkeys."""
    nkey: Path | None = None
    """A file that holds an nkey seed; needs the package nkeys."""
    ca: Path | None = None
    """The certificate authority that signed the server's certificate; the system's by default."""

    def __post_init__(self) -> None:
        bare: list[str] = []
        for server in self.url.split(","):
            url = server.strip()
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            try:
                host, _ = parts.hostname, parts.port
            except ValueError as exc:
                raise LogError(f"the NATS URL has a port that is none: {_without_userinfo(url)}") from exc
            if parts.scheme not in {"nats", "tls", "ws", "wss"} or not host:
                raise LogError(f"{_without_userinfo(url)!r} is not a NATS URL; it looks like nats://127.0.0.1:4222")
            if parts.username is not None:
                if parts.password is None:
                    msgspec.structs.force_setattr(self, "token", unquote(parts.username))
                else:
                    msgspec.structs.force_setattr(self, "user", unquote(parts.username))
                    msgspec.structs.force_setattr(self, "password", unquote(parts.password))
            netloc = parts.netloc.rpartition("@")[2]
            bare.append(urlunsplit((parts.scheme, netloc, parts.path, parts.query, "")))
        msgspec.structs.force_setattr(self, "url", ",".join(bare))

    def __repr__(self) -> str:
        return f"Connection({self.url}, {self.authentication})"

    __str__ = __repr__

    @property
    def authentication(self) -> str:
        """How it authenticates, without the secret: `no credentials`, `a token`, ..."""
        if self.creds is not None:
            return f"credentials file {self.creds}"
        if self.nkey is not None:
            return f"nkey file {self.nkey}"
        if self.user is not None:
            return f"user {self.user!r}"
        return "a token" if self.token is not None else NO_CREDENTIALS

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Connection:
        """Read ROLLBOOK_NATS_URL, _TOKEN, _USER, _PASSWORD, _CREDS, _NKEY and _CA. Empty ones count as not set."""

        def get(name: str) -> str | None:
            return environ.get(f"ROLLBOOK_NATS_{name}") or None

        def path(name: str) -> Path | None:
            return Path(value) if (value := get(name)) else None

        return cls(
            url=get("URL") or "nats://127.0.0.1:4222",
            token=get("TOKEN"),
            user=get("USER"),
            password=get("PASSWORD"),
            creds=path("CREDS"),
            nkey=path("NKEY"),
            ca=path("CA"),
        )

    def environ(self) -> dict[str, str]:
        """The variables from which `from_env` makes it again, in another process. Holds secrets: never log it."""
        fields = {
            "URL": self.url,
            "TOKEN": self.token,
            "USER": self.user,
            "PASSWORD": self.password,
            "CREDS": self.creds,
            "NKEY": self.nkey,
            "CA": self.ca,
        }
        return {f"ROLLBOOK_NATS_{name}": str(value) for name, value in fields.items() if value is not None}

    def options(self) -> dict[str, Any]:
        """As nats-py takes them. Holds secrets: never log it."""
        options: dict[str, Any] = {"servers": self.url.split(",")}
        if self.token is not None:
            options["token"] = self.token
        if self.user is not None:
            options["user"] = self.user
            options["password"] = self.password or ""
        for setting, option, file in (("CREDS", "user_credentials", self.creds), ("NKEY", "nkeys_seed", self.nkey)):
            if file is None:
                continue
            if not file.is_file():
                raise NotAuthorised(f"there is no credentials file {file}; correct ROLLBOOK_NATS_{setting}")
            options[option] = str(file)
        if self.ca is not None:
            try:
                options["tls"] = ssl.create_default_context(cafile=self.ca)
            except (OSError, ssl.SSLError) as exc:
                raise LogError(f"{self.ca} is not a readable certificate authority; correct ROLLBOOK_NATS_CA") from exc
        return options


class _Watch:
    """nats-py's callbacks for one client: what goes wrong while it connects, and what is logged afterwards."""

    def __init__(self, client: Client, connection: Connection) -> None:
        self._client = client
        self._server = connection.url
        self._who = connection.authentication
        self.established = False
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last: Exception | None = None

    async def error(self, error: Exception) -> None:
        if not self.refused.done():
            self.last = error
            if _is_refusal(error):
                self.refused.set_result(None)
        if (denied := _DENIED.search(str(error))) is not None:
            self._deny(denied["act"], denied["subject"])
        if self.established and self._client.is_connected:
            _log.warning("nats.error", server=self._server, error=_explain(error))

    def _deny(self, act: str, subject: str) -> None:
        if act == "publish":
            self._client.deny_publish(self._who, subject)
        else:
            self._client.deny_subscription(self._who, subject)

    async def disconnected(self) -> None:
        self._client.mark_disconnected()
        if self.established and not self._client.is_closed:
            _log.warning("nats.disconnected", server=self._server)

    async def reconnected(self) -> None:
        _log.info("nats.reconnected", server=self._server)
        self._client.mark_connected()

    async def closed(self) -> None:
        self._client.mark_disconnected()
        if not self._client.closing:
            _log.error("nats.refused", server=self._server, error=_explain(self._client.last_error))

    async def discovered(self) -> None:
        _log.info("nats.servers.discovered", server=self._server, servers=len(self._client.servers))

    async def leaving(self) -> None:
        _log.info("nats.server.leaving", server=self._server)


async def connect(connection: Connection, *, name: str, timeout: float = 5.0) -> Client:
    """Connect, and make sure that JetStream answers. From then on the client reconnects by itself, for ever.

    `name` is shown in the server's monitoring. Within `timeout` seconds it is tried again and again; then
    `LogUnavailable` says why. A refusal is an error at once: `NotAuthorised`, or `LogMisconfigured` without JetStream.
    """
    options = connection.options()
    until = time.monotonic() + timeout
    while True:
        client = Client()
        watch = _Watch(client, connection)
        attempt = asyncio.ensure_future(_dial(client, watch, name, options))
        try:
            left = max(until - time.monotonic(), 0)
            await asyncio.wait({attempt, watch.refused}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if _succeeded(connection, attempt, watch, timeout):
                client.mark_connected()
                await _require_jetstream(client, connection, timeout)
                break
        except BaseException:
            await _abandon(client, attempt)
            raise
        # nats-py gives up when the connection breaks at an awkward moment. A refusal may look like that too: the
        # server's words are lost when it closes the socket while more is on its way to it.
        await _abandon(client, attempt)
        await asyncio.sleep(RECONNECT_WAIT)
    watch.established = True
    return client


async def _dial(client: Client, watch: _Watch, name: str, options: dict[str, Any]) -> None:
    """Try until it works: nats-py does not stop by itself when nobody answers or credentials are refused."""
    await client.connect(
        name=name,
        error_cb=watch.error,
        disconnected_cb=watch.disconnected,
        reconnected_cb=watch.reconnected,
        closed_cb=watch.closed,
        discovered_server_cb=watch.discovered,
        lame_duck_mode_cb=watch.leaving,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_WAIT,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - it is only slept
        ping_interval=PING_EVERY,
        **options,
    )


def _succeeded(connection: Connection, attempt: asyncio.Future[None], watch: _Watch, timeout: float) -> bool:
    """Whether `attempt` connected; False if it is worth another one. Raises what another one cannot mend."""
    if watch.refused.done() or not attempt.done():
        raise _translate(connection, watch.last, timeout)
    error = attempt.exception()
    if error is None:
        return True
    if isinstance(error, (nats.errors.Error, OSError)) and not isinstance(error, ssl.SSLError):
        return False
    if isinstance(error, (ssl.SSLError, ValueError, ImportError)):
        raise _translate(connection, error, timeout) from error
    raise error


async def _require_jetstream(client: Client, connection: Connection, timeout: float) -> None:
    try:
        answer = await client.ask("$JS.API.INFO", timeout=timeout, again=True)
    except NotPermitted:
        raise
    except LogUnavailable as exc:
        if isinstance(exc.__cause__, nats.errors.NoRespondersError):
            raise LogMisconfigured(
                f"the NATS server at {connection.url} runs without JetStream; start it with `-js`, or with a "
                "`jetstream` block in its configuration"
            ) from exc
        raise LogUnavailable(
            f"JetStream at {connection.url} did not answer within {timeout:g} s; see whether this user may use "
            f"$JS.API.> and whether the cluster has a leader ({exc})"
        ) from exc
    error = msgspec.json.decode(answer, type=dict[str, Any]).get("error")
    if error and error.get("err_code") == 10039:  # noqa: PLR2004 - JetStream's number for exactly this
        raise LogMisconfigured(
            f"JetStream is not enabled for the account used at {connection.url}; enable it for that account, or give "
            "credentials of another"
        )
    if error:
        raise LogUnavailable(f"JetStream at {connection.url} is not ready: {error.get('description')}; try again")


async def _abandon(client: Client, attempt: asyncio.Future[None]) -> None:
    """End an attempt for sure, and leave nothing of it open."""
    await end(attempt, patience=0.05)
    await client.discard()


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in str(error).lower()


def _translate(connection: Connection, error: Exception | None, timeout: float) -> LogError:
    if isinstance(error, ImportError):
        return NotAuthorised(f"{connection.authentication} needs the package nkeys: pip install nkeys")
    if error is not None and _is_refusal(error):
        who = connection.authentication
        what = "asks for credentials and was given none" if who == NO_CREDENTIALS else f"refused {who}"
        return NotAuthorised(
            f"NATS at {connection.url} {what}; set ROLLBOOK_NATS_TOKEN, or ROLLBOOK_NATS_USER and "
            "ROLLBOOK_NATS_PASSWORD, or ROLLBOOK_NATS_CREDS, or ROLLBOOK_NATS_NKEY"
        )
    if isinstance(error, ssl.SSLError):
        return LogUnavailable(
            f"no TLS connection to NATS at {connection.url}: {_explain(error)}; set ROLLBOOK_NATS_CA to the "
            "certificate authority of the server"
        )
    why = f" ({_explain(error)})" if error is not None else ""
    return LogUnavailable(
        f"no NATS server answered at {connection.url} within {timeout:g} s{why}; start it, or set ROLLBOOK_NATS_URL"
    )


def _explain(error: BaseException | None) -> str:
    """The error in a line, without anything that looks like credentials in a URL."""
    return "" if error is None else _without_userinfo(str(error) or type(error).__name__)


def _without_userinfo(text: str) -> str:
    return re.sub(r"(?:(?<=://)|^)[^/@\s]+@", "***@", text)
