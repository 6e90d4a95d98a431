"""The read API's answers: the same looks, in the same shapes, that `rollbook status --json` and `plan --json` print.

A look asks every proxy and the provider. However many ask at a time, one look of a kind is under way: who comes while
one is, waits for the next, so that a page that is reloaded for ever costs the routers no more than one reader does.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollbook.events import RollbookError
from rollbook.events.times import rfc3339
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.leading.controller import Controller
from rollbook.projections.looking.look import Look
from rollbook.projections.looking.preview import Preview
from rollbook.projections.looking.status import FleetStatus
from rollbook.projections.looking.survey import Survey
from rollbook.projections.ports import Proxy
from rollbook.projections.resources import Resources
from rollbook.projections.shared import Shared
from rollbook.projections.state.fold import State


class NotYet(RollbookError):
    """The controller has no roster yet."""


class Views:
    """Looks at the fleet of one controller, whether it leads or stands by."""

    def __init__(self, controller: Controller, resources: Resources, proxies: Mapping[str, Proxy]) -> None:
        self._controller = controller
        self._resources = resources
        self._proxies = proxies
        self._status = Shared(self._take_status)
        self._plan = Shared(self._take_plan)

    async def status(self) -> FleetStatus:
        """As `rollbook status`. Raises `NotYet`."""
        return await self._status.fresh()

    async def plan(self) -> Preview:
        """As `rollbook plan`. Raises `NotYet`."""
        return await self._plan.fresh()

    async def close(self) -> None:
        """End the looks under way."""
        await self._status.close()
        await self._plan.close()

    async def _take_status(self) -> FleetStatus:
        state, leading = self._state(), self._controller.leading
        look = Look(
            self._controller.policy,
            state,
            proxies=self._proxies,
            provider=self._resources.provider,
            admission=self._admission(state),
            withheld=None if leading is None else leading.withheld,
        )
        taken = await look.take(self._now())
        leader = self._controller.led_by if leading is None else leading.owner
        notes = self._resources.observers.notes(self._resources.clock.monotonic())
        return msgspec.structs.replace(taken, controller=leader, notes=(*taken.notes, *notes))

    async def _take_plan(self) -> Preview:
        state, leading = self._state(), self._controller.leading
        survey = Survey(
            self._controller.policy,
            state,
            proxies=self._proxies,
            admission=self._admission(state),
            withheld=None if leading is None else leading.withheld,
        )
        return await survey.take(self._now())

    def _admission(self, state: State) -> Admission:
        resources = self._resources
        return Admission(self._controller.policy, lambda: state.roster, resources.provider, resources.readiness)

    def _state(self) -> State:
        projector = self._controller.projector
        if projector is None:
            raise NotYet("the newest snapshot is being restored; try again in a moment")
        return projector.state

    def _now(self) -> str:
        return rfc3339(self._resources.clock.now())
