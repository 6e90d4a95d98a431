"""`rollbook explain`: why a worker is, or was, routed or not."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli import story
from rollbook.adapters.cli.common import ConfigFile, Json, load_what_is_there, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import Lines, out_json, say
from rollbook.adapters.cli.past import Archive, At, open_past, said_moment
from rollbook.adapters.settings import Client
from rollbook.events import validate_name
from rollbook.projections.history.moments import NOW, Moment
from rollbook.projections.history.narrative import Narrative
from rollbook.projections.history.story import Asked

EXAMPLE = """\
Example:

    rollbook explain rollout-3-0
    rollbook explain rollout-3-0 --proxy router-a --at -15m
    rollbook explain rollout-3-0 --lives 2
    rollbook explain rollout-3-0 --json | jq '.passages[] | select(.result != "confirmed")'

The worker's lives in order: who said what, what it changed, gate by gate, what was decided and because of what, what
the proxies answered and after how long. The slowest step is marked."""


def explain(
    worker: Annotated[str, Parameter(help="Its name, such as rollout-3-0.")],
    /,
    *,
    proxy: Annotated[str | None, Parameter(help="Only at this proxy.")] = None,
    at: At = None,
    lives: Annotated[
        int | None, Parameter(help="Only the newest so many lives; by default all.", validator=Number(gte=1))
    ] = None,
    archive: Archive = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Tell a worker's story: why it was or was not routed.

    The gates are those of the configuration as it is now. Without a configuration file, which pools a proxy serves is
    taken from the log.
    """
    validate_name("worker", worker)
    moment = NOW if at is None else said_moment(at)
    there = load_what_is_there(config)
    if there.config is None:
        say("rollbook: no configuration file: which proxy serves its pool is taken from the log")
    policy = None if there.config is None else there.config.settings.policy()
    start_logs()
    asked = Asked(worker=worker, proxy=proxy, to=0, lives=lives, policy=policy)
    found = run(_explain(there.client, archive, asked, moment))
    if json:
        out_json(to_json(found))
    else:
        lines = Lines()
        for line in story.render(found):
            lines.write(line)
    return Exit.DONE


async def _explain(client: Client, archive: str | None, asked: Asked, moment: Moment) -> Narrative:
    async with open_past(client, archive) as history:
        return await history.explain(asked.worker, proxy=asked.proxy, at=moment, lives=asked.lives, policy=asked.policy)


def to_json(found: Narrative) -> object:
    """The story for programs; times are seconds since the epoch."""
    return msgspec.to_builtins(found)
