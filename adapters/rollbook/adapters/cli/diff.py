"""`rollbook diff`: what changed between two moments, and the facts that did it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, Json, load_client_config, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.lines import short
from rollbook.adapters.cli.output import LONGEST_SHOWN, Piece, one_line, out_document
from rollbook.adapters.cli.past import Archive, open_past, said_moment
from rollbook.adapters.settings import Client
from rollbook.events.times import rfc3339
from rollbook.projections.history.difference import Changed, Deed, Difference, Item
from rollbook.projections.history.moments import Moment

EXAMPLE = """\
Example:

    rollbook diff -1h now
    rollbook diff 4711 4800 --json
    rollbook diff 2026-11-30T02:00:00Z 2026-11-30T03:00:00Z

Exit codes: 0 nothing changed, 2 something did."""


First = Annotated[
    str,
    Parameter(help="The earlier moment: a sequence, an RFC 3339 time, or -15m.", allow_leading_hyphen=True),
]
Second = Annotated[str, Parameter(help="The later moment, likewise, or now.", allow_leading_hyphen=True)]


def diff(
    first: First,
    second: Second = "now",
    /,
    *,
    archive: Archive = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show what changed between two moments: worker by worker, proxy by proxy, with the facts that did it."""
    moments = said_moment(first), said_moment(second)
    client = load_client_config(config)
    start_logs()
    found = run(_diff(client, archive, *moments))
    out_document(found, render(found), json=json)
    return Exit.DIFFERENCES if found.differs else Exit.DONE


async def _diff(client: Client, archive: str | None, first: Moment, second: Moment) -> Difference:
    async with open_past(client, archive) as history:
        return await history.between(first, second)


def render(found: Difference) -> Iterator[list[Piece]]:
    """The differences as lines for a person."""
    yield [("fleet ", "dim"), (found.fleet, "bold"), f"  from sequence {found.before} to {found.after}"]
    if not found.differs:
        yield ["nothing changed"]
    if found.whole is not None:
        yield from _item("fleet", found.whole)
    for worker in found.workers:
        yield from _item("worker", worker)
    for proxy in found.proxies:
        yield from _item("proxy", proxy)


def _item(kind: str, item: Item) -> Iterator[list[Piece]]:
    yield []
    yield [f"{kind} ", (item.name, "bold")]
    yield from (item_line(change) for change in item.changes)
    if item.more_facts:
        yield [(f"    by {item.more_facts} earlier facts, and", "dim")]
    yield from (_deed(deed) for deed in item.facts)


def item_line(change: Changed) -> list[Piece]:
    """One change: what, from what, to what."""
    before = "-" if change.before is None else one_line(change.before, LONGEST_SHOWN)
    after = "-" if change.after is None else one_line(change.after, LONGEST_SHOWN)
    return [f"  {change.what:<18} ", (before, "red"), " → ", (after, "green")]


def _deed(deed: Deed) -> list[Piece]:
    who = one_line(deed.source.rpartition("/")[2] or deed.source, LONGEST_SHOWN)
    return [
        ("    by ", "dim"),
        (f"#{deed.sequence}", "cyan"),
        (f" {one_line(short(deed.type))}, {who}, {rfc3339(deed.stored_at)}", "dim"),
    ]
