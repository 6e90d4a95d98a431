"""Moving the older part of a log into files, and letting the stream forget it.

What the stream keeps of it: the last message of every subject, because whoever writes compares with its sequence, and
of every worker also the last fact about its highest incarnation, because lives are numbered from it. From the cut on,
nothing is missing; the cut is noted in the stream's metadata, so that readers begin there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rollbook.adapters.archive.errors import ArchiveError
from rollbook.adapters.archive.folder import SUFFIX, ArchivePast, file_name
from rollbook.adapters.archive.holding import held
from rollbook.adapters.archive.reading import ArchiveFile
from rollbook.adapters.archive.writing import PART, Written, write
from rollbook.adapters.jetstream.api import ARCHIVED_BEFORE, Refused, question, stream_info
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.publisher.reader import incarnation_of
from rollbook.events import Codec, Undecodable, stream_name
from rollbook.projections.history.past import JoinedPast, LogPast
from rollbook.projections.ports import LogUnavailable, SnapshotStore, Stored
from rollbook.projections.state.fold import message_id, restore

PURGES_IN_FLIGHT: Final = 16
TIMEOUT: Final = 10.0
"""Seconds for a question to the stream."""


class Archived(msgspec.Struct, frozen=True):
    """What was done."""

    cut: int
    """The first sequence that the log has whole."""
    file: Written | None
    """What was written; None if all of it was in files already."""
    forgotten: int
    """Messages that the stream let go of."""
    kept: int
    """Messages older than the cut that it still has."""


class _Subject(msgspec.Struct):
    last: int = 0
    highest: int = 0
    """Incarnation."""
    highest_at: int = 0
    """The last sequence about it."""


async def archive(
    client: Client, log: JetStreamLog, snapshots: SnapshotStore, fleet: str, folder: Path, *, keep: int, written: str
) -> Archived:
    """Move what is older than the `keep` newest snapshots into `folder`. `written` is the time, RFC 3339.

    Nothing is forgotten that was not found in the files, on the disk, just before. Raises `ArchiveError`,
    `LogUnavailable`, `HistoryHole`.
    """
    live = LogPast(log, snapshots)
    codec = Codec(fleet)
    _make(folder)
    with held(folder / f".{fleet}.lock", f"archiving fleet {fleet!r} into {folder}"):
        identity = (await live.state()).identity
        cut = await _cut(live, keep)
        begin, _ = await live.ends()
        made = await _save(live, codec, folder, begin, cut, written)
        await _compare(ArchivePast.open(folder, fleet), live, begin, cut - 1)
        forgotten, kept = await _forget(client, log, codec, cut, identity)
    return Archived(cut, made, forgotten, kept)


async def _save(live: LogPast, codec: Codec, folder: Path, begin: int, cut: int, written: str) -> Written | None:
    """Write what the folder does not have of all that is older than `cut`; None if it has it."""
    fleet = codec.fleet
    _sweep(folder, fleet)
    older = ArchivePast.open(folder, fleet)
    first, archived = await older.ends()
    if not older.files and begin > 1:
        raise ArchiveError(
            f"the log of fleet {fleet!r} begins at sequence {begin}, and {folder} does not hold what was archived or "
            f"imported before. Name the folder that does, or put those files ({SUFFIX}) into it"
        )
    if older.files and not first <= begin <= archived + 1:
        raise ArchiveError(
            f"{folder} holds sequences {first} to {archived}, and the log begins at {begin}: a file is missing"
        )
    if archived >= cut - 1:
        return None
    # Before a file goes on where another log's end: what both have must be the same.
    await _compare(older, live, begin, archived)
    past = JoinedPast(older, live) if older.files else live
    span = (archived + 1, cut - 1)
    identity = (await live.state()).identity
    made = await write(past, codec, span, folder / file_name(fleet, *span), identity=identity, written=written)
    ArchiveFile.open(Path(made.path), fleet).verify()
    return made


def _sweep(folder: Path, fleet: str) -> None:
    """Remove what somebody who died left half-written. The folder is held, so nobody else writes here now."""
    for part in folder.glob(f"{fleet}.*{SUFFIX}{PART}"):
        part.unlink(missing_ok=True)


async def _compare(files: ArchivePast, live: LogPast, first: int, last: int) -> None:
    """Raise `ArchiveError` unless the files hold all that the log holds from `first` to `last`, just as it does."""
    theirs = files.messages(first, last)
    async for batch in live.read(first, last):
        for stored in batch:
            found = next(theirs, None)
            if found is None or message_id(found) != message_id(stored):
                raise ArchiveError(
                    f"sequence {stored.sequence} is another message in the log than in its file: the files are of "
                    f"another log of fleet {files.files[0].head.fleet!r}, or were changed. Nothing was forgotten. Name "
                    "another folder for this log"
                )
        await asyncio.sleep(0)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ArchiveError(f"{folder} cannot be made: {exc.strerror}") from exc


async def _cut(live: LogPast, keep: int) -> int:
    """The sequence of the oldest snapshot that is kept; the log must go on confirming it."""
    found = [snapshot.sequence async for snapshot in live.snapshots() if restore(snapshot) is not None]
    if len(found) < keep:
        raise ArchiveError(
            f"{keep} snapshots are to be kept, and there are only {len(found)} that the log confirms and this version "
            "reads: nothing was archived. A controller takes them; archive later, or keep fewer with --keep"
        )
    return found[keep - 1]


async def _forget(client: Client, log: JetStreamLog, codec: Codec, cut: int, identity: str) -> tuple[int, int]:
    """Purge what is older than `cut` and not needed; how many messages went, and how many older ones are left."""
    stream = stream_name(codec.fleet)
    info = await stream_info(client, stream, timeout=TIMEOUT)
    if info["created"] != identity:
        raise ArchiveError(f"stream {stream} was deleted and made anew meanwhile: nothing of the new one was forgotten")
    before: int = info["state"]["messages"]
    await _note_cut(client, info, cut)
    subjects = await _older(log, codec, cut)
    limit = asyncio.Semaphore(PURGES_IN_FLIGHT)

    async def purge(subject: str, keep_from: int) -> None:
        async with limit:
            body = {"filter": subject, "seq": keep_from}
            try:
                await question(client, f"STREAM.PURGE.{stream}", body, timeout=60.0)
            except Refused as exc:
                raise LogUnavailable(f"stream {stream} did not forget {subject}: {exc.description}") from exc

    async with asyncio.TaskGroup() as tasks:
        for subject, known in subjects.items():
            tasks.create_task(purge(subject, await _keep_from(log, codec, subject, known, cut)))
    state = (await stream_info(client, stream, timeout=TIMEOUT))["state"]
    kept = state["messages"] - (state["last_seq"] - cut + 1)
    added = state["last_seq"] - info["state"]["last_seq"]
    return before + added - state["messages"], kept


async def _note_cut(client: Client, info: Mapping[str, Any], cut: int) -> None:
    """Before anything goes: from now on readers take the rest from the files."""
    config = dict(info["config"])
    metadata = dict(config.get("metadata") or {})
    if int(metadata.get(ARCHIVED_BEFORE, 0)) >= cut:
        return
    metadata = {name: value for name, value in metadata.items() if not name.startswith("_nats.")}
    config["metadata"] = metadata | {ARCHIVED_BEFORE: str(cut)}
    try:
        await question(client, f"STREAM.UPDATE.{config['name']}", config, timeout=TIMEOUT)
    except Refused as exc:
        raise LogUnavailable(f"stream {config['name']} cannot be noted as archived: {exc.description}") from exc


async def _older(log: JetStreamLog, codec: Codec, cut: int) -> dict[str, _Subject]:
    """What stands on each subject below `cut`, with what an earlier archiving has left there."""
    found: dict[str, _Subject] = {}
    async for batch in log.read(0):
        for stored in batch:
            if stored.sequence >= cut:
                return found
            known = found.setdefault(stored.subject, _Subject())
            known.last = stored.sequence
            incarnation = _incarnation(codec, stored)
            if incarnation and incarnation >= known.highest:
                known.highest, known.highest_at = incarnation, stored.sequence
    return found


async def _keep_from(log: JetStreamLog, codec: Codec, subject: str, known: _Subject, cut: int) -> int:
    """The sequence from which on a subject's messages are kept."""
    newest = await log.last(subject)
    if newest is None:
        return cut
    keep_from = min(cut, newest.sequence)
    if known.highest and (newest.sequence < cut or _incarnation(codec, newest) < known.highest):
        keep_from = min(keep_from, known.highest_at)
    return keep_from


def _incarnation(codec: Codec, stored: Stored) -> int:
    """The number of the life that a fact on a worker's subject is about; 0 on other subjects."""
    if not stored.subject.startswith(f"rollbook.{codec.fleet}.worker."):
        return 0
    try:
        return incarnation_of(codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence).fact)
    except Undecodable:
        return 0
