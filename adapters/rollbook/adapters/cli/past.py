"""What the commands that read history share: moments as a person writes them, and where older facts are."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollbook.adapters.cli.common import parse_duration
from rollbook.adapters.cli.exits import UsageError
from rollbook.adapters.settings import Client
from rollbook.events import RollbookError
from rollbook.projections.history.moments import Moment, NoSuchMoment, parse_moment
from rollbook.projections.ports import HistoryHole

if TYPE_CHECKING:
    from rollbook.adapters.bootstrap import Reader
    from rollbook.adapters.history import History

Archive = Annotated[
    str | None,
    Parameter(
        help="A folder that `rollbook archive` filled, or one file of `rollbook export`: read what is older there."
    ),
]
"""The `--archive PATH` of every command that reads history."""

At = Annotated[
    str | None,
    Parameter(
        help="A moment: a sequence such as 4711, an RFC 3339 time, -15m, or now.",
        allow_leading_hyphen=True,
        show_default=False,
    ),
]
"""The `--at MOMENT` of commands that look at one moment."""

Since = Annotated[
    str | None,
    Parameter(
        help="Only from here on: a time ago such as 10m, a sequence such as 4711, or an RFC 3339 time.",
        allow_leading_hyphen=True,
        show_default=False,
    ),
]
"""Where a range begins."""

Until = Annotated[
    str | None,
    Parameter(
        help="Only up to here: a sequence such as 4800, an RFC 3339 time, or -5m.",
        allow_leading_hyphen=True,
        show_default=False,
    ),
]
"""Where a range ends."""


class NotHere(RollbookError):
    """What is to be read is not in the log, nor in the archive that was named."""


def said_moment(text: str) -> Moment:
    """A moment that a person wrote. Raises `UsageError`."""
    try:
        return parse_moment(text, time.time())
    except NoSuchMoment as exc:
        raise UsageError(str(exc)) from exc


def parse_since(text: str, now: float) -> Moment:
    """As `said_moment`, and `10m` means as long ago. Raises `UsageError`."""
    if not text.isdecimal() and text[-1:] in {"s", "m", "h", "d"} and text[:1].isdecimal():
        return Moment(time=now - parse_duration(text))
    try:
        return parse_moment(text, now)
    except NoSuchMoment as exc:
        raise UsageError(str(exc)) from exc


def parse_until(text: str, now: float, *, follow: bool) -> Moment:
    """Where a range ends. Raises `UsageError`."""
    if follow:
        raise UsageError("--follow goes on for ever, and --until ends: leave one of them out")
    return parse_since(text, now)


@contextlib.asynccontextmanager
async def open_past(client: Client, archive: str | None) -> AsyncGenerator[History]:
    """The fleet's history: its log, and the archive that is named. Raises `LogError`."""
    async with open_past_and_log(client, archive) as (history, _):
        yield history


@contextlib.asynccontextmanager
async def open_past_and_log(client: Client, archive: str | None) -> AsyncGenerator[tuple[History, Reader]]:
    """The same, for who asks more than the past. Raises `LogError`."""
    from rollbook.adapters.bootstrap import nats_connection, open_reader
    from rollbook.adapters.history import History, past_of

    fleet = client.settings.fleet
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    async with open_reader(fleet, connection) as reader:
        try:
            yield History(fleet, await past_of(reader, fleet, archive)), reader
        except HistoryHole as exc:
            where = f"nor does {archive} hold it" if archive else "if it was archived, name its folder with --archive"
            raise NotHere(f"sequence {exc.first_missing} is not in the log of fleet {fleet!r}; {where}") from exc
