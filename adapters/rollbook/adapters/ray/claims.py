"""Who keeps a cell: of the managers of one fleet only one does, whatever names they were launched under.

Claimed are the cell and the names of its workers, which another cell may not have either. The claims are in the store
of Ray's head, where one of several gets to write a key that is not there; the first keeper is whoever did. A manager
that is gone for good lets go of nothing; who follows it writes himself down behind it, which again only one can do. So
the last one of the line keeps it, and no claim of a dead manager has to be cleaned up before another one can be made.
Who keeps it may let it go; then the line is gone, and another begins.

That a manager is gone is Ray's verdict. One that hangs, or is being restarted, keeps what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn, Protocol, TypeVar

import msgspec

from rollbook.adapters.ray.spec import Spec
from rollbook.adapters.ray.store import Store
from rollbook.events import RollbookError

T = TypeVar("T")


class KeptElsewhere(RollbookError):
    """Another manager of the fleet has some of it. The message says which one, and what to do."""


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


def claims_of(cell: str, specs: Iterable[Spec]) -> list[str]:
    """What its keeper claims of a cell of these workers; the cell itself comes last."""
    return [*in_order(f"worker {spec.name}" for spec in specs), of_cell(cell)]


def of_cell(cell: str) -> str:
    """The claim of the cell itself."""
    return f"cell {cell}"


def in_order(claims: Iterable[str]) -> list[str]:
    """As everybody claims them: workers first, whom people know by name."""
    return sorted(claims, reverse=True)


class Claims:
    """The claims of one manager, `me`. `is_gone` says whether Ray calls another one dead for good."""

    def __init__(
        self, fleet: str, me: Holder, store: Store, run: Run, is_gone: Callable[[Holder], Awaitable[bool]]
    ) -> None:
        self._fleet = fleet
        self._prefix = f"keeper/{fleet}/".encode()
        self._me = me
        self._store = store
        self._run = run
        self._is_gone = is_gone
        self._gone: set[str] = set()
        """Managers that are: a verdict that lasts."""
        self._one_at_a_time = asyncio.Lock()
        """A second release at the same moment could delete what somebody else has claimed since."""

    async def take(self, wanted: Iterable[str]) -> None:
        """Claim all of these, or none that was not ours before: raises `KeptElsewhere`, or as `run`.

        Everybody claims in the same order and stops at the first one that he does not get; so of several that want
        some of the same at one moment not all are refused.
        """
        async with self._one_at_a_time:
            free = await self._require_free(in_order(wanted))
            try:
                for one in free:
                    if (holder := await self._claim(one)) != self._me:
                        self._refuse({one: holder})
            except BaseException:
                await self._let_go(free)
                raise

    async def inherit(self, left: Mapping[str, Iterable[str]], is_left: Callable[[str], Awaitable[bool]]) -> set[str]:
        """Those cells of `left` that are ours: had before, or left by a manager that is gone, if anything `is_left`.

        `left` says what else has to be claimed with each. What a manager leaves goes to one heir: who does not get
        the first of it takes none of it. Raises as `run`.
        """
        mine: set[str] = set()
        spoken_for: set[str] = set()
        async with self._one_at_a_time:
            for cell, members in sorted(left.items()):
                last = (await self._line(cell))[-1:]
                if last == [self._me]:
                    mine.add(cell)
                elif spoken_for.isdisjoint(one.id for one in last) and await is_left(cell):
                    wanted = [*in_order(members), cell]
                    if (lost := await self._lost(wanted)) is None:
                        mine.add(cell)
                    else:
                        spoken_for |= {one.id for one in await self._line(lost)}
        return mine

    async def release(self, claimed: Iterable[str]) -> None:
        """Let go of those that are ours. What cannot be let go of now is, when this manager is gone."""
        async with self._one_at_a_time:
            await self._let_go(claimed)

    async def _require_free(self, wanted: Iterable[str]) -> list[str]:
        """Those of `wanted` that are not ours. Raises `KeptElsewhere` for those that somebody else has."""
        written = set(await self._run(partial(self._store.keys, self._prefix), "the claims"))
        held: dict[str, Holder] = {}
        living: set[str] = set()
        free: list[str] = []
        for one in wanted:
            line = await self._line(one) if self._key(one, None) in written else []
            if line[-1:] != [self._me]:
                free.append(one)
            for last in line[-1:]:
                if last != self._me and (last.id in living or not await self._lets_go(last)):
                    living.add(last.id)
                    held[one] = last
        if held:
            self._refuse(held)
        return free

    async def _lost(self, wanted: Sequence[str]) -> str | None:
        """The first of these that could not be claimed; then none of them is. None if all are."""
        for one in wanted:
            if await self._claim(one) != self._me:
                await self._let_go(wanted)
                return one
        return None

    async def _claim(self, wanted: str) -> Holder:
        """Who has it, once either we do or another one who lives."""
        me = msgspec.json.encode(self._me)
        if await self._asked(wanted, partial(self._store.put, self._key(wanted, None), me, overwrite=False)):
            return self._me
        while True:
            line = await self._line(wanted)
            last = line[-1] if line else None
            if last is not None and (last == self._me or not await self._lets_go(last)):
                return last
            # Whether it was us who wrote it, and behind whom, is what the line says then.
            await self._asked(wanted, partial(self._store.put, self._key(wanted, last), me, overwrite=False))

    async def _let_go(self, claimed: Iterable[str]) -> None:
        for one in claimed:
            with contextlib.suppress(RollbookError):
                line = await self._line(one)
                if line[-1:] != [self._me]:
                    continue
                # The beginning first: what is left of a line without one stands behind nobody.
                for holder in (None, *line[:-1]):
                    await self._asked(one, partial(self._store.delete, self._key(one, holder)))

    async def _line(self, claimed: str) -> list[Holder]:
        """All that have kept it since it was let go of the last time, the present one last."""
        line: list[Holder] = []
        last: Holder | None = None
        while True:
            found = await self._asked(claimed, partial(self._store.get, self._key(claimed, last)))
            if found is None:
                return line
            last = msgspec.json.decode(found, type=Holder)
            line.append(last)

    async def _lets_go(self, holder: Holder) -> bool:
        if holder.id not in self._gone and await self._is_gone(holder):
            self._gone.add(holder.id)
        return holder.id in self._gone

    def _key(self, claimed: str, after: Holder | None) -> bytes:
        return self._prefix + f"{claimed}/{'first' if after is None else f'after-{after.id}'}".encode()

    def _asked(self, claimed: str, job: Callable[[], T]) -> Awaitable[T]:
        return self._run(job, f"the claim of {claimed}")

    def _refuse(self, held: Mapping[str, Holder]) -> NoReturn:
        first, holder = next(iter(held.items()))
        same = sum(one.partition(" ")[0] == first.partition(" ")[0] for one in held)
        more = f" and {same - 1} more" if same > 1 else ""
        raise KeptElsewhere(
            f"manager {self._me.name!r} cannot keep {first}{more} of fleet {self._fleet!r}: manager "
            f"{holder.name!r} (namespace {holder.namespace!r}) keeps it. Launch these workers under that name, or stop "
            f"that manager first: RayWorkerManager.get_handle({holder.name!r}, namespace={holder.namespace!r}).stop(). "
            "It counts as alive, also while it is being restarted, until Ray says that it is gone for good"
        )
