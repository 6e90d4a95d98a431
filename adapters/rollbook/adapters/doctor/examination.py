"""The whole examination, in the order in which one thing needs another."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.adapters.bootstrap import NoServer, nats_connection
from rollbook.adapters.doctor import fleet, host, log, roles
from rollbook.adapters.doctor.findings import Examination, Findings
from rollbook.adapters.jetstream.client import Client as NatsClient
from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.settings import Client, Config, ConfigError
from rollbook.adapters.spelling import counted
from rollbook.projections.ports import LogError

_ON_NATS = ("jetstream", "stream", "durability", "clock", "permissions", "leadership", "workers")


async def examine(client: Client, config: Config | None, environ: Mapping[str, str]) -> Examination:
    """Look at everything. Without `config` there is only fleet and server: a laptop's case."""
    findings = Findings()
    if config is None:
        findings.ok("config", f"fleet {client.settings.fleet} and its server, from the environment")
    else:
        config_file(findings, config)
    with findings.surviving("packages"):
        host.packages(findings, config)
    with findings.surviving("folder"):
        host.folder(findings, client.directory)
    with findings.surviving("outbox"):
        host.outboxes(findings, environ, client.directory)
    with findings.surviving("nats"):
        await _nats(findings, client, environ)
    if config is None:
        for check in ("provider", "proxies", "web"):
            findings.skipped(check, "no configuration is here; run it where the controller's is")
        return findings.examination()
    with findings.surviving("provider"):
        await fleet.provider(findings, config, environ)
    with findings.surviving("proxies"):
        await fleet.proxies(findings, config, environ)
    with findings.surviving("web"):
        await host.web(findings, config.settings.web)
    return findings.examination()


def config_file(findings: Findings, config: Config) -> None:
    """That it can be read is known; whether anything in it is doubtful is not yet."""
    told = f"{config.file}: fleet {config.settings.fleet}, {counted(len(config.settings.proxies), 'proxy', 'proxies')}"
    if config.warnings:
        findings.warning("config", f"{told}; {'; '.join(config.warnings)}", "see `rollbook check`")
    else:
        findings.ok("config", told)


async def _nats(findings: Findings, client: Client, environ: Mapping[str, str]) -> None:
    embedded = client.settings.nats.url is None
    connection = _connection(findings, client, environ)
    server = None if connection is None else await log.server(findings, connection)
    if server is None:
        for check in _ON_NATS:
            findings.skipped(check, "NATS is not reached")
        return
    try:
        await _on_nats(findings, server, client.settings.fleet, embedded=embedded)
    finally:
        await server.close()


def _connection(findings: Findings, client: Client, environ: Mapping[str, str]) -> Connection | None:
    try:
        return nats_connection(client.settings.nats, environ=environ, directory=client.directory)
    except NoServer as exc:
        findings.failed("nats", str(exc), "start `rollbook up` in this folder, or set nats.url")
    except ConfigError as exc:
        findings.failed("nats", str(exc), "put the secret where the configuration says that it is")
    except LogError as exc:
        findings.failed("nats", str(exc), "start `rollbook up` in this folder again, or set nats.url")
    return None


async def _on_nats(findings: Findings, server: NatsClient, name: str, *, embedded: bool) -> None:
    with findings.surviving("jetstream"):
        await log.jetstream(findings, server)
    there = False
    with findings.surviving("stream"):
        there = await log.stream(findings, server, name, embedded=embedded)
    with findings.surviving("permissions"):
        await roles.permissions(findings, server, name)
    if not there:
        for check in ("clock", "leadership", "workers"):
            findings.skipped(check, "there is no stream to ask")
        return
    with findings.surviving("clock"):
        await log.clock(findings, server, name)
    led = False
    with findings.surviving("leadership"):
        led = await fleet.leadership(findings, server, name)
    with findings.surviving("workers"):
        await fleet.workers(findings, server, name, led=led)
