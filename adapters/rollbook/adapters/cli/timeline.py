"""`rollbook timeline`: a picture of the run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, load_client_config, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import say
from rollbook.adapters.cli.past import Archive, Since, Until, open_past, parse_since, parse_until
from rollbook.adapters.drawing import FORMATS, draw
from rollbook.adapters.settings import Client
from rollbook.adapters.spelling import counted
from rollbook.projections.history.moments import Moment
from rollbook.projections.history.timeline import Timeline

EXAMPLE = """\
Example:

    rollbook timeline -o run.html
    rollbook timeline --since 2h -o last-two-hours.png

A row for each worker with its phases as bars, and one for each proxy with the count of its registered workers;
restarts, drifts and takeovers are marks. Needs matplotlib: pip install 'rollbook[timeline]'."""


def timeline(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The file: .html, .svg or .png.")],
    since: Since = None,
    until: Until = None,
    archive: Archive = None,
    config: ConfigFile = None,
) -> int:
    """Draw the run into one file that needs nothing else."""
    if output.suffix not in FORMATS:
        raise UsageError(f"{output} does not say what to draw: let it end in {', '.join(FORMATS)}")
    now = time.time()
    begin = None if since is None else parse_since(since, now)
    end = None if until is None else parse_until(until, now, follow=False)
    client = load_client_config(config)
    start_logs()
    picture = run(_read(client, archive, begin, end))
    draw(picture, output)
    workers, proxies = counted(len(picture.workers), "worker"), counted(len(picture.proxies), "proxy", "proxies")
    say(f"rollbook: {output} shows {workers} and {proxies}")
    return Exit.DONE


async def _read(client: Client, archive: str | None, begin: Moment | None, end: Moment | None) -> Timeline:
    async with open_past(client, archive) as history:
        return await history.timeline(begin, end)
