"""Who keeps a cell: of the managers of one fleet only one does, whatever names they were launched under.

The claims are in the store of Ray's head, where one of several gets to write a key that is not there. A cell's first
keeper is whoever wrote the cell's own key. A manager that is gone for good lets go of nothing; who follows it writes
himself down behind it, which again only one can do. So the last one of a cell's line keeps it, and no claim of a dead
manager has to be cleaned up before another one can be made. Who keeps a cell may let it go; then its line is gone, and
another begins.

That a manager is gone is Ray's verdict. One that hangs, or is being restarted, keeps what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import NoReturn, Protocol, TypeVar

import msgspec

from rollbook.adapters.ray.store import Store
from rollbook.events import RollbookError

T = TypeVar("T")


class KeptElsewhere(RollbookError):
    """Another manager of the fleet has the cell. The message says which one, and what to do."""


class Holder(msgspec.Struct, frozen=True):
    """A manager, as it stands in a claim."""

    id: str
    """Ray's id of the actor; the same after a restart of that actor."""
    name: str
    namespace: str


class Description(msgspec.Struct, frozen=True):
    """A manager, as it describes itself."""

    fleet: str
    detached: bool
    pid: int
    id: str
    """As in `Holder`."""


class Run(Protocol):
    """Runs a blocking job on the thread for Ray's calls; `asked` says for whom, should it give no answer."""

    def __call__(self, job: Callable[[], T], asked: str, /) -> Awaitable[T]:
        """What the job returns. Raises `RollbookError`."""
        ...


class Claims:
    """The claims of one manager, `me`. `is_gone` says whether Ray calls another one dead for good."""

    def __init__(
        self, fleet: str, me: Holder, store: Store, run: Run, is_gone: Callable[[Holder], Awaitable[bool]]
    ) -> None:
        self._fleet = fleet
        self._me = me
        self._store = store
        self._run = run
        self._is_gone = is_gone
        self._gone: set[str] = set()
        """Managers that are: a verdict that lasts."""
        self._one_at_a_time = asyncio.Lock()
        """A second release at the same moment could delete what somebody else has claimed since."""

    async def take(self, cells: Iterable[str]) -> None:
        """Claim all of these, none of which is kept here. All or none: raises `KeptElsewhere`, or as `run`.

        Everybody claims in the same order and stops at the first cell that he does not get; so of several that want
        some of the same cells at one moment not all are refused.
        """
        wanted = sorted(cells)
        async with self._one_at_a_time:
            await self._require_free(wanted)
            try:
                for cell in wanted:
                    if (holder := await self._claim(cell)) != self._me:
                        self._refuse({cell: holder})
            except BaseException:
                await self._let_go(wanted)
                raise

    async def inherit(self, cells: Iterable[str], is_left: Callable[[str], Awaitable[bool]]) -> set[str]:
        """Those of `cells` that are ours: had before, or left by a manager that is gone, if anything `is_left`.

        What a manager leaves goes to one heir: who does not get its first cell takes none of it. Raises as `run`.
        """
        mine: set[str] = set()
        spoken_for: set[str] = set()
        async with self._one_at_a_time:
            for cell in sorted(cells):
                last = (await self._line(cell))[-1:]
                if last == [self._me]:
                    mine.add(cell)
                elif spoken_for.isdisjoint(one.id for one in last) and await is_left(cell):
                    if await self._claim(cell) == self._me:
                        mine.add(cell)
                    else:
                        spoken_for |= {one.id for one in await self._line(cell)}
        return mine

    async def release(self, cells: Iterable[str]) -> None:
        """Let go of those of `cells` that are ours. What cannot be let go of now is, when this manager is gone."""
        async with self._one_at_a_time:
            await self._let_go(cells)

    async def _require_free(self, cells: Iterable[str]) -> None:
        """Raise `KeptElsewhere` for those that somebody else has."""
        held: dict[str, Holder] = {}
        living: set[str] = set()
        for cell in cells:
            for last in (await self._line(cell))[-1:]:
                if last != self._me and (last.id in living or not await self._lets_go(last)):
                    living.add(last.id)
                    held[cell] = last
        if held:
            self._refuse(held)

    async def _claim(self, cell: str) -> Holder:
        """Who has it, once either we do or another one who lives."""
        while True:
            line = await self._line(cell)
            last = line[-1] if line else None
            if last is not None and (last == self._me or not await self._lets_go(last)):
                return last
            # Whether we got to write it, and behind whom, is what the line says then.
            key, me = self._key(cell, last), msgspec.json.encode(self._me)
            await self._asked(cell, partial(self._store.put, key, me, overwrite=False))

    async def _let_go(self, cells: Iterable[str]) -> None:
        for cell in cells:
            with contextlib.suppress(RollbookError):
                line = await self._line(cell)
                if line[-1:] != [self._me]:
                    continue
                # The beginning first: what is left of a line without one stands behind nobody.
                for one in (None, *line[:-1]):
                    await self._asked(cell, partial(self._store.delete, self._key(cell, one)))

    async def _line(self, cell: str) -> list[Holder]:
        """All that have kept it since it was let go of the last time, the present one last."""
        line: list[Holder] = []
        last: Holder | None = None
        while True:
            found = await self._asked(cell, partial(self._store.get, self._key(cell, last)))
            if found is None:
                return line
            last = msgspec.json.decode(found, type=Holder)
            line.append(last)

    async def _lets_go(self, holder: Holder) -> bool:
        if holder.id not in self._gone and await self._is_gone(holder):
            self._gone.add(holder.id)
        return holder.id in self._gone

    def _key(self, cell: str, after: Holder | None) -> bytes:
        return f"keeper/{self._fleet}/{cell}/{'first' if after is None else f'after-{after.id}'}".encode()

    def _asked(self, cell: str, job: Callable[[], T]) -> Awaitable[T]:
        return self._run(job, f"the claim of cell {cell}")

    def _refuse(self, held: Mapping[str, Holder]) -> NoReturn:
        cell, holder = next(iter(held.items()))
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise KeptElsewhere(
            f"manager {self._me.name!r} cannot keep cell {cell}{more} of fleet {self._fleet!r}: manager "
            f"{holder.name!r} (namespace {holder.namespace!r}) keeps it. Launch these workers under that name, or stop "
            f"that manager first: RayWorkerManager.get_handle({holder.name!r}, namespace={holder.namespace!r}).stop(). "
            "It counts as alive, also while it is being restarted, until Ray says that it is gone for good"
        )
