"""From a log to a state: restore the newest snapshot that the log confirms, and fold the rest.

Shared by the controller, which goes on from there, and by read-only commands, which look once.
"""

from __future__ import annotations

import asyncio

from rollbook.events import Codec
from rollbook.projections.ending import end
from rollbook.projections.log.projector import Projector
from rollbook.projections.ports import Clock, EventLog, HistoryHole, LogState, Snapshot, SnapshotStore
from rollbook.projections.state.fold import State, message_id, restore
from rollbook.projections.tell import Tell, tell_nobody


async def newest_state(log: EventLog, snapshots: SnapshotStore, tell: Tell = tell_nobody) -> State | None:
    """The newest snapshot's state that the log confirms; None to fold from the beginning.

    Raises `LogUnavailable`; and `HistoryHole` if all that is kept is of another log, of which this one holds nothing.
    """
    ends = await log.state()
    lost = 0
    copied = False
    async for snapshot in snapshots.newest_first():
        stored = await log.get(snapshot.sequence)
        confirmed = stored is not None and message_id(stored) == snapshot.fact_id
        if snapshot.identity != ends.identity:
            tell("snapshot.of_another_log", sequence=snapshot.sequence, reason="the stream was made anew since")
            lost = max(lost, snapshot.sequence)
            copied = copied or confirmed
        elif not confirmed:
            tell("snapshot.refused", sequence=snapshot.sequence, reason=_why_not(snapshot, ends))
        elif (state := restore(snapshot)) is None:
            tell("snapshot.refused", sequence=snapshot.sequence, reason="another version took it, or it is damaged")
        else:
            tell("snapshot.restored", sequence=snapshot.sequence)
            return state
    if lost and not copied:
        found = f"the stream was deleted and made anew, and ends at {ends.last_sequence}"
        raise HistoryHole(lost, f"a snapshot is of another log that had it; {found}")
    return None


def _why_not(snapshot: Snapshot, ends: LogState) -> str:
    """Why the log does not confirm a snapshot of its own."""
    if snapshot.sequence > ends.last_sequence:
        return (
            f"the log ends at {ends.last_sequence}: it lost its tail, or was restored from an older copy. What is "
            "there is folded, and reading the proxies back makes the rest right; or restore an archive that holds more"
        )
    if snapshot.sequence < ends.first_sequence:
        return f"the log begins at {ends.first_sequence}"
    return "the log holds another message there: it lost its tail and went on since"


async def state_now(log: EventLog, snapshots: SnapshotStore, codec: Codec, clock: Clock) -> State:
    """Everything that the log says at this moment, folded. Raises `LogUnavailable`, `HistoryHole`."""
    return await folded_on(await newest_state(log, snapshots), log, codec, clock)


async def folded_on(state: State | None, log: EventLog, codec: Codec, clock: Clock) -> State:
    """The same, from `state` on, or from the log's beginning if there is none."""
    projector = Projector(log, codec, clock, state)
    folding = asyncio.create_task(projector.run())
    caught_up = asyncio.create_task(projector.caught_up())
    try:
        await asyncio.wait([folding, caught_up], return_when=asyncio.FIRST_COMPLETED)
        if folding.done():
            folding.result()
        await caught_up
    finally:
        await end(caught_up, folding)
    return projector.state
