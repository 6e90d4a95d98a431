"""What the commands share: finding the configuration, and turning failures into a sentence and an exit code."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.exits import UsageError
from rollbook.adapters.cli.output import say
from rollbook.adapters.settings import Client, ClientSettings, Config, load, load_client
from rollbook.adapters.settings.load import find_file
from rollbook.events.times import LONGEST_SECONDS, UNITS

_T = TypeVar("_T")

ConfigFile = Annotated[
    Path | None,
    Parameter(
        name=["--config", "-c"], help="Configuration; by default ROLLBOOK_CONFIG, or rollbook.toml in this folder."
    ),
]
"""The `-c FILE` of every command that reads the configuration."""

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON.")]
"""The `--json` of every command that prints data."""

ProxyName = Annotated[str | None, Parameter(name="--proxy", help="Only this proxy; by default all of them.")]
"""The `--proxy` of commands about proxies."""

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
"""A TCP port."""

_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d)")


def load_config(file: Path | None) -> Config:
    """The configuration, its warnings told to the person. Raises `ConfigError`."""
    config = load(file, environ=os.environ, cwd=Path.cwd())
    _warn(config.warnings)
    return config


def load_client_config(file: Path | None) -> Client:
    """Fleet and server, for commands that only read or write facts. Raises `ConfigError`."""
    client = load_client(file, environ=os.environ, cwd=Path.cwd())
    _warn(client.warnings)
    return client


class Found(msgspec.Struct, frozen=True):
    """What there is: fleet and server always; the whole configuration where there is a file."""

    client: Client
    config: Config | None


def load_what_is_there(file: Path | None) -> Found:
    """For commands that do with fleet and server, and know more with a configuration. Raises `ConfigError`."""
    if find_file(file, os.environ, Path.cwd()) is None:
        return Found(load_client_config(file), None)
    config = load_config(file)
    settings = ClientSettings(fleet=config.settings.fleet, nats=config.settings.nats)
    return Found(Client(settings=settings, base=config.file.parent), config)


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        say(f"rollbook: warning: {warning}")


def parse_duration(text: str) -> float:
    """`90s`, `10m`, `1.5h`, `2d` or `500ms` in seconds. Raises `UsageError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration; write a number and a unit, such as 90s, 10m, 1.5h or 2d")
    seconds = float(match["number"]) * UNITS[match["unit"]]
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"{text!r} is too long; write at most 10000d")
    return seconds


def parse_timeout(text: str) -> float:
    """How long to wait, in seconds: as `parse_duration`, and a number alone is seconds. Raises `UsageError`."""
    return parse_duration(f"{text}s" if text.replace(".", "", 1).isdecimal() else text)


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end, on uvloop where it is installed."""
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def asked_to_stop() -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C from now on: for programs that then stop by themselves. Belongs to the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def start_logs() -> None:
    """Let a short command's parts speak up on standard error when something is wrong, and not before."""
    from rollbook.adapters import logs

    logs.configure(environ=os.environ, level="warning")
