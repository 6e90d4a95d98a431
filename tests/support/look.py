"""One status of a fleet on virtual time, as `rollbook status` takes it."""

from __future__ import annotations

from support.fleet import Fleet

from rollbook.projections.lanes.admission import Admission
from rollbook.projections.looking.look import Look
from rollbook.projections.looking.status import FleetStatus


async def look(fleet: Fleet) -> FleetStatus:
    assert fleet.controller.projector is not None
    state = fleet.controller.projector.state
    admission = Admission(fleet.policy, lambda: state.roster, fleet.provider, fleet.readiness)
    leading = fleet.controller.leading
    taken = Look(
        fleet.policy,
        state,
        proxies=fleet.proxies,
        provider=fleet.provider,
        admission=admission,
        withheld=None if leading is None else leading.withheld,
    )
    return await taken.take("2026-01-01T00:00:10Z")
