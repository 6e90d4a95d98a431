"""`rollbook export`, `import` and `archive`: the log in files, and files as a log again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, Json, load_client_config, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import out, out_json, say
from rollbook.adapters.cli.past import Archive, open_past_and_log, parse_since, said_moment
from rollbook.adapters.settings import Client
from rollbook.events.times import rfc3339
from rollbook.projections.history.moments import Moment, first_folded, sequence_of

if TYPE_CHECKING:
    from rollbook.adapters.archive.importing import Imported
    from rollbook.adapters.archive.trimming import Archived
    from rollbook.adapters.archive.writing import Written

EXPORT_EXAMPLE = """\
Example:

    rollbook export run-42.jsonl.zst
    rollbook export --since -2h --until now last-two-hours.jsonl.zst
    zstdcat run-42.jsonl.zst | jq -r .type | sort | uniq -c"""

IMPORT_EXAMPLE = """\
Example:

    rollbook import run-42.jsonl.zst
    rollbook replay --check"""

ARCHIVE_EXAMPLE = """\
Example:

    rollbook archive archive/
    rollbook explain rollout-3-0 --archive archive/"""

Ends = Annotated[
    str | None,
    Parameter(help="A moment: a sequence, an RFC 3339 time, or -2h.", allow_leading_hyphen=True, show_default=False),
]


def export(
    file: Annotated[Path, Parameter(help="The file to write, such as run-42.jsonl.zst.")],
    /,
    *,
    since: Ends = None,
    until: Ends = None,
    archive: Archive = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Write the log, or a part of it, into one file: a CloudEvent on each line, compressed, with checks.

    A part that does not begin with the log holds the state before it, so that it can be read and imported alone.
    """
    now = time.time()
    begin = None if since is None else parse_since(since, now)
    end = None if until is None else said_moment(until)
    client = load_client_config(config)
    start_logs()
    written = run(_export(client, archive, begin, end, file))
    _tell_written(written, json=json)
    return Exit.DONE


async def _export(client: Client, archive: str | None, begin: Moment | None, end: Moment | None, file: Path) -> Written:
    from rollbook.adapters.archive.writing import write

    async with open_past_and_log(client, archive) as (history, reader):
        past = history.past
        begins, last = await past.ends()
        if begin is None and begins > 1:
            say(
                f"rollbook: what there is to read begins at sequence {begins}; --archive reads what was archived before"
            )
        if end is not None:
            last = await sequence_of(past, end)
        first = await first_folded(past, begin)
        identity = (await reader.log.state()).identity
        span = (first, last)
        return await write(past, history.codec, span, file, identity=identity, written=rfc3339(time.time()))


def _tell_written(written: Written, *, json: bool) -> None:
    if json:
        out_json(msgspec.to_builtins(written))
        return
    out(f"{written.path}: sequences {written.first} to {written.last}, {written.size:,} bytes")
    out(f"digest of the state at its end: {written.digest}")


def import_(
    path: Annotated[Path, Parameter(help="A file of `rollbook export`, or a folder of archives.")],
    /,
    *,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Make the log of a fleet that has none from an archive: every fact at its old sequence, with its id and time.

    Everything is checked before anything is written. An import that was broken off goes on when it is begun again, and
    a log that lost its end gets it back.
    """
    client = load_client_config(config)
    start_logs()
    imported = run(_import(client, path))
    if json:
        out_json(msgspec.to_builtins(imported))
    else:
        if imported.already:
            out(f"everything up to sequence {imported.already} was there already")
        out(f"sequences {imported.first} to {imported.last} are in the log")
        out(f"digest of the state at its end: {imported.digest}")
    return Exit.DONE


async def _import(client: Client, path: Path) -> Imported:
    from rollbook.adapters.archive.folder import ArchivePast
    from rollbook.adapters.archive.importing import import_files
    from rollbook.adapters.bootstrap import nats_connection
    from rollbook.adapters.jetstream.connection import connect

    fleet = client.settings.fleet
    files = ArchivePast.open(path, fleet).files
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    nats = await connect(connection, name="rollbook-import")
    try:
        return await import_files(nats, fleet, files)
    finally:
        await nats.close()


def archive(
    folder: Annotated[Path, Parameter(help="Where the files go; the same folder every time.")],
    /,
    *,
    keep: Annotated[
        int, Parameter(help="Snapshots to keep; what is older than the oldest of them goes.", validator=Number(gte=1))
    ] = 2,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Move what is older than the newest snapshots into a folder, and let the server's log forget it.

    A controller may run meanwhile. Commands that look back reach the archived part with --archive FOLDER.
    """
    client = load_client_config(config)
    start_logs()
    done = run(_archive(client, folder, keep))
    if json:
        out_json(msgspec.to_builtins(done))
        return Exit.DONE
    if done.file is None:
        out(f"everything older than sequence {done.cut} is in {folder} already")
    else:
        _tell_written(done.file, json=False)
    out(f"the log begins at sequence {done.cut}; it forgot {done.forgotten:,} messages, and keeps {done.kept:,} older")
    return Exit.DONE


async def _archive(client: Client, folder: Path, keep: int) -> Archived:
    from rollbook.adapters.archive.trimming import archive as move
    from rollbook.adapters.bootstrap import nats_connection
    from rollbook.adapters.jetstream.connection import connect
    from rollbook.adapters.jetstream.log import JetStreamLog
    from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots

    fleet = client.settings.fleet
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    nats = await connect(connection, name="rollbook-archive")
    try:
        log, snapshots = JetStreamLog(nats, fleet), JetStreamSnapshots(nats, fleet)
        await log.state()
        return await move(nats, log, snapshots, fleet, folder, keep=keep, written=rfc3339(time.time()))
    finally:
        await nats.close()
