"""Snapshots in JetStream's object store, in as many slots as are kept.

A slot is overwritten, never deleted: the object store leaves a mark behind for every deleted name. What tells a
snapshot from others is noted beside it, so that the right one is found without reading the rest. The order is that of
the bucket's own sequence, so snapshots of a log that was replaced since do not count as newer than those of the
present one.

Ten thousand workers make some 15 MB. They are compressed (to a fifth) on a thread, which takes no time from the loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import re
import zlib
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from nats.js.api import ObjectMeta, ObjectStoreConfig

from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.api import Refused, question
from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.adapters.jetstream.direct import page
from rollbook.adapters.jetstream.provision import replicate
from rollbook.events import validate_name
from rollbook.projections.log.catchup import newest_state
from rollbook.projections.log.keeping import Mark, superfluous
from rollbook.projections.policy import SnapshotPolicy
from rollbook.projections.ports import EventLog, LogUnavailable, Snapshot
from rollbook.projections.state.fold import State
from rollbook.projections.tell import Tell, tell_nobody

_log = structlog.get_logger(__name__)

KEEP: Final = SnapshotPolicy().keep
_LEVEL: Final = 1
"""zlib's fastest."""
_IDENTITY: Final = "Rollbook-Log"
_SEQUENCE: Final = "Rollbook-Sequence"
_NUMBER: Final = re.compile("[0-9]{1,18}")


async def kept_state(client: Client, fleet: str, log: EventLog, tell: Tell = tell_nobody) -> State | None:
    """The newest state kept that `log` confirms; None if there is none, or these credentials may not read it.

    A publisher's may lack it, and then fold the log from its beginning. Raises `LogUnavailable`.
    """
    try:
        return await newest_state(log, JetStreamSnapshots(client, fleet), tell)
    except NotPermitted:
        return None


class _About(msgspec.Struct):
    """What the object store notes about an object, as far as it is needed here."""

    name: str
    nuid: str = ""
    headers: dict[str, list[str]] = {}


class _Slot(msgspec.Struct, frozen=True):
    mark: Mark
    """`saved` is the bucket's sequence at which it was completed."""
    pieces: str
    """The last token of the subject that its content stands on."""


class JetStreamSnapshots:
    """The snapshots of one fleet, in the bucket `ROLLBOOK_<fleet>_snapshots`. Belongs to the client's loop.

    `timeout` (seconds) bounds the saving and the reading of one snapshot. Readers need not know `keep`.
    """

    def __init__(
        self, client: Client, fleet: str, *, replicas: int = 1, keep: int = KEEP, timeout: float = 10.0
    ) -> None:
        self._client = client
        self._js = client.jetstream(timeout=timeout)
        self._bucket = f"ROLLBOOK_{validate_name('fleet', fleet)}_snapshots"
        self._stream = f"OBJ_{self._bucket}"
        self._replicas = replicas
        self._keep = keep
        self._timeout = timeout

    async def save(self, snapshot: Snapshot) -> None:
        """Keep it, in place of what `superfluous` says. Raises `LogUnavailable`."""
        content = await asyncio.to_thread(_pack, snapshot)
        headers: dict[str, Any] = {_IDENTITY: [snapshot.identity], _SEQUENCE: [str(snapshot.sequence)]}
        try:
            written = await self._written()
            kept = {name: slot.mark for name, slot in written.items()}
            newest = max((mark.saved for mark in kept.values()), default=0)
            gone = superfluous(kept, Mark(snapshot.identity, snapshot.sequence, newest + 1), self._keep)
            slot = gone[0] if gone else _free(written)
            async with asyncio.timeout(self._timeout):
                if not await replicate(self._client, self._stream, self._replicas, timeout=self._timeout):
                    config = ObjectStoreConfig(description="Rollbook: snapshots of the fold", replicas=self._replicas)
                    await self._js.create_object_store(self._bucket, config)
                store = await self._js.object_store(self._bucket)
                await store.put(slot, content, ObjectMeta(headers=headers))
            for name in gone[1:]:
                await self._purge(self._subject_of(name))
            await self._sweep()
        except (nats.errors.Error, OSError, Refused) as exc:
            why = str(exc) or f"no answer within {self._timeout:g} s"
            raise LogUnavailable(f"bucket {self._bucket}: no snapshot was kept: {why}; the next one is tried") from exc

    async def newest_first(self, at_most: int | None = None) -> AsyncGenerator[Snapshot]:
        """All that can be read, newest first; the others are skipped with a warning. Raises `LogUnavailable`.

        With `at_most`, those up to that sequence; what is newer is not read.
        """
        written = await self._written()
        for name, slot in sorted(written.items(), key=lambda item: item[1].mark.saved, reverse=True):
            if at_most is not None and slot.mark.sequence > at_most:
                continue
            try:
                async with asyncio.timeout(self._timeout):
                    snapshot = await asyncio.to_thread(_unpack, await self._content(slot))
            except (LogUnavailable, TimeoutError, msgspec.MsgspecError, zlib.error) as exc:
                _log.warning(
                    "snapshot.unreadable", bucket=self._bucket, slot=name, error=str(exc) or type(exc).__name__
                )
                continue
            if snapshot is None or (snapshot.identity, snapshot.sequence) != (slot.mark.identity, slot.mark.sequence):
                _log.warning("snapshot.damaged", bucket=self._bucket, slot=name, sequence=slot.mark.sequence)
                continue
            yield snapshot

    async def _content(self, slot: _Slot) -> bytes:
        """All pieces of a slot, read without a consumer: a reader's credentials may make none."""
        subject = f"$O.{self._bucket}.C.{slot.pieces}"
        pieces: list[bytes] = []
        after = 0
        while after < slot.mark.saved:
            found = await page(self._client, self._stream, subject, after + 1, timeout=self._timeout)
            if not found:
                break
            pieces += [one.payload for one in found]
            after = found[-1].sequence
        return b"".join(pieces)

    async def _written(self) -> dict[str, _Slot]:
        """The slots that hold something, by name."""
        every = f"$O.{self._bucket}.M.*"
        try:
            which: dict[str, Any] = {"last_by_subj": every}
            answer = await question(self._client, f"STREAM.MSG.GET.{self._stream}", which, timeout=self._timeout)
        except Refused as exc:
            if exc.err_code in {api.NO_STREAM, api.NO_MESSAGE}:
                return {}
            raise LogUnavailable(f"bucket {self._bucket}: {exc.description}") from exc
        last: int = answer["message"]["seq"]
        written: dict[str, _Slot] = {}
        after = 0
        while after < last:
            found = await page(self._client, self._stream, every, after + 1, timeout=self._timeout)
            if not found:
                raise LogUnavailable(f"bucket {self._bucket}: the replica that answered lags; the next time is tried")
            for one in found:
                slot = _slot(one.payload, one.sequence)
                if slot is not None:
                    written[slot[0]] = slot[1]
            after = found[-1].sequence
        return written

    async def _sweep(self) -> None:
        """Remove the pieces of saves that were broken off. Raises `Refused`, `LogUnavailable`."""
        pieces = f"$O.{self._bucket}.C."
        whole = {pieces + slot.pieces for slot in (await self._written()).values()}
        body = {"subjects_filter": f"{pieces}>"}
        info = await question(self._client, f"STREAM.INFO.{self._stream}", body, timeout=self._timeout)
        for subject in set(info["state"].get("subjects") or {}) - whole:
            await self._purge(subject)

    async def _purge(self, subject: str) -> None:
        await question(self._client, f"STREAM.PURGE.{self._stream}", {"filter": subject}, timeout=self._timeout)

    def _subject_of(self, slot: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(slot.encode()).decode()}"


def _slot(payload: bytes, saved: int) -> tuple[str, _Slot] | None:
    """A slot from what the object store notes of it; None if that is not to be read."""
    try:
        about = msgspec.json.decode(payload, type=_About)
        identity, sequence = (about.headers.get(name, [""])[0] for name in (_IDENTITY, _SEQUENCE))
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        return None
    number = int(sequence) if _NUMBER.fullmatch(sequence) else 0
    return about.name, _Slot(Mark(identity, number, saved), about.nuid)


def _free(written: dict[str, _Slot]) -> str:
    return next(name for number in itertools.count() if (name := f"slot-{number}") not in written)


def _pack(snapshot: Snapshot) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(snapshot), _LEVEL)


def _unpack(content: bytes) -> Snapshot | None:
    """None if it does not match its digest. Raises `MsgspecError`, `zlib.error`."""
    snapshot = msgspec.msgpack.decode(zlib.decompress(content), type=Snapshot)
    return snapshot if hashlib.sha256(snapshot.body).hexdigest() == snapshot.digest else None
