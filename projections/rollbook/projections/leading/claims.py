"""The leader's answer to a claim whose time is over: it says so, and the cell may be claimed again.

A recoverer was killed, or cannot reach the log. The fold has no clock, so it is told by a fact.
"""

from __future__ import annotations

import math
from typing import Final

from rollbook.events import Codec, RecoveryFailed
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.leading.controller import Leading
from rollbook.projections.leading.terms import Terms
from rollbook.projections.log.authority import Authority
from rollbook.projections.ports import LogUnavailable
from rollbook.projections.recovery.due import claimed

PAUSE_SECONDS: Final = 1.0


async def ending_claims(leading: Leading) -> None:
    """Look after the claims for as long as this process leads. Raises `LeadershipLost` when it is time to stop."""
    resources, projector, fleet = leading.resources, leading.projector, leading.policy.fleet
    authority = Authority(resources.leadership, fleet)
    verdicts = Verdicts(fleet, resources.log, resources.clock, resources.ids, resources.owner, may=authority.require)
    terms = Terms(resources.log, Codec(fleet), projector, resources.clock, unreadable=-math.inf)
    while True:
        await resources.clock.sleep(PAUSE_SECONDS)
        # Of one moment: a claim that is made while others are ended is another one, and is not over.
        as_of, claims = projector.state.sequence, claimed(projector.state.roster)
        try:
            for name in await terms.over({name: (one.sequence, one.until) for name, one in claims.items()}):
                worker, claim = projector.state.roster.workers.get(name), claims[name]
                if worker is None:
                    continue
                fact = RecoveryFailed(
                    worker=name,
                    incarnation=worker.incarnation,
                    attempt=claim.attempt,
                    reason=f"the claim of {claim.by} is over, and the cell is not up",
                )
                sequence = await verdicts.write(fact, as_of=as_of)
                if sequence is not None:
                    resources.tell("recovery.claim_expired", worker=name, by=claim.by, attempt=claim.attempt)
                    await projector.passed(sequence)
        except LogUnavailable as exc:
            resources.tell("log.unavailable", reason=str(exc))
