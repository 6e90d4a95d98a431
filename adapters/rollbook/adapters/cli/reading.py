"""Reading the log for people: in order, from a moment on, and honest about what is gone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from rollbook.adapters.cli.output import say
from rollbook.projections.ports import EventLog, LogState, Stored


async def read_in_order(log: EventLog, after: int, until: int | None) -> AsyncGenerator[Stored]:
    """Every message above `after`, in order, up to `until` (None: for ever).

    A gap is read again, because reading may lose messages; what the log itself does not hold is said and passed over.
    """
    while until is None or after < until:
        async with contextlib.aclosing(log.read(after)) as batches:
            async for batch in batches:
                for stored in batch:
                    if stored.sequence <= after:
                        continue
                    if stored.sequence != after + 1 and await log.get(after + 1) is not None:
                        break
                    if stored.sequence != after + 1:
                        say(f"sequences {after + 1} to {stored.sequence - 1} are not in the log any more")
                    after = stored.sequence
                    yield stored
                    if after == until:
                        return
                else:
                    continue
                break


async def first_since(log: EventLog, ends: LogState, moment: float) -> int:
    """The first sequence stored at or after `moment`; one past the end if there is none. Found by halving."""
    low, high = ends.first_sequence, ends.last_sequence + 1
    while low < high:
        middle = (low + high) // 2
        stored = await log.get(middle)
        if stored is None or stored.stored_at < moment:
            low = middle + 1
        else:
            high = middle
    return low
