"""What the leader answers: who it is, how things stand, what a pass would change; and a pass at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from rollbook.adapters.service.messages import (
    INFO,
    PLAN,
    RECONCILE,
    STATUS,
    Info,
    InfoRequest,
    PlanRequest,
    Reconciled,
    ReconcileRequest,
    Reply,
    Request,
    Step,
)
from rollbook.adapters.service.server import Handler, Progress, Serving, WrongRequest, handler, rollbook_version
from rollbook.events import (
    Deregistered,
    ForeignRemovalFailed,
    ForeignRemoved,
    Recorded,
    Registered,
    RegistrationFact,
    RegistrationFailed,
)
from rollbook.projections.lanes.lane import Lane
from rollbook.projections.log.projector import Marks
from rollbook.projections.looking import saved
from rollbook.projections.looking.look import Look
from rollbook.projections.looking.preview import Preview
from rollbook.projections.looking.status import FleetStatus
from rollbook.projections.looking.survey import Survey

LOOK_SECONDS: Final = 0.05
"""Between two looks at whether a pass is over."""
FOR_THE_REST: Final = 0.75
"""The part of a deadline that a pass may take; the rest is for looking at what is left."""


async def info(serving: Serving, request: InfoRequest, _: Progress[Reply]) -> Info:
    """Who leads."""
    leading = serving.leading
    return Info(
        fleet=leading.policy.fleet,
        owner=leading.owner,
        epoch=leading.epoch,
        sequence=leading.projector.state.sequence,
        version=rollbook_version(),
        since=serving.since,
        uptime_seconds=round(serving.uptime, 3),
        proxies={name: served.pools for name, served in leading.policy.proxies.items()},
        digest=leading.projector.state.digest() if request.digest else None,
    )


async def status(serving: Serving, _: Request, __: Progress[Reply]) -> FleetStatus:
    """The roster against what the proxies list now."""
    leading = serving.leading
    look = Look(
        leading.policy,
        leading.projector.state,
        proxies={proxy.name: proxy for proxy in leading.proxies},
        provider=leading.resources.provider,
        admission=leading.admission,
        withheld=leading.withheld,
    )
    taken = await look.take(serving.now())
    notes = leading.resources.observers.notes(leading.resources.clock.monotonic())
    return msgspec.structs.replace(taken, controller=leading.owner, notes=(*taken.notes, *notes))


async def plan(serving: Serving, request: PlanRequest, _: Progress[Reply]) -> Preview:
    """What a pass would change now."""
    return await _survey(serving, chosen(serving, request.proxy))


async def reconcile(serving: Serving, request: ReconcileRequest, progress: Progress[Step]) -> Reconciled:
    """A full pass of every lane, or of one, to its end: until nothing is under way but what waits to be tried again."""
    leading = serving.leading
    names = chosen(serving, request.proxy)
    if request.plan is not None:
        saved.check(request.plan, await _survey(serving, names))
    clock = leading.resources.clock
    until = clock.monotonic() + request.deadline_seconds * FOR_THE_REST
    steps: list[Step] = []

    def observe(recorded: Recorded) -> None:
        step = _step(recorded)
        if step is not None and step.proxy in names:
            steps.append(step)

    told = 0
    with serving.observing(observe):
        passes = [_Pass(leading.lanes[name], by=request.by if request.force else None) for name in names]
        while not (finished := all(one.over for one in passes)) and clock.monotonic() < until:
            await clock.sleep(LOOK_SECONDS)
            for step in steps[told:]:
                told += 1
                await progress(step)
    left = await _survey(serving, names)
    return Reconciled(finished=finished, steps=tuple(steps), left=left)


class _Pass:
    """A full pass of one lane, asked for when this is made."""

    def __init__(self, lane: Lane, *, by: str | None) -> None:
        self._lane = lane
        self._passes = lane.passes
        self._refusals = lane.refusals
        if by is not None:
            lane.force_once(by)
        lane.mark(Marks(everything=True))

    @property
    def over(self) -> bool:
        if self._lane.refusals > self._refusals:
            return True  # it did not even list; what is left says so
        return self._lane.passes > self._passes and not self._lane.busy


def _step(recorded: Recorded) -> Step | None:
    fact = recorded.fact
    outcome: Literal["registered", "deregistered", "failed"]
    match fact:
        case Registered():
            outcome, reason = "registered", ""
        case Deregistered() | ForeignRemoved():
            outcome, reason = "deregistered", ""
        case RegistrationFailed():
            outcome, reason = "failed", f"{fact.action}: {fact.reason}"
        case ForeignRemovalFailed():
            outcome, reason = "failed", f"deregister: {fact.reason}"
        case _:
            return None
    worker, incarnation = (fact.worker, fact.incarnation) if isinstance(fact, RegistrationFact) else (None, None)
    return Step(
        outcome=outcome,
        proxy=fact.proxy,
        worker=worker,
        incarnation=incarnation,
        url=fact.url,
        sequence=recorded.sequence,
        reason=reason,
    )


def chosen(serving: Serving, proxy: str | None) -> list[str]:
    """The proxies that a request is about. Raises `WrongRequest` for one that is not there."""
    names = list(serving.leading.policy.proxies)
    if proxy is None:
        return names
    if proxy not in names:
        raise WrongRequest(f"there is no proxy {proxy!r}; there is: {', '.join(names) or 'none'}")
    return [proxy]


async def _survey(serving: Serving, names: Sequence[str]) -> Preview:
    leading = serving.leading
    proxies = {proxy.name: proxy for proxy in leading.proxies}
    survey = Survey(
        leading.policy,
        leading.projector.state,
        proxies=proxies,
        admission=leading.admission,
        withheld=leading.withheld,
    )
    return await survey.take(serving.now(), names)


HANDLERS: Final[tuple[Handler, ...]] = (
    handler(INFO, info),
    handler(STATUS, status),
    handler(PLAN, plan),
    handler(RECONCILE, reconcile),
)
"""All that a leader answers."""
