"""Reading the log for people: in order, and honest about what is gone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from rollbook.adapters.cli.output import say
from rollbook.projections.history.past import FilteredLog, as_noted
from rollbook.projections.ports import Stored


async def read_in_order(
    log: FilteredLog, after: int, until: int | None, subjects: Sequence[str] = ()
) -> AsyncGenerator[Stored]:
    """Every message above `after`, in order, up to `until` (None: for ever); with `subjects`, only those on them.

    A gap is read again, because reading may lose messages; what the log itself does not hold is said and passed over.
    """
    if until is not None and subjects:
        newest = [await log.last(subject) for subject in subjects]
        until = min(until, max((one.sequence for one in newest if one is not None), default=0))
    while until is None or after < until:
        async with contextlib.aclosing(log.read(after, subjects)) as batches:
            async for batch in batches:
                for stored in as_noted(batch):
                    if stored.sequence <= after:
                        continue
                    if until is not None and stored.sequence > until:
                        return
                    if not subjects and stored.sequence != after + 1:
                        if await log.get(after + 1) is not None:
                            break
                        say(f"sequences {after + 1} to {stored.sequence - 1} are not in the log any more")
                    after = stored.sequence
                    yield stored
                    if after == until:
                        return
                else:
                    continue
                break
