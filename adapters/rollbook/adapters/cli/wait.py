"""`rollbook wait`: until workers are routed, or gone; for whoever must not start before."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, Found, Json, load_what_is_there, parse_timeout, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import LONGEST_SHOWN, console, one_line, out, out_json, say

if TYPE_CHECKING:
    from rollbook.projections.looking.waiting import Goal, Pools, Progress

EXAMPLE = """\
Example:

    rollbook wait --pool rollout --min 8 --timeout 10m
    rollbook wait --worker rollout-3-0 --incarnation 7 --for gone

Exit codes: 0 it is so, 3 the time is over; the reason for every missing
worker is printed."""

MOST_SHOWN: Final = 20
"""Missing workers named on a terminal while it waits; at the end all of them are."""


def wait(  # noqa: PLR0913 - one for each option
    *,
    pool: Annotated[str | None, Parameter(help="Only workers of this pool.")] = None,
    min: Annotated[  # noqa: A002 - the option's name
        int | None, Parameter(name="--min", help="So many are enough.", validator=Number(gte=1))
    ] = None,
    all: Annotated[  # noqa: A002 - the option's name
        bool,
        Parameter(
            name="--all",
            negative=(),
            show_default=False,
            help="All that the log knows, and one at the least; so it is without --min too.",
        ),
    ] = False,
    state: Annotated[
        Literal["routed", "gone"],
        Parameter(name="--for", help="`routed`: registered at every proxy that serves it. `gone`: registered at none."),
    ] = "routed",
    worker: Annotated[str | None, Parameter(help="Only this worker.")] = None,
    incarnation: Annotated[
        int | None,
        Parameter(help="Routed in this life or a later one; gone with this life and before.", validator=Number(gte=1)),
    ] = None,
    timeout: Annotated[str, Parameter(help="How long to wait; a number alone is seconds.")] = "300",
    json: Json = False,
    config: ConfigFile = None,
) -> Exit:
    """Wait until workers are routed, or gone, by the outcomes in the log.

    A server or a fleet that is not there yet is waited for too. With --json the last line is a document: reached,
    there, missing (worker and reason), wanted, sequence.
    """
    from rollbook.projections.looking.waiting import Goal, WrongGoal

    if all and min is not None:
        raise UsageError("--all and --min contradict each other")
    seconds = parse_timeout(timeout)
    try:
        goal = Goal(state=state, pool=pool, at_least=min, worker=worker, incarnation=incarnation)
    except WrongGoal as exc:
        raise UsageError(str(exc)) from exc
    found = load_what_is_there(config)
    start_logs()
    return run(_wait(found, goal, seconds, json=json))


async def _wait(found: Found, goal: Goal, seconds: float, *, json: bool) -> Exit:
    from rollbook.adapters.bootstrap import nats_connection
    from rollbook.adapters.waiting import NotInTime, wait_for

    client = found.client
    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    try:
        with _shown(goal) as watcher:
            progress = await wait_for(
                goal, seconds, client.settings.fleet, connection, pools=_pools(found), watcher=watcher
            )
    except NotInTime as exc:
        if json and exc.progress is not None:
            out_json(msgspec.to_builtins(exc.progress))
        say("\n".join(f"rollbook: {one_line(line, LONGEST_SHOWN)}" for line in str(exc).splitlines()))
        return Exit.WAITED
    if json:
        out_json(msgspec.to_builtins(progress))
    else:
        out(f"{len(progress.there)} {goal.state}, at sequence {progress.sequence}")
    return Exit.DONE


def _pools(found: Found) -> Pools | None:
    """Which proxies serve which pools, where the configuration says so."""
    if found.config is None or not found.config.settings.proxies:
        return None
    return {proxy.name: proxy.pools for proxy in found.config.settings.proxies}


@contextlib.contextmanager
def _shown(goal: Goal) -> Generator[Callable[[Progress], None]]:
    """How progress is shown on standard error: in place on a terminal, one line for each change elsewhere."""
    if not sys.stderr.isatty():
        yield lambda progress: say(_head(goal, progress))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(stderr=True), transient=True, auto_refresh=False) as live:

        def watch(progress: Progress) -> None:
            missing = [f"  {name}: {one_line(why, LONGEST_SHOWN)}" for name, why in progress.missing.items()]
            more = [f"  and {len(missing) - MOST_SHOWN} more"] if len(missing) > MOST_SHOWN else []
            lines = [_head(goal, progress), *missing[:MOST_SHOWN], *more]
            live.update(Text("\n".join(lines), overflow="ellipsis", no_wrap=True), refresh=True)

        yield watch


def _head(goal: Goal, progress: Progress) -> str:
    return f"rollbook: {progress} {goal.state}, at sequence {progress.sequence}"
