"""Making a log of an archive: every message at its old sequence, in a stream that held nothing before.

Everything is checked before anything is written. Messages go in atomic batches that say which sequence they expect, so
an import that was broken off left a whole number of batches, and goes on from there when it is begun again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from rollbook.adapters.archive.errors import ArchiveError, DamagedArchive
from rollbook.adapters.archive.reading import ArchiveFile, Line
from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.api import Refused, publish, question
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.log import MAX_BATCH, JetStreamLog
from rollbook.adapters.jetstream.provision import provision, wanted
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.events import Codec, stream_name
from rollbook.events.codec import MAX_PAYLOAD
from rollbook.projections.ports import LogUnavailable, Stored
from rollbook.projections.state.fold import SCHEMA, State, message_id, restore

EXPECTED_LAST: Final = "Nats-Expected-Last-Sequence"
_HEADERS: Final = 300
"""Bytes for all headers of a message."""
MOST_BYTES: Final = 8 << 20
"""Of one batch."""


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    first: int
    last: int
    digest: str
    """Of the state after the last message."""
    already: int
    """The last sequence that was there: an import that was broken off, or a log that lost its end; 0 if none was."""


class _Id(msgspec.Struct):
    id: str = ""


_ids = msgspec.json.Decoder(_Id)


def check_files(files: Sequence[ArchiveFile], codec: Codec, *, max_payload: int | None = None) -> State:
    """Read and fold all of it; the state at its end. `max_payload`: the bytes that a server takes in one message.

    Raises `DamagedArchive`, or `ArchiveError` for what the server would not take, before anything is written.
    """
    if not files:
        raise ArchiveError(f"there is no archive of fleet {codec.fleet!r} to import")
    state = _start(files[0])
    for file in files:
        messages = file.messages()
        while True:
            try:
                line = next(messages)
            except StopIteration as over:
                end = over.value
                break
            state.apply(line.stored, codec)
            if max_payload is not None and len(_kept(line).restored) + _HEADERS > max_payload:
                raise ArchiveError(
                    f"{file.path}: sequence {line.stored.sequence} has {len(line.restored)} bytes, and the server takes"
                    f" messages of {max_payload}. Raise its max_payload. Nothing was written"
                )
        if end.schema == SCHEMA and end.digest != state.digest():
            raise DamagedArchive(
                file.path, file.head.last - file.head.first + 3, "its messages do not fold to the state that it names"
            )
    return state


def _start(file: ArchiveFile) -> State:
    base = file.base
    if base is None:
        return State()
    state = restore(base)
    if state is None or state.sequence != file.head.first - 1:
        raise ArchiveError(
            f"{file.path} begins at sequence {file.head.first} with a state that this version cannot read; import the "
            "archive from its beginning"
        )
    return state


async def import_files(client: Client, fleet: str, files: Sequence[ArchiveFile], *, timeout: float = 10.0) -> Imported:
    """Make the log of `fleet`. Raises `DamagedArchive`, `ArchiveError` (the fleet has a log), `LogUnavailable`."""
    codec = Codec(fleet)
    state = check_files(files, codec, max_payload=client.max_payload)
    first, last = files[0].head.first, files[-1].head.last
    log = JetStreamLog(client, fleet, timeout=timeout)
    already = await _prepare(client, fleet, log, first, files, timeout)
    stream = stream_name(fleet)
    expected = max(already, first - 1)
    for batch in _batches(line for line in _restored(files) if line.stored.sequence > expected):
        await _store(client, stream, batch, expected, timeout)
        expected = batch[-1].stored.sequence
    await provision(client, fleet, timeout=timeout)
    await _keep_base(client, fleet, log, files[0], codec)
    ends = await log.state()
    if ends.last_sequence != last:
        raise ArchiveError(
            f"stream {stream} ends at {ends.last_sequence} and not at {last}: somebody else wrote to it meanwhile. "
            "Stop whoever does, remove the stream (`nats stream rm`) and import again"
        )
    return Imported(first, last, state.digest(), already)


async def _prepare(
    client: Client, fleet: str, log: JetStreamLog, first: int, files: Sequence[ArchiveFile], timeout: float
) -> int:
    """Have an empty stream that counts from `first`, or one that holds the beginning: then its last sequence."""
    stream = stream_name(fleet)
    try:
        info = await question(client, f"STREAM.INFO.{stream}", timeout=timeout)
    except Refused as exc:
        if exc.err_code != api.NO_STREAM:
            raise LogUnavailable(f"stream {stream}: {exc.description}") from exc
    else:
        state: dict[str, Any] = info["state"]
        if state["messages"]:
            return await _unfinished(log, stream, state, first, files)
        if state["last_seq"] == first - 1:
            return 0
        await question(client, f"STREAM.DELETE.{stream}", timeout=timeout)
    await question(client, f"STREAM.CREATE.{stream}", {**wanted(fleet, 1), "first_seq": first}, timeout=timeout)
    return 0


async def _unfinished(
    log: JetStreamLog, stream: str, state: dict[str, Any], first: int, files: Sequence[ArchiveFile]
) -> int:
    last: int = state["last_seq"]
    if state["first_seq"] == first and last <= files[-1].head.last and await _begins_with(log, files, first, last):
        return last
    raise ArchiveError(
        f"stream {stream} holds {state['messages']} messages, up to sequence {last}, and they are not the beginning of "
        "this archive. An import needs a fleet without a log: choose another fleet or server, or remove the stream "
        "(`nats stream rm`) if nobody needs it"
    )


async def _begins_with(log: JetStreamLog, files: Sequence[ArchiveFile], first: int, last: int) -> bool:
    """Whether the log holds what the archive does up to `last`, all of it and nothing else."""
    if await log.get(last) is None:
        return False
    theirs = (line.stored for line in _restored(files))
    async with contextlib.aclosing(log.read(first - 1)) as batches:
        async for batch in batches:
            for stored in batch:
                found = next(theirs)
                if stored.sequence != found.sequence or message_id(stored) != message_id(found):
                    return False
                if stored.sequence == last:
                    return True
    return False


def _restored(files: Sequence[ArchiveFile]) -> Iterator[Line]:
    """All messages, as the log is to hold them."""
    for file in files:
        yield from map(_kept, file.messages())


def _kept(line: Line) -> Line:
    """Without its notes if it would be no fact any more with them."""
    return line if len(line.restored) <= MAX_PAYLOAD else Line(line.stored, line.stored.payload)


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == MAX_BATCH or size + len(line.restored) > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.restored)
    if batch:
        yield batch


async def _store(client: Client, stream: str, batch: Sequence[Line], expected: int, timeout: float) -> None:
    """All of it or nothing, at exactly the sequences that follow `expected`."""
    try:
        try:
            await _publish(client, batch, expected, ids=True, timeout=timeout)
        except Refused as exc:
            if exc.err_code != api.DUPLICATE_IN_BATCH:
                raise
            # The log has a fact twice, which only a server that recognises ids would not take again.
            await _publish(client, batch, expected, ids=False, timeout=timeout)
    except Refused as exc:
        raise ArchiveError(
            f"stream {stream} did not take sequences {expected + 1} to {batch[-1].stored.sequence}: {exc.description}. "
            "Import again: it goes on where it was broken off"
        ) from exc


async def _publish(client: Client, batch: Sequence[Line], expected: int, *, ids: bool, timeout: float) -> None:
    inbox = client.new_inbox().rpartition(".")[2]
    messages: list[tuple[str, bytes, dict[str, str]]] = []
    for number, line in enumerate(batch, 1):
        headers = {api.BATCH_ID: inbox, api.BATCH_SEQUENCE: str(number)} if len(batch) > 1 else {}
        if ids and (fact_id := _id_of(line.stored)):
            headers[api.MSG_ID] = fact_id
        messages.append((line.stored.subject, line.restored, headers))
    messages[0][2][EXPECTED_LAST] = str(expected)
    *others, (subject, payload, headers) = messages
    if others:
        await client.tell(others, timeout=timeout)
        headers[api.BATCH_COMMIT] = "1"
    ack = await publish(client, subject, payload, headers, timeout=timeout)
    if ack.seq != batch[-1].stored.sequence or ack.duplicate:
        raise ArchiveError(
            f"sequence {batch[-1].stored.sequence} was stored as {ack.seq}: somebody else writes to this stream. Stop "
            "whoever does, remove the stream (`nats stream rm`) and import again"
        )


def _id_of(stored: Stored) -> str:
    try:
        return _ids.decode(stored.payload).id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


async def _keep_base(client: Client, fleet: str, log: JetStreamLog, file: ArchiveFile, codec: Codec) -> None:
    """A log that begins in the middle needs a state to begin with, confirmed by its first message."""
    if file.base is None:
        return
    state = _start(file)
    stored = await log.get(file.head.first)
    if stored is None:
        raise LogUnavailable(f"stream {stream_name(fleet)} does not have its first message; import again")
    state.apply(stored, codec)
    ends = await log.state()
    await JetStreamSnapshots(client, fleet).save(state.snapshot(ends.identity, message_id(stored)))
