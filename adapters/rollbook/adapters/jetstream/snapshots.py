"""Snapshots in JetStream's object store, in as many slots as are kept.

A slot is overwritten, never deleted: the object store leaves a mark behind for every deleted name. The order is that
of the bucket's own sequence, so snapshots of a log that was replaced since do not count as newer than those of the
present one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from nats.js.api import ObjectStoreConfig

from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.api import Refused, question
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.direct import page
from rollbook.events import validate_name
from rollbook.projections.ports import LogUnavailable, Snapshot

_log = structlog.get_logger(__name__)

KEEP: Final = 3
"""Snapshots: the newest may be torn by a crash, and the one before it may be of a log that lost its end."""


class _About(msgspec.Struct):
    """What the object store notes about an object, as far as it is needed here."""

    nuid: str = ""


class _Slot(msgspec.Struct, frozen=True):
    sequence: int
    """The bucket's, at which it was completed."""
    pieces: str
    """The last token of the subject that its content stands on."""


class JetStreamSnapshots:
    """The snapshots of one fleet, in the bucket `ROLLBOOK_<fleet>_snapshots`. Belongs to the client's loop.

    `timeout` (seconds) bounds the saving and the reading of one snapshot.
    """

    def __init__(
        self, client: Client, fleet: str, *, replicas: int = 1, keep: int = KEEP, timeout: float = 10.0
    ) -> None:
        self._client = client
        self._js = client.jetstream(timeout=timeout)
        self._bucket = f"ROLLBOOK_{validate_name('fleet', fleet)}_snapshots"
        self._stream = f"OBJ_{self._bucket}"
        self._replicas = replicas
        self._slots = [f"slot-{number}" for number in range(keep)]
        self._timeout = timeout

    async def save(self, snapshot: Snapshot) -> None:
        """Keep it in place of the oldest. Raises `LogUnavailable`."""
        try:
            written = await self._written()
            free = next((slot for slot in self._slots if slot not in written), None)
            slot = free or min(written, key=lambda slot: written[slot].sequence)
            async with asyncio.timeout(self._timeout):
                config = ObjectStoreConfig(description="Rollbook: snapshots of the fold", replicas=self._replicas)
                store = await self._js.create_object_store(self._bucket, config)
                await store.put(slot, msgspec.msgpack.encode(snapshot))
            await self._sweep()
        except (nats.errors.Error, OSError, Refused) as exc:
            raise LogUnavailable(f"bucket {self._bucket}: no snapshot was kept: {exc}; the next one is tried") from exc

    async def newest_first(self) -> AsyncGenerator[Snapshot]:
        """All that can be read, newest first; the others are skipped with a warning. Raises `LogUnavailable`."""
        written = await self._written()
        for slot in sorted(written, key=lambda slot: written[slot].sequence, reverse=True):
            try:
                async with asyncio.timeout(self._timeout):
                    content = await self._content(written[slot])
                snapshot = msgspec.msgpack.decode(content, type=Snapshot)
            except (LogUnavailable, TimeoutError, msgspec.MsgspecError) as exc:
                _log.warning(
                    "snapshot.unreadable", bucket=self._bucket, slot=slot, error=str(exc) or type(exc).__name__
                )
                continue
            if hashlib.sha256(snapshot.body).hexdigest() != snapshot.digest:
                _log.warning("snapshot.damaged", bucket=self._bucket, slot=slot, sequence=snapshot.sequence)
                continue
            yield snapshot

    async def _content(self, slot: _Slot) -> bytes:
        """All pieces of a slot, read without a consumer: a reader's credentials may make none."""
        subject = f"$O.{self._bucket}.C.{slot.pieces}"
        pieces: list[bytes] = []
        after = 0
        while after < slot.sequence:
            found = await page(self._client, self._stream, subject, after + 1, timeout=self._timeout)
            if not found:
                break
            pieces += [one.payload for one in found]
            after = found[-1].sequence
        return b"".join(pieces)

    async def _written(self) -> dict[str, _Slot]:
        """The slots that hold something."""
        written: dict[str, _Slot] = {}
        for slot in self._slots:
            name = base64.urlsafe_b64encode(slot.encode()).decode()
            which: dict[str, Any] = {"last_by_subj": f"$O.{self._bucket}.M.{name}"}
            try:
                answer = await question(self._client, f"STREAM.MSG.GET.{self._stream}", which, timeout=self._timeout)
            except Refused as exc:
                if exc.err_code in {api.NO_STREAM, api.NO_MESSAGE}:
                    continue
                raise LogUnavailable(f"bucket {self._bucket}: {exc.description}") from exc
            message = answer["message"]
            with contextlib.suppress(msgspec.MsgspecError):
                about = msgspec.json.decode(base64.b64decode(message.get("data") or ""), type=_About)
                written[slot] = _Slot(message["seq"], about.nuid)
        return written

    async def _sweep(self) -> None:
        """Remove the pieces of saves that were broken off. Raises `Refused`, `LogUnavailable`."""
        pieces = f"$O.{self._bucket}.C."
        whole = {pieces + slot.pieces for slot in (await self._written()).values()}
        body = {"subjects_filter": f"{pieces}>"}
        info = await question(self._client, f"STREAM.INFO.{self._stream}", body, timeout=self._timeout)
        for subject in set(info["state"].get("subjects") or {}) - whole:
            await question(self._client, f"STREAM.PURGE.{self._stream}", {"filter": subject}, timeout=self._timeout)
