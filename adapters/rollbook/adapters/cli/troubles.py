"""What is wrong at one proxy, a line each: what failed, is withheld, cannot be done or lacks its other half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rollbook.adapters.cli.output import Piece, one_line
from rollbook.events.times import parse_rfc3339
from rollbook.projections.looking.status import Failing, ProxyStatus

MOST_NAMED: Final = 10
LONGEST_REASON: Final = 80


def troubles(proxy: ProxyStatus, now: float) -> Iterator[list[Piece]]:
    """Its lines; none if all is well. `now` is in seconds since the epoch."""
    if proxy.failing:
        of = f"{proxy.registered} of {proxy.wanted} registered; {len(proxy.failing)} failed: "
        yield [f"{proxy.name}: {of}", (_first([_failing(one, now) for one in proxy.failing]), "red")]
    if proxy.withheld:
        what = f"{proxy.name}: {len(proxy.withheld)} not removed, since nobody is certain that they are gone: "
        yield [what, (_first(proxy.withheld), "red")]
    if proxy.unsupported:
        what = f"{proxy.name}: a proxy of kind {proxy.kind} cannot do what should be done for "
        yield [what, (_first(proxy.unsupported), "yellow")]
    for pool, partner in proxy.unpaired.items():
        what = f"{proxy.name}: half of a pair: nobody of pool {partner} could take requests, so those of {pool} "
        yield [what, ("cannot be used; they stay, and no others are added", "yellow")]


def _failing(one: Failing, now: float) -> str:
    return f"{one.worker} ({one_line(one.reason, LONGEST_REASON)}; attempt {one.attempts}, {_next(one.retry_at, now)})"


def _next(at: str | None, now: float) -> str:
    if at is None:
        return "next at once"
    seconds = round(parse_rfc3339(at) - now)
    return f"next in {seconds} s" if seconds > 0 else "next now"


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_NAMED
    return ", ".join(texts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
