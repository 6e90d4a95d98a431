"""Asking the fleet's controller, and doing without one: the log, and the proxies where the configuration names them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from rollbook.adapters.cli.common import Found
from rollbook.adapters.cli.exits import UsageError
from rollbook.adapters.cli.output import say

if TYPE_CHECKING:
    from rollbook.adapters.bootstrap import Reader
    from rollbook.adapters.service.messages import Answer, Asked, Update, Verb
    from rollbook.adapters.settings import Config
    from rollbook.projections.looking.preview import Preview
    from rollbook.projections.policy import Policy
    from rollbook.projections.state.fold import State


@contextlib.asynccontextmanager
async def open_found(found: Found) -> AsyncGenerator[Reader]:
    """Connect to the log of what was found. Raises `NoServer`, `LogError`."""
    from rollbook.adapters.bootstrap import nats_connection, open_reader

    client = found.client
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    async with open_reader(client.settings.fleet, connection) as reader:
        yield reader


async def ask(
    reader: Reader,
    fleet: str,
    verb: Verb[Asked, Update, Answer],
    request: Asked,
    progress: Callable[[Update], None] | None = None,
) -> Answer:
    """What the controller answers.

    Raises `NoController`, `ControllerSilent`, `Refusal`, or `UsageError` for what is not there.
    """
    from rollbook.adapters.service.client import BadRequest, Controllers

    try:
        return await Controllers(reader.client, fleet).ask(verb, request, progress)
    except BadRequest as exc:
        raise UsageError(str(exc)) from exc


async def ask_if_there(reader: Reader, fleet: str, verb: Verb[Asked, Update, Answer], request: Asked) -> Answer | None:
    """The same for who can do without: None if no controller answers."""
    from rollbook.adapters.jetstream.client import NotPermitted
    from rollbook.adapters.service.client import ControllerSilent, NoController

    try:
        return await ask(reader, fleet, verb, request)
    except NoController:
        return None
    except (ControllerSilent, NotPermitted) as exc:
        say(f"rollbook: {exc}; going on without it")
        return None


async def state_of(reader: Reader, fleet: str) -> State:
    """All that the log says now. Raises `LogUnavailable`, `HistoryHole`."""
    from rollbook.events import Codec
    from rollbook.projections.log.catchup import state_now

    return await state_now(reader.log, reader.snapshots, Codec(fleet), reader.clock)


async def preview(found: Found, reader: Reader, proxy: str | None) -> Preview:
    """What a pass would change: by the controller, or by asking from here, or by the log alone."""
    from rollbook.adapters.service.messages import PLAN, PlanRequest

    fleet = found.client.settings.fleet
    answer = await ask_if_there(reader, fleet, PLAN, PlanRequest(proxy=proxy))
    if answer is not None:
        return answer
    from rollbook.events.times import rfc3339
    from rollbook.projections.looking.logonly import policy_of, preview_of

    state = await state_of(reader, fleet)
    now = rfc3339(reader.clock.now())
    if found.config is None or not found.config.settings.proxies:
        policy = policy_of(fleet, state)
        check_proxy(policy, proxy)
        return preview_of(state, policy, now, proxy)
    policy = found.config.settings.policy()
    check_proxy(policy, proxy)
    asked = await _ask_from_here(found.config, state, now, proxy)
    if len(asked.unreachable) < len(policy.proxies if proxy is None else [proxy]):
        return asked
    return preview_of(state, policy, now, proxy, unreachable=asked.unreachable)


def check_proxy(policy: Policy, proxy: str | None) -> None:
    """Raise `UsageError` for a proxy that is not there."""
    if proxy is not None and proxy not in policy.proxies:
        raise UsageError(f"there is no proxy {proxy!r}; there is: {', '.join(policy.proxies) or 'none'}")


async def _ask_from_here(config: Config, state: State, now: str, proxy: str | None) -> Preview:
    from rollbook.adapters.cli.from_here import Workers, from_here
    from rollbook.projections.looking.survey import Survey

    notes = ["no controller answered: the proxies were asked from here"]
    async with from_here(config, state) as here:
        admission = here.workers.admission if isinstance(here.workers, Workers) else None
        if admission is None:
            notes.append(f"where newcomers are, and whether they are ready, is unknown: {here.workers}")
        survey = Survey(here.policy, state, proxies=here.proxies, admission=admission)
        return await survey.take(now, None if proxy is None else [proxy], tuple(notes))
