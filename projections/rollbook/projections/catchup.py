"""From a log to a state: restore the newest snapshot that the log confirms, and fold the rest.

Shared by the controller, which goes on from there, and by read-only commands, which look once.
"""

from __future__ import annotations

import asyncio

from rollbook.events import Codec
from rollbook.projections.ending import end
from rollbook.projections.fold import State, message_id, restore
from rollbook.projections.ports import Clock, EventLog, SnapshotStore
from rollbook.projections.projector import Projector
from rollbook.projections.tell import Tell, tell_nobody


async def newest_state(log: EventLog, snapshots: SnapshotStore, tell: Tell = tell_nobody) -> State | None:
    """The newest snapshot's state that the log confirms; None to fold from the beginning. Raises `LogUnavailable`."""
    ends = await log.state()
    async for snapshot in snapshots.newest_first():
        if snapshot.identity != ends.identity or snapshot.sequence > ends.last_sequence:
            tell("snapshot.of_another_log", sequence=snapshot.sequence, last=ends.last_sequence)
            continue
        stored = await log.get(snapshot.sequence)
        confirmed = stored is not None and message_id(stored) == snapshot.fact_id
        state = restore(snapshot) if confirmed else None
        if state is None:
            tell("snapshot.refused", sequence=snapshot.sequence)
            continue
        tell("snapshot.restored", sequence=snapshot.sequence)
        return state
    return None


async def state_now(log: EventLog, snapshots: SnapshotStore, codec: Codec, clock: Clock) -> State:
    """Everything that the log says at this moment, folded. Raises `LogUnavailable`, `HistoryHole`."""
    projector = Projector(log, codec, clock, await newest_state(log, snapshots))
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
