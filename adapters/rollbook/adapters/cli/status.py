"""`rollbook status`: who is present, where each is registered, and which gate holds back the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from rollbook.adapters.cli.common import ConfigFile, Found, Json, load_what_is_there, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import LONGEST_SHOWN, Piece, one_line, out_document, say
from rollbook.adapters.cli.past import Archive, At
from rollbook.adapters.cli.table import table
from rollbook.adapters.cli.troubles import troubles
from rollbook.adapters.settings import Config
from rollbook.events.times import parse_rfc3339, rfc3339
from rollbook.projections.looking.logonly import NOTE
from rollbook.projections.looking.status import FleetStatus, ProxyStatus, RegistrationStatus, Standing, WorkerStatus
from rollbook.projections.state.decisions import DecisionStatus
from rollbook.projections.state.fold import State

EXAMPLE = """\
Example:

    rollbook status
    rollbook status --at -15m
    rollbook status --json | jq '.workers[] | select(.phase != "serving")'

Exit codes: 0 converged, 2 drift: a proxy does not answer, or does not list
exactly what it should; 2 also where only the log could be asked."""

_STYLES: Final = {
    Standing.REGISTERED: "green",
    Standing.PENDING_WEIGHTS: "yellow",
    Standing.OUT: "yellow",
    Standing.UNSUPPORTED: "yellow",
    Standing.UNKNOWN: "red",
    Standing.WITHHELD: "bold red",
    Standing.MISSING: "bold red",
    Standing.UNWANTED: "bold red",
}
"""From the best to the worst."""
MOST_FOREIGN: Final = 3

PHASES: Final = {"serving": "green", "starting": "cyan", "draining": "yellow", "down": "red", "retired": "dim"}


def status(*, at: At = None, archive: Archive = None, config: ConfigFile = None, json: Json = False) -> Exit:
    """Show every worker's phase and life, and per proxy whether it is registered or the gate that holds it back.

    The controller is asked if one runs; otherwise the proxies and the provider are, where the configuration names them;
    otherwise the log alone tells. With --at, it shows what the log says of that moment and asks nobody.
    """
    if at is not None:
        from rollbook.adapters.cli.status_at import status_at

        return status_at(at, archive, config, json=json)
    if archive is not None:
        raise UsageError("--archive is for looking back: say --at, too")
    found = load_what_is_there(config)
    start_logs()
    taken = run(_take(found))
    out_document(taken, render(taken, time.time()), json=json)
    for note in taken.notes:
        say(f"rollbook: {note}")
    return Exit.DONE if taken.converged else Exit.DIFFERENCES


async def _take(found: Found) -> FleetStatus:
    from rollbook.adapters.cli.asking import ask_if_there, open_found, state_of
    from rollbook.adapters.service.messages import STATUS, Request
    from rollbook.projections.looking.logonly import policy_of, status_of

    fleet = found.client.settings.fleet
    async with open_found(found) as reader:
        answer = await ask_if_there(reader, fleet, STATUS, Request())
        if answer is not None:
            return answer
        state, now = await state_of(reader, fleet), rfc3339(reader.clock.now())
        if found.config is None or not found.config.settings.proxies:
            return status_of(state, policy_of(fleet, state), now)
        return await _ask_from_here(found.config, state, now)


async def _ask_from_here(config: Config, state: State, now: str) -> FleetStatus:
    from rollbook.adapters.cli.from_here import Workers, from_here
    from rollbook.projections.looking.look import Look

    async with from_here(config, state) as here:
        if not isinstance(here.workers, Workers):
            raise here.workers
        provider, admission = here.workers
        return await Look(here.policy, state, proxies=here.proxies, provider=provider, admission=admission).take(now)


def render(taken: FleetStatus, now: float) -> Iterator[list[Piece]]:
    """The status as lines for a person."""
    verdict: Piece = ("converged", "green") if taken.converged else ("DRIFT", "bold red")
    if NOTE in taken.notes:
        verdict = ("by the log alone", "yellow")
    led = f"led by {taken.controller}  " if taken.controller else ""
    yield [("fleet ", "dim"), (taken.fleet, "bold"), f"  at sequence {taken.sequence}  ", (led, "dim"), verdict]
    if taken.weights:
        published = ", ".join(f"{pool} {version}" for pool, version in taken.weights.items())
        yield [("weights published: ", "dim"), published]
    yield []
    yield from table([["worker", "life", "phase", "since", "address", "registered at"], *_workers(taken, now)])
    yield []
    yield from table([["proxy", "kind", "registered / wanted", "foreign", "answers"], *_proxies(taken)])
    wrong = [line for proxy in taken.proxies for line in troubles(proxy, now)]
    if wrong:
        yield []
        yield from wrong
    if taken.decisions:
        yield []
        yield from table([["decided", "about", "by", "why", "at sequence"], *map(_decision, taken.decisions)])


def _workers(taken: FleetStatus, now: float) -> Iterator[list[Piece]]:
    for worker in sorted(taken.workers, key=lambda w: (w.pool or "", _natural(w.cell), w.rank, w.name)):
        yield [
            worker.name,
            str(worker.incarnation),
            _phase(worker),
            _ago(worker.since, now),
            worker.address or "-",
            _registrations(worker.registrations),
        ]


def _phase(worker: WorkerStatus) -> Piece:
    mark = " (suspected)" if worker.suspicion else ""
    return (worker.phase + mark, PHASES.get(worker.phase, ""))


def _registrations(found: tuple[RegistrationStatus, ...]) -> Piece:
    """All of a worker's proxies in one cell, in the colour of the worst."""
    if not found:
        return ("no proxy serves its pool", "dim")
    worst = max(found, key=lambda one: list(_STYLES).index(one.state))
    return ("; ".join(map(_registration, found)), _STYLES[worst.state])


def _registration(found: RegistrationStatus) -> str:
    why = ": ".join(part for part in (found.gate, found.reason) if part)
    told = f" ({one_line(why, LONGEST_SHOWN)})" if why else ""
    if found.state is Standing.REGISTERED:
        return f"{found.proxy}: {found.url}" + (told if found.gate else "")
    return f"{found.proxy}: {found.state}{told}"


def _proxies(taken: FleetStatus) -> Iterator[list[Piece]]:
    unwanted = Counter(
        one.proxy for worker in taken.workers for one in worker.registrations if one.state is Standing.UNWANTED
    )
    for proxy in taken.proxies:
        yield _proxy(proxy, unwanted[proxy.name])


def _proxy(proxy: ProxyStatus, unwanted: int) -> list[Piece]:
    right = "green" if proxy.registered == proxy.wanted and not unwanted else "bold red"
    answers: Piece = (f"yes ({proxy.version})" if proxy.version else "yes", "green")
    if not proxy.reachable:
        answers = (f"NO: {one_line(proxy.reason or '', LONGEST_SHOWN)}", "bold red")
    more = f", {unwanted} unwanted" if unwanted else ""
    counts = f"{proxy.registered if proxy.reachable else '?'} / {proxy.wanted}{more}"
    return [proxy.name, proxy.kind, (counts, right), _foreign(proxy.foreign), answers]


def _decision(decision: DecisionStatus) -> list[Piece]:
    about = decision.about or ("everything" if decision.what == "hold" else "the run")
    by, why = one_line(decision.by, LONGEST_SHOWN), one_line(decision.why, LONGEST_SHOWN)
    return [(decision.what, "yellow"), one_line(about, LONGEST_SHOWN), by, why, str(decision.sequence)]


def _foreign(urls: tuple[str, ...]) -> str:
    """The first few, in a column that still fits a terminal."""
    shown = ", ".join(one_line(url, LONGEST_SHOWN) for url in urls[:MOST_FOREIGN])
    return f"{shown} and {len(urls) - MOST_FOREIGN} more" if len(urls) > MOST_FOREIGN else shown or "-"


def _natural(cell: str | None) -> tuple[int, str]:
    return (int(cell), "") if cell is not None and cell.isdecimal() else (-1, cell or "")


def _ago(since: str, now: float) -> str:
    """How long ago; the text itself if it is no time."""
    try:
        return span(max(0, int(now - parse_rfc3339(since))))
    except ValueError:
        return one_line(since, LONGEST_SHOWN) or "-"


def span(seconds: int) -> str:
    """`42s`, `3m12s`, `5h03m`, `2d04h`."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{seconds % 60:02}s" if minutes else f"{seconds}s"
