"""`rollbook log`: the facts, one readable line each, or as they are stored."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, Json, load_client_config, parse_duration, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.lines import Filter, describe, describe_unreadable, resolve_types
from rollbook.adapters.cli.output import Lines, out, say
from rollbook.adapters.cli.reading import first_since, read_in_order
from rollbook.adapters.settings import Client
from rollbook.events import Codec, Recorded, Undecodable, validate_name
from rollbook.projections.ports import EventLog, Stored

EXAMPLE = """\
Example:

    rollbook log --since 10m
    rollbook log --worker rollout-3-0 --type worker.down --follow
    rollbook log --json | jq .type

Each line has the sequence, the log's time, the worker or proxy, the fact with what it says, and who said it."""


def log(
    *,
    config: ConfigFile = None,
    worker: Annotated[str | None, Parameter(help="Only facts about this worker.")] = None,
    type: Annotated[  # noqa: A002 - the option's name
        Sequence[str],
        Parameter(
            name="--type",
            negative=(),
            show_default=False,
            help="Only facts of this type, such as worker.down or WorkerDown. May be given more than once.",
        ),
    ] = (),
    since: Annotated[str | None, Parameter(help="Only facts stored within this time, such as 10m or 2h.")] = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative=(), show_default=False, help="Go on as facts arrive.")
    ] = False,
    json: Json = False,
) -> int:
    """Print the facts of the fleet's log.

    With --json each line is one CloudEvent as it is stored, and messages that are none are only mentioned on standard
    error.
    """
    if worker is not None:
        validate_name("worker", worker)
    wanted = Filter(worker=worker, types=resolve_types(type))
    seconds = None if since is None else parse_duration(since)
    client = load_client_config(config)
    start_logs()
    return run(_log(client, wanted, seconds, follow=follow, json=json))


async def _log(client: Client, wanted: Filter, since: float | None, *, follow: bool, json: bool) -> int:
    from rollbook.adapters.bootstrap import nats_connection, open_reader

    fleet = client.settings.fleet
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    async with open_reader(fleet, connection) as reader:
        await print_log(
            reader.log, Codec(fleet), wanted, after_time=since and time.time() - since, follow=follow, json=json
        )
    return Exit.DONE


async def print_log(
    log: EventLog, codec: Codec, wanted: Filter, *, after_time: float | None, follow: bool, json: bool
) -> None:
    """Print what is wanted of the log: from `after_time` (seconds since the epoch), to its present end or for ever."""
    ends = await log.state()
    after = ends.first_sequence - 1 if after_time is None else await first_since(log, ends, after_time) - 1
    write = _JsonWriter(flush=follow) if json else _LineWriter(flush=follow)
    async with contextlib.aclosing(read_in_order(log, after, None if follow else ends.last_sequence)) as messages:
        async for stored in messages:
            try:
                recorded = codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            except Undecodable as exc:
                if wanted.admits_unreadable(stored):
                    write.unreadable(stored, exc)
                continue
            if wanted.admits(recorded):
                write.fact(stored, recorded)


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
        # JSON may be stored with line breaks in it, and then would be more than one line.
        out((msgspec.json.format(payload, indent=-1) if b"\n" in payload else payload).decode(), flush=self._flush)

    def unreadable(self, stored: Stored, why: Undecodable) -> None:
        say(f"sequence {stored.sequence} on {stored.subject} is no fact: {why}")
