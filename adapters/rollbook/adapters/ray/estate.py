"""What a manager has: its cells, each with a claim that nobody else has, and a record that outlives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from rollbook.adapters.ray.border import ActorGone, RayThread, aside, call, find
from rollbook.adapters.ray.claims import Claims, Description, Holder, claims_of, of_cell
from rollbook.adapters.ray.hosts import LOOK_SECONDS, Hosts
from rollbook.adapters.ray.records import Record, Records
from rollbook.adapters.ray.spec import Spec
from rollbook.adapters.ray.store import RayStore
from rollbook.events import RollbookError

T = TypeVar("T")

_log = structlog.get_logger()


class Estate:
    """That of the manager `me` of one fleet. What raises, raises `RollbookError`."""

    def __init__(self, fleet: str, me: Holder, threads: RayThread, hosts: Hosts) -> None:
        store = RayStore()
        self._threads = threads
        self._hosts = hosts
        self._records = Records(fleet, store)
        self._claims = Claims(fleet, me, store, self._blocking, self._is_gone)

    async def take(self, cells: Mapping[str, Sequence[Spec]]) -> dict[str, Record]:
        """Claim all of these, or none; the records that their former managers left. Raises `KeptElsewhere` too."""
        claims = _claims(cells)
        await self._claims.take(claims)
        try:
            return await self._read(cells)
        except BaseException:
            await self._claims.release(claims)
            raise

    async def inherit(self) -> dict[str, Record]:
        """What was this manager's before it was restarted, and what others left that is alive."""
        records = await self._blocking(self._records.load, "reading the records")

        by_claim = {of_cell(cell): record for cell, record in records.items()}

        async def is_left(claim: str) -> bool:
            """Who shares his manager's fate may only not be dead yet."""
            specs = by_claim[claim].specs if by_claim[claim].detached else ()
            return any([await self._hosts.find(spec.name) is not None for spec in specs])

        # Read again: the former manager may have lived on and written after the first look.
        left = {claim: claims_of(record.cell, record.specs)[:-1] for claim, record in by_claim.items()}
        mine = await self._claims.inherit(left, is_left)
        return await self._read(by_claim[claim].cell for claim in mine)

    async def save(self, record: Record) -> None:
        """Write the record of a cell. Raises nothing: it is written anew with the next change."""
        try:
            await self._blocking(lambda: self._records.save(record), "writing a record")
        except RollbookError as exc:
            _log.warning("manager.record.not_saved", cell=record.cell, error=str(exc))

    async def forget(self, cells: Mapping[str, Sequence[Spec]]) -> None:
        """Remove their records, then let go of them."""
        await self._blocking(lambda: self._records.remove(cells), "forgetting the workers")
        await self._claims.release(_claims(cells))

    async def _read(self, cells: Iterable[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        for cell in sorted(cells):
            record = await self._blocking(partial(self._records.get, cell), f"the record of cell {cell}")
            if record is not None:
                found[cell] = record
        return found

    async def _is_gone(self, holder: Holder) -> bool:
        """Whether Ray says that this manager is. One that gives no answer may be busy, or on its way back."""
        asked = f"manager {holder.name!r}"
        try:
            handle = await self._blocking(lambda: find(holder.name, holder.namespace), asked)
            answer = await call(handle.describe.remote(), LOOK_SECONDS, asked)
            return msgspec.json.decode(answer, type=Description).id != holder.id
        except ActorGone:
            return True
        except (RollbookError, msgspec.MsgspecError):
            return False

    async def _blocking(self, job: Callable[[], T], asked: str) -> T:
        return await aside(self._threads, job, LOOK_SECONDS, asked)


def _claims(cells: Mapping[str, Sequence[Spec]]) -> list[str]:
    return [claim for cell, specs in cells.items() for claim in claims_of(cell, specs)]
