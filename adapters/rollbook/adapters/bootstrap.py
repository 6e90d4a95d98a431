"""The composition root: from settings to a controller that can run. Nothing else puts the parts together.

What is opened here is closed here, in reverse, whatever happens in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import random
import socket
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.embedded import EmbeddedServer, discover
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.settings import (
    NatsSettings,
    RayProvider,
    SecretRef,
    Settings,
    StaticProvider,
    read_secret,
    refuse_unreachable_log,
)
from rollbook.events import RollbookError
from rollbook.projections.ending import apart, end
from rollbook.projections.leading.claims import ending_claims
from rollbook.projections.leading.controller import Companion, Controller
from rollbook.projections.leading.leases import expiry
from rollbook.projections.leading.vigil import vigil
from rollbook.projections.ports import Proxy, Readiness, WorkerProvider
from rollbook.projections.resources import Resources

_log = structlog.get_logger("rollbook")


BAD: Final = (
    ".unreachable",
    "_failed",
    ".unavailable",
    ".refused",
    ".of_another_log",
    ".not_saved",
    ".drift",
    ".quarantined",
    ".lost",
    ".outranked",
)
"""Endings of the names of events that stand out."""


class NoServer(RollbookError):
    """There is no NATS to talk to, and none can be started here."""


class NoProvider(RollbookError):
    """The configured provider cannot be had here."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A controller with its parts, ready to run."""

    controller: Controller
    nats: Connection
    """Where its log is, with the credentials that publishers need: `nats.environ()` for their environment."""
    log: JetStreamLog
    proxies: dict[str, Proxy]
    server: EmbeddedServer | None
    """The embedded server, None with a configured one."""

    async def run(self) -> None:
        """Run the controller until it is stopped. Raises what ended it, also an embedded server that gave up."""
        controlling = asyncio.create_task(self.controller.run(), name="controller")
        failing = asyncio.create_task(self._server_gone(), name="embedded server")
        try:
            await asyncio.wait([controlling, failing], return_when=asyncio.FIRST_COMPLETED)
            if failing.done() and not controlling.done():
                failing.result()
            await controlling
        finally:
            self.controller.stop()
            await end(failing)
            await end(controlling)

    async def _server_gone(self) -> None:
        if self.server is None:
            await asyncio.Event().wait()
        else:
            await self.server.given_up()
            msg = "the embedded nats-server dies again and again; its last words are in .rollbook/nats.log"
            raise NoServer(msg)


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """What commands need that read the log or ask its controller."""

    client: Client
    log: JetStreamLog
    snapshots: JetStreamSnapshots
    clock: SystemClock


def owner_name() -> str:
    """Who writes, for the log: `controller-<host>-<pid>`, in letters that a name may have."""
    host = "".join(c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname())
    return f"controller-{host[:80]}-{os.getpid()}"


def nats_connection(nats: NatsSettings, *, environ: Mapping[str, str], directory: Path) -> Connection:
    """How to reach the log from this folder: the configured server, or the embedded one that runs here.

    Raises `NoServer` if no server is configured and none runs.
    """
    base = directory.parent
    if nats.url is None:
        url = discover(directory)
        if url is None:
            msg = (
                f"no NATS is configured, and no embedded one runs for {base}: start `rollbook up` there, or set "
                "nats.url (or ROLLBOOK_NATS_URL)"
            )
            raise NoServer(msg)
        return Connection(url=url)

    def secret(ref: SecretRef | None) -> str | None:
        return None if ref is None else read_secret(ref, environ=environ, base=base)

    def path(text: str | None) -> Path | None:
        return None if text is None else base / text

    return Connection(
        url=nats.url,
        token=secret(nats.token),
        user=nats.user,
        password=secret(nats.password),
        creds=path(nats.creds),
        nkey=path(nats.nkey),
        ca=path(nats.ca),
    )


@contextlib.asynccontextmanager
async def open_reader(fleet: str, connection: Connection) -> AsyncGenerator[Reader]:
    """Connect for reading. Raises `LogError` if the server cannot be reached or has no log of this fleet."""
    client = await connect(connection, name="rollbook-cli")
    try:
        log = JetStreamLog(client, fleet, direct=True)
        await log.state()
        yield Reader(client=client, log=log, snapshots=JetStreamSnapshots(client, fleet), clock=SystemClock())
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def open_readiness() -> AsyncGenerator[Readiness]:
    """The prober of workers."""
    from rollbook.adapters.proxies.readiness import HttpReadiness

    readiness = HttpReadiness()
    try:
        yield readiness
    finally:
        await readiness.close()


@contextlib.asynccontextmanager
async def open_provider(settings: Settings, base: Path) -> AsyncGenerator[WorkerProvider]:
    """Who knows where the workers are. `base` is where relative paths start: the configuration's folder.

    Attaches to Ray for the kinds `ray` and `ray-actors`; `NoProvider` without Ray.
    """
    provider = settings.provider
    if isinstance(provider, StaticProvider):
        from rollbook.adapters import static

        if provider.file is None:
            yield static.StaticProvider(provider.addresses())
        else:
            yield static.FileProvider(base / provider.file)
        return
    if importlib.util.find_spec("ray") is None:
        kind = provider.__struct_config__.tag
        raise NoProvider(f"provider.kind is \"{kind}\", and Ray is not installed here: pip install 'rollbook[ray]'")
    from rollbook.adapters.ray.actors import RayActorsProvider as ActorsProvider
    from rollbook.adapters.ray.provider import RayWorkerProvider

    workers: RayWorkerProvider | ActorsProvider
    if isinstance(provider, RayProvider):
        workers = await RayWorkerProvider.create(
            settings.fleet, manager=provider.manager, namespace=provider.namespace, address=provider.address
        )
    else:
        workers = await ActorsProvider.create(
            provider.actor,
            pool=provider.pool,
            method=provider.method,
            namespace=provider.namespace,
            address=provider.address,
        )
    try:
        yield workers
    finally:
        await workers.close()


@contextlib.asynccontextmanager
async def open_nats(
    nats: NatsSettings, *, environ: Mapping[str, str], directory: Path
) -> AsyncGenerator[tuple[Connection, EmbeddedServer | None]]:
    """The configured server, or an embedded one that lives as long as this context."""
    if nats.url is not None:
        yield nats_connection(nats, environ=environ, directory=directory), None
        return
    server = EmbeddedServer(directory)
    url = await server.start()
    try:
        yield Connection(url=url), server
    finally:
        await apart(server.stop())


@contextlib.asynccontextmanager
async def build(
    settings: Settings,
    directory: Path,
    *,
    environ: Mapping[str, str],
    provider: WorkerProvider | None = None,
    once: Companion | None = None,
    relist: bool = False,
) -> AsyncGenerator[Built]:
    """A controller with everything that it needs. `directory` is the `.rollbook` folder, made if it is missing.

    `provider` stands in for the configured one where the caller has it already. With `once` the controller leads at
    once or not at all, and serves nobody: it is there for that companion. `relist` is as `Controller` says. Raises
    `RollbookError` for whatever is missing, refused or misconfigured; nothing is left running then.
    """
    from rollbook.adapters.health.heartbeats import hearing
    from rollbook.adapters.proxies.opening import open_proxies
    from rollbook.adapters.service.server import service
    from rollbook.adapters.service.verbs import HANDLERS
    from rollbook.adapters.service.verifying import verifying

    clock, ids = SystemClock(), UuidV7()
    async with contextlib.AsyncExitStack() as stack:
        if provider is None:
            provider = await stack.enter_async_context(open_provider(settings, directory.parent))
            if not isinstance(settings.provider, StaticProvider):
                from rollbook.adapters.ray.provider import count_nodes

                refuse_unreachable_log(settings, await count_nodes())
        opened = open_nats(settings.nats, environ=environ, directory=directory)
        connection, server = await stack.enter_async_context(opened)
        client = await connect(connection, name="rollbook-controller")
        stack.push_async_callback(client.close)
        replicas = settings.nats.replicas
        await provision(client, settings.fleet, replicas=replicas)
        opening = open_proxies(settings, environ=environ, base=directory.parent)
        proxies: dict[str, Proxy] = await stack.enter_async_context(opening)
        log = JetStreamLog(client, settings.fleet)
        metrics = None
        if settings.web.listen is not None and once is None:
            from rollbook.adapters.proxies.measured import MeasuredProxy
            from rollbook.adapters.web.metrics import Metrics

            metrics = Metrics((await log.state()).last_sequence, proxies)
            proxies = {name: MeasuredProxy(proxy, metrics.note_call) for name, proxy in proxies.items()}
        resources = Resources(
            log=log,
            snapshots=JetStreamSnapshots(client, settings.fleet, replicas=replicas, keep=settings.snapshots.keep),
            leadership=JetStreamLeadership(client, settings.fleet, replicas=replicas, lease=settings.leadership.lease),
            provider=provider,
            readiness=await stack.enter_async_context(open_readiness()),
            clock=clock,
            ids=ids,
            rng=random.Random(),  # noqa: S311 - jitter, not secrets
            owner=owner_name(),
            tell=_tell,
        )
        await stack.enter_async_context(hearing(client, settings.fleet, resources.observers, resources.leases, clock))
        witnesses = [resources.observers.witness, *([] if metrics is None else [metrics.witness])]
        handlers = [*HANDLERS, verifying(settings, environ=environ, base=directory.parent)]
        companions = [service(client, handlers), vigil, expiry, ending_claims] if once is None else [once]
        controller = Controller(
            settings.policy(),
            resources,
            list(proxies.values()),
            companions,
            standby=once is None,
            witnesses=witnesses,
            relist=relist,
        )
        if metrics is not None:
            from rollbook.adapters.web.server import Web, serving

            await stack.enter_async_context(serving(Web(controller, resources, proxies, metrics), settings.web))
        yield Built(controller=controller, nats=connection, log=log, proxies=proxies, server=server)


def _tell(event: str, /, **keys: object) -> None:
    """Log lines of the loops; what failed stands out."""
    bad = event.endswith(BAD)
    (_log.warning if bad else _log.info)(event, **keys)
