"""Beginning anew after facts were lost: from what is left of the log, and a listing of what is there.

The way out of a hole that no archive fills. What the lost facts said is forgotten: operators' decisions, what was
registered where. Who serves is asked of the provider and written into the log as one FleetObserved, from which the fold
goes on; what proxies list is read back as at every start. A snapshot then stands for what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib

from rollbook.events import Codec, FleetObserved, ObservedWorker, RollbookError
from rollbook.events.times import rfc3339
from rollbook.projections.log.authority import Authority
from rollbook.projections.log.keeper import Keeper
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import Policy
from rollbook.projections.ports import EventLog
from rollbook.projections.resources import Resources
from rollbook.projections.state.fold import State
from rollbook.projections.tell import Tell


class NotRelisted(RollbookError):
    """A new beginning that could not be made."""


async def whole_part(log: EventLog, tell: Tell) -> State:
    """An empty state from which everything that follows can be folded: just behind the last hole.

    Raises `LogUnavailable`.
    """
    ends = await log.state()
    begin = seen = ends.first_sequence - 1
    if seen < ends.last_sequence:
        async with contextlib.aclosing(log.read(begin)) as batches:
            async for batch in batches:
                for stored in batch:
                    if stored.sequence > seen + 1 and await log.get(seen + 1) is None:
                        begin = stored.sequence - 1
                    seen = max(seen, stored.sequence)
                if seen >= ends.last_sequence:
                    break
    tell("log.begun_anew", after=begin, last=ends.last_sequence)
    return State(sequence=begin)


async def relist(policy: Policy, projector: Projector, resources: Resources, keeper: Keeper) -> None:
    """Write down who is there, fold it, and keep that state.

    Raises `NotRelisted`, `ProviderUnavailable`, `LogError`, `LeadershipLost`.
    """
    as_of = projector.state.sequence
    seconds = policy.reconcile.call_deadline
    try:
        async with asyncio.timeout(seconds):
            listed = await resources.provider.list_workers()
    except TimeoutError as exc:
        msg = (
            f"the provider has listed no workers within {seconds:g} s (reconcile.call_deadline); see that it runs, and "
            "start with --relist again"
        )
        raise NotRelisted(msg) from exc
    fact = FleetObserved(
        observer=resources.owner,
        pools=tuple(policy.pools),
        as_of=as_of,
        # A provider that knows addresses alone says 0: whichever life is there.
        workers=tuple(
            ObservedWorker(one.name, max(one.incarnation, 1), one.serving) for one in listed if one.alive is not False
        ),
    )
    draft = Codec(policy.fleet).draft(
        fact, id=resources.ids.new(), time=rfc3339(resources.clock.now()), publisher=resources.owner
    )
    Authority(resources.leadership, policy.fleet).require()
    [sequence] = await resources.log.append([draft])
    await projector.passed(sequence)
    resources.tell("log.relisted", sequence=sequence, workers=len(fact.workers))
    if not await keeper.take():
        raise NotRelisted(
            "the new beginning could not be kept as a snapshot, without which the next start finds the hole again. See "
            "that JetStream has room for it, and start with --relist again"
        )
