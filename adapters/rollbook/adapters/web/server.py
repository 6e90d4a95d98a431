"""GET over HTTP: `/metrics`, `/healthz`, `/readyz`, and the read API under `/v1`.

A page that a browser on this machine shows could ask a loopback port too. Two things keep it from reading an answer: no
header allows another origin to, and a host name that is not ours is refused, because that is how a name that was made
to point at 127.0.0.1 shows itself (DNS rebinding). An address instead of a name cannot be rebound, so those pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import exposition

from rollbook.adapters.settings import WebSettings
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.adapters.web.fleet_metrics import FleetCollector
from rollbook.adapters.web.health import Judge
from rollbook.adapters.web.metrics import Metrics
from rollbook.adapters.web.views import NotYet, Views
from rollbook.events import RollbookError
from rollbook.projections.ending import end
from rollbook.projections.leading.controller import Controller
from rollbook.projections.ports import HostAndPort, LogState, LogUnavailable, Proxy
from rollbook.projections.resources import Resources

_log = structlog.get_logger(__name__)

ASK_SECONDS: Final = 1.0
"""For one question to the log: a scraper waits ten seconds at most, a probe of Kubernetes one."""
LOOP_SECONDS: Final = 1.0
"""Between two looks at how late the event loop is."""
STOP_SECONDS: Final = 1.0
"""For the answers under way, when the controller stops."""

LONGEST_REASON: Final = 200

SECURITY: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "rollbook",
    "X-Content-Type-Options": "nosniff",
}
"""On every answer."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PortTaken(RollbookError):
    """Nothing can listen at `web.listen`."""


class Web:
    """The pages of one controller."""

    def __init__(
        self, controller: Controller, resources: Resources, proxies: Mapping[str, Proxy], metrics: Metrics
    ) -> None:
        self._controller = controller
        self._resources = resources
        self._metrics = metrics
        self._judge = Judge(controller)
        self._views = Views(controller, resources, proxies)
        self._fleet = FleetCollector(controller, resources, metrics)
        metrics.registry.register(self._fleet)

    def app(self, settings: WebSettings) -> web.Application:
        """The application, for the host names of `settings`."""
        app = web.Application(middlewares=[_guard(settings)], client_max_size=1)
        app.on_response_prepare.append(_secure)
        app.add_routes(
            [
                web.get("/metrics", self._show_metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/v1/roster", self._roster),
                web.get("/v1/proxies", self._proxies),
                web.get("/v1/plan", self._plan),
            ]
        )
        return app

    async def watch_the_loop(self) -> None:
        """Note for ever by how much the loop is late."""
        while True:
            due = time.monotonic() + LOOP_SECONDS
            await asyncio.sleep(LOOP_SECONDS)
            self._metrics.loop_lag.set(max(time.monotonic() - due, 0.0))

    async def close(self) -> None:
        """End the looks under way."""
        await self._views.close()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        self._fleet.ends = await self._ends()
        self._fleet.monotonic = self._resources.clock.monotonic()
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
        body = encode(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        """The loop that answers this is the one that folds and acts; if one of its tasks fails, the process ends."""
        return _json({"alive": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        readiness = self._judge.judge(await self._ends(), time.monotonic())
        return _json(readiness, HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _roster(self, _: web.Request) -> web.Response:
        return _json(await self._views.status())

    async def _proxies(self, _: web.Request) -> web.Response:
        status = msgspec.to_builtins(await self._views.status())
        return _json({key: value for key, value in status.items() if key != "workers"})

    async def _plan(self, _: web.Request) -> web.Response:
        return _json(await self._views.plan())

    async def _ends(self) -> LogState | None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._resources.log.state()
        except (TimeoutError, LogUnavailable):
            return None


@contextlib.asynccontextmanager
async def serving(pages: Web, settings: WebSettings) -> AsyncGenerator[HostAndPort]:
    """Listen at `settings.listen`, which must be set, as long as this context is open. Raises `PortTaken`."""
    address = parse_host_and_port(settings.listen or "")
    async with listening(pages, settings, address) as bound:
        _log.info("web.listening", address=str(bound), exposed=settings.exposed)
        yield bound


@contextlib.asynccontextmanager
async def listening(pages: Web, settings: WebSettings, address: HostAndPort) -> AsyncGenerator[HostAndPort]:
    """Listen at `address`, of which port 0 lets the system choose; gives the one that it is. Raises `PortTaken`."""
    runner = web.AppRunner(
        pages.app(settings),
        access_log=None,
        logger=_Underneath(logging.getLogger("aiohttp.server")),
        shutdown_timeout=STOP_SECONDS,
        keepalive_timeout=15,
    )
    await runner.setup()
    lagging = asyncio.create_task(pages.watch_the_loop(), name="web: loop lag")
    try:
        try:
            await web.TCPSite(runner, address.host, address.port, reuse_address=True).start()
        except OSError as exc:
            reason = exc.strerror or str(exc)
            raise PortTaken(f"web.listen: nothing can listen at {address} ({reason}); choose another address") from exc
        bound = runner.addresses[0]
        yield HostAndPort(bound[0], bound[1])
    finally:
        await end(lagging)
        await runner.cleanup()
        await pages.close()


class _Underneath(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp says: it takes what a client sends that is no HTTP for a failure of the server's, with traceback."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            _log.info("web.not_http", reason=" ".join(exc_info.message.split())[:LONGEST_REASON])
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)


def _guard(settings: WebSettings) -> Any:
    """Refuse names that are not ours, and answer every failure in JSON."""
    names = {"localhost", *(name.lower() for name in settings.hosts)}

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _ours(request.host, names):
            told = (
                f"the host {request.host[:80]!r} is not one of this server's; add it to web.hosts, or use the address"
            )
            return _json({"error": told}, HTTPStatus.MISDIRECTED_REQUEST)
        try:
            return await handler(request)
        except web.HTTPException as exc:
            headers = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else None
            return _json({"error": exc.reason}, exc.status, headers)
        except NotYet as exc:
            return _json({"error": str(exc)}, HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception as exc:  # noqa: BLE001 - a defect in one page must not end the controller
            _log.exception("web.failed", path=request.path)
            return _json({"error": f"{type(exc).__name__}; the log has more"}, HTTPStatus.INTERNAL_SERVER_ERROR)

    return guard


def _ours(host: str, names: set[str]) -> bool:
    """Whether the `Host` header holds an address, or one of `names`; its port is of no interest."""
    bare, bracket, _ = host.removeprefix("[").partition("]") if host.startswith("[") else host.partition(":")
    if host.startswith("[") and not bracket:
        return False
    if bare.lower().removesuffix(".") in names:
        return True
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return False
    return True


async def _secure(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY)


def _json(value: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, headers=headers, content_type="application/json"
    )
