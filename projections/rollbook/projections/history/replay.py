"""Folding the log anew, and whether that gives what was kept of it on the way: snapshots, a running controller [I5]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rollbook.events import Codec
from rollbook.projections.history.difference import Difference, Item, compare
from rollbook.projections.history.moments import fold
from rollbook.projections.history.past import Past
from rollbook.projections.ports import HistoryHole, Snapshot
from rollbook.projections.state.fold import SCHEMA, State, restore

SNAPSHOT: Final = "snapshot"
"""The origin of what the log's snapshots say."""


class Kept(msgspec.Struct, frozen=True):
    """What somebody says that the log folds to."""

    origin: str
    """Who: `snapshot`, or the name of a controller."""
    sequence: int
    digest: str
    unusable: str | None = None
    """Why it cannot be compared."""


class Check(msgspec.Struct, frozen=True):
    """One comparison."""

    origin: str
    sequence: int
    kept: str
    """The digest that was kept."""
    folded: str | None
    """The digest that the log folds to; None if it was not compared, or the log does not reach so far."""
    skipped: str | None = None
    """Why it was not compared."""
    worker: Item | None = None
    """The first worker that differs: what was kept of it, and what the log says."""
    other: tuple[str, ...] = ()
    """What else differs, if no worker does: proxies, the fleet, or only what is remembered of ids."""

    @property
    def agrees(self) -> bool:
        """Whether the log says the same, as far as it was compared."""
        return self.skipped is not None or self.kept == self.folded


class Replayed(msgspec.Struct, frozen=True):
    """What a replay found."""

    fleet: str
    first: int
    """Where it began: 1, or after the oldest state kept where the log begins later."""
    sequence: int
    digest: str
    """SHA-256 of the state at `sequence`, hexadecimal."""
    facts: int
    """How many messages were folded."""
    unreadable: int
    unknown: dict[str, int]
    """By type: facts that this version does not know."""
    checks: tuple[Check, ...]

    @property
    def agrees(self) -> bool:
        """Whether all that was kept is what the log says."""
        return all(check.agrees for check in self.checks)


async def replay(
    past: Past, codec: Codec, to: int, *, check: bool = True, others: Sequence[Kept] = ()
) -> tuple[Replayed, State]:
    """Fold everything up to `to`, and compare with every snapshot and with `others` on the way.

    A log that begins later than its first fact is folded from the oldest state kept of it. Raises `HistoryHole`.
    """
    begin, end = await past.ends()
    kept = [_kept(snapshot) async for snapshot in past.snapshots()] if check or begin > 1 else []
    state = await _base(past, kept, begin, to)
    first = state.sequence + 1
    wanted = [one for one in [*(kept if check else ()), *others] if first <= one.sequence <= to]
    checks: list[Check] = []
    for one in sorted(wanted, key=lambda one: one.sequence):
        state = await fold(past, codec, state, one.sequence)
        checks.append(await _check(past, codec.fleet, one, state))
    state = await fold(past, codec, state, to)
    checks += [_beyond(one, first, to, end) for one in others if not first <= one.sequence <= to]
    found = Replayed(
        fleet=codec.fleet,
        first=first,
        sequence=state.sequence,
        digest=state.digest(),
        facts=state.sequence - first + 1,
        unreadable=state.quarantined + len(state.unreadable),
        unknown=dict(state.unknown),
        checks=tuple(checks),
    )
    return found, state


def _kept(snapshot: Snapshot) -> Kept:
    if snapshot.schema != SCHEMA:
        why = f"it is of schema {snapshot.schema}, this version folds to {SCHEMA}"
        return Kept(SNAPSHOT, snapshot.sequence, snapshot.digest, unusable=why)
    damaged = None if restore(snapshot) is not None else "it is damaged"
    return Kept(SNAPSHOT, snapshot.sequence, snapshot.digest, damaged)


async def _base(past: Past, kept: Sequence[Kept], begin: int, to: int) -> State:
    if begin == 1:
        return State()
    usable = [one.sequence for one in kept if one.unusable is None and begin - 1 <= one.sequence <= to]
    state = await _state_kept(past, min(usable)) if usable else None
    if state is None:
        raise HistoryHole(1, f"it begins at {begin}, and no state before {to} was kept")
    return state


async def _state_kept(past: Past, sequence: int) -> State | None:
    """The state that was kept there. Read again when it is needed: all of them at once would fill the memory."""
    async for snapshot in past.snapshots(sequence):
        return restore(snapshot) if snapshot.sequence == sequence else None
    return None


async def _check(past: Past, fleet: str, kept: Kept, state: State) -> Check:
    if kept.unusable is not None:
        return Check(kept.origin, kept.sequence, kept.digest, None, skipped=kept.unusable)
    folded = state.digest()
    was = await _state_kept(past, kept.sequence) if kept.digest != folded and kept.origin == SNAPSHOT else None
    if was is None:
        return Check(kept.origin, kept.sequence, kept.digest, folded)
    found = compare(fleet, was, state)
    worker = found.workers[0] if found.workers else None
    return Check(kept.origin, kept.sequence, kept.digest, folded, worker=worker, other=_other(found))


def _beyond(kept: Kept, first: int, to: int, end: int) -> Check:
    """Of what somebody has folded to a sequence that this replay does not come by. Nobody is passed over in silence."""
    why: str | None = None
    if kept.sequence < first:
        why = f"it has folded up to {kept.sequence}, and this replay begins at {first}"
    elif kept.sequence <= end:
        why = f"it has folded up to {kept.sequence}, and this replay ends at {to}"
    return Check(kept.origin, kept.sequence, kept.digest, None, skipped=why)


def _other(found: Difference) -> tuple[str, ...]:
    if found.workers:
        return ()
    names = [f"proxy {item.name}" for item in found.proxies]
    names += ["the fleet"] if found.whole is not None else []
    return tuple(names) or ("only remembered ids or sequences",)
