"""A moment as a person says it, a sequence or a time, and the state that the log gives for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

import msgspec

from rollbook.events import Codec, Recorded, RollbookError
from rollbook.events.times import LONGEST_SECONDS, UNITS, parse_rfc3339
from rollbook.projections.history.past import Past
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State, restore
from rollbook.projections.state.roster import Change

_AGO: Final = re.compile(r"-(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>ms|s|m|h|d)")

Witness = Callable[[Stored, Recorded | None, Change], None]
"""Called after each message of a fold, with what it changed."""


class NoSuchMoment(RollbookError):
    """Words that name no moment, or one that the log does not have."""


class Moment(msgspec.Struct, frozen=True):
    """Exactly one of the two is set."""

    sequence: int | None = None
    time: float | None = None
    """Seconds since the epoch."""


NOW: Final = Moment(time=math.inf)


def parse_moment(text: str, now: float) -> Moment:
    """`4711`, `2026-11-30T02:40:28Z`, `-15m` or `now`. Raises `NoSuchMoment`."""
    said = text.strip()
    if said == "now":
        return NOW
    if said.isdecimal() and said.isascii():
        return Moment(sequence=int(said[:18]))
    if (ago := _AGO.fullmatch(said)) is not None:
        seconds = float(ago["number"]) * UNITS[ago["unit"]]
        if seconds > LONGEST_SECONDS:
            raise NoSuchMoment(f"{text!r} is longer ago than any log; write at most -10000d")
        return Moment(time=now - seconds)
    try:
        return Moment(time=parse_rfc3339(said))
    except (ValueError, OverflowError) as exc:
        detail = f" ({exc})" if "time zone" in str(exc) else ""
        raise NoSuchMoment(
            f"{text[:80]!r} is no moment{detail}; write a sequence such as 4711, a time such as 2026-11-30T02:40:28Z, "
            "-15m, or now"
        ) from exc


async def sequence_of(past: Past, moment: Moment) -> int:
    """The last sequence at that moment; what was stored in the very instant counts. Raises `NoSuchMoment`."""
    _, last = await past.ends()
    if moment.time == math.inf:
        return last
    if moment.time is not None:
        return min(await past.first_at(math.nextafter(moment.time, math.inf)) - 1, last)
    sequence = moment.sequence or 0
    if sequence > last:
        raise NoSuchMoment(f"there is no sequence {sequence} yet: the log ends at {last}")
    return max(sequence, 0)


async def first_from(past: Past, moment: Moment) -> int:
    """The first sequence of what begins at that moment, from 1 on; the next that will be if nothing does yet.

    Raises `NoSuchMoment`.
    """
    if moment.sequence is not None:
        _, last = await past.ends()
        if moment.sequence > last + 1:
            raise NoSuchMoment(f"there is no sequence {moment.sequence} yet: the log ends at {last}")
        return max(moment.sequence, 1)
    return max(await past.first_at(moment.time or 0.0), 1)


async def first_folded(past: Past, since: Moment | None) -> int:
    """As `first_from`, and the state before it can be had; None: the first of all such. Raises `NoSuchMoment`.

    A log whose beginning was archived knows its state only after its first message, unless it kept one before. A
    sequence that somebody names is taken at his word.
    """
    begin, _ = await past.ends()
    if begin > 1 and not await _state_before(past, begin):
        begin += 1
    if since is None:
        return begin
    first = await first_from(past, since)
    return first if since.sequence is not None else max(first, begin)


async def _state_before(past: Past, sequence: int) -> bool:
    async for snapshot in past.snapshots(sequence - 1):
        if snapshot.sequence == sequence - 1 and restore(snapshot) is not None:
            return True
    return False


async def fold(past: Past, codec: Codec, state: State, to: int, witness: Witness | None = None) -> State:
    """Go on from `state` up to `to`, and return it. Raises `HistoryHole`."""
    if state.sequence >= to:
        return state
    apply = state.apply
    async for batch in past.read(state.sequence + 1, to):
        if witness is None:
            for stored in batch:
                apply(stored, codec)
            continue
        for stored in batch:
            recorded, change = apply(stored, codec)
            witness(stored, recorded, change)
    return state


async def state_at(past: Past, codec: Codec, sequence: int) -> State:
    """What the log says up to `sequence`: the newest state kept at or before it, and the facts from there on.

    Raises `HistoryHole` if what lies between is not to be had.
    """
    async for snapshot in past.snapshots(sequence):
        if (state := restore(snapshot)) is not None:
            return await fold(past, codec, state, sequence)
    return await fold(past, codec, State(), sequence)


def copy_of(state: State) -> State:
    """The same state, on its own: a fold goes on without it."""
    return msgspec.msgpack.decode(state.encode(), type=State)
