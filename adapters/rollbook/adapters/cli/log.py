"""`rollbook log`: the facts, one readable line each, or as they are stored."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, Json, load_client_config, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.lines import describe, describe_unreadable, resolve_types
from rollbook.adapters.cli.output import Lines, json_text, one_line, out, say
from rollbook.adapters.cli.past import Archive, Since, Until, parse_since, parse_until
from rollbook.adapters.cli.reading import read_in_order
from rollbook.adapters.settings import Client
from rollbook.events import Codec, Recorded, Undecodable, validate_name
from rollbook.projections.history.filters import Filter, places_of
from rollbook.projections.history.moments import Moment, first_from, sequence_of, state_at
from rollbook.projections.history.past import FilteredLog, Past
from rollbook.projections.ports import Stored

EXAMPLE = """\
Example:

    rollbook log --since 10m
    rollbook log --worker rollout-3-0 --type worker.down --follow
    rollbook log --proxy router-a --since 4711 --until 4800
    rollbook log --json | jq .type

Each line has the sequence, the log's time, the worker or proxy, the fact with what it says, and who said it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which facts."""

    worker: Annotated[str | None, Parameter(help="Only facts about this worker, or that mention it.")] = None
    pool: Annotated[str | None, Parameter(help="Only facts about workers of this pool, or that name it.")] = None
    cell: Annotated[str | None, Parameter(help="Only facts about workers of this cell.")] = None
    proxy: Annotated[str | None, Parameter(help="Only facts about this proxy.")] = None
    type: Annotated[
        Sequence[str],
        Parameter(
            name="--type",
            negative=(),
            show_default=False,
            help="Only facts of this type, such as worker.down or WorkerDown. May be given more than once.",
        ),
    ] = ()
    operator: Annotated[str | None, Parameter(help="Only what this person decided.")] = None
    incarnation: Annotated[
        int | None, Parameter(help="Only facts about this life of a worker.", validator=Number(gte=1))
    ] = None

    def filter(self) -> Filter:
        """The same, checked. Raises `InvalidName`, `UsageError`."""
        for kind in ("worker", "pool", "cell", "proxy"):
            if (name := getattr(self, kind)) is not None:
                validate_name(kind, name)
        return Filter(
            worker=self.worker,
            pool=self.pool,
            cell=self.cell,
            proxy=self.proxy,
            types=resolve_types(self.type),
            operator=self.operator,
            incarnation=self.incarnation,
        )


def log(
    *,
    config: ConfigFile = None,
    wanted: Wanted | None = None,
    since: Since = None,
    until: Until = None,
    archive: Archive = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative=(), show_default=False, help="Go on as facts arrive.")
    ] = False,
    json: Json = False,
) -> int:
    """Print the facts of the fleet's log.

    With --json each line is one CloudEvent as it is stored, and messages that are none are only mentioned on standard
    error.
    """
    chosen = (wanted or Wanted()).filter()
    now = time.time()
    begin = None if since is None else parse_since(since, now)
    end = None if until is None else parse_until(until, now, follow=follow)
    client = load_client_config(config)
    start_logs()
    return run(_log(client, chosen, begin, end, archive, follow=follow, json=json))


async def _log(
    client: Client,
    wanted: Filter,
    begin: Moment | None,
    end: Moment | None,
    archive: str | None,
    *,
    follow: bool,
    json: bool,
) -> int:
    from rollbook.adapters.bootstrap import nats_connection, open_reader
    from rollbook.adapters.history import past_of

    fleet = client.settings.fleet
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    async with open_reader(fleet, connection) as reader:
        past = await past_of(reader, fleet, archive)
        await print_log(reader.log, past, Codec(fleet), wanted, begin, end, follow=follow, json=json)
    return Exit.DONE


async def print_log(
    log: FilteredLog,
    past: Past,
    codec: Codec,
    wanted: Filter,
    begin: Moment | None = None,
    end: Moment | None = None,
    *,
    follow: bool = False,
    json: bool = False,
) -> None:
    """Print what is wanted of the past, from `begin` to `end`; with `follow`, go on with what arrives, for ever."""
    first, last = await past.ends()
    until = last if end is None else await sequence_of(past, end)
    if wanted.pool is not None or wanted.cell is not None:
        places = places_of(await state_at(past, codec, last))
        wanted = msgspec.structs.replace(wanted, places=places)
    subjects = wanted.subjects(codec.fleet)
    if begin is not None:
        first = await first_from(past, begin)
    elif first > 1:
        say(f"the log begins at sequence {first}; what was archived before is read with --archive")
    if subjects is None:
        return
    write = _JsonWriter(flush=follow) if json else _LineWriter(flush=follow)
    async with contextlib.aclosing(_messages(log, past, first, until, subjects, follow=follow)) as messages:
        async for stored in messages:
            own = wanted.worker is not None and stored.subject.endswith(f".{wanted.worker}")
            if not own and not wanted.may_admit(stored.payload):
                continue
            try:
                recorded = codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            except Undecodable as exc:
                if wanted.admits_unreadable(stored):
                    write.unreadable(stored, exc)
                continue
            if wanted.admits(recorded):
                write.fact(stored, recorded)


async def _messages(
    log: FilteredLog, past: Past, first: int, until: int, subjects: Sequence[str], *, follow: bool
) -> AsyncGenerator[Stored]:
    """From the archive what only the archive has, then from the log, which is read past its holes."""
    begin = (await log.state()).first_sequence
    begins, _ = await past.ends()
    if begins < begin and first < begin:
        async for batch in past.read(max(first, begins), min(until, begin - 1), subjects):
            for stored in batch:
                yield stored
    after = max(first, begin) - 1
    async for stored in read_in_order(log, after, None if follow else until, subjects):
        yield stored


class _LineWriter:
    def __init__(self, *, flush: bool) -> None:
        self._lines = Lines(flush=flush)

    def fact(self, stored: Stored, recorded: Recorded) -> None:
        self._lines.write(describe(stored, recorded))

    def unreadable(self, stored: Stored, why: Undecodable) -> None:
        self._lines.write(describe_unreadable(stored, why))


class _JsonWriter:
    def __init__(self, *, flush: bool) -> None:
        self._flush = flush

    def fact(self, stored: Stored, recorded: Recorded) -> None:
        payload = stored.payload
        # JSON may be stored with line breaks in it, and then would be more than one line; and attributes that are not
        # read may hold bytes that are no text.
        one = msgspec.json.format(payload, indent=-1) if b"\n" in payload or b"\r" in payload else payload
        out(json_text(one.decode(errors="replace")), flush=self._flush)

    def unreadable(self, stored: Stored, why: Undecodable) -> None:
        say(f"sequence {stored.sequence} on {one_line(stored.subject)} is no fact: {one_line(str(why))}")
