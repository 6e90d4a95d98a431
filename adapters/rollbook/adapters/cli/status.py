"""`rollbook status`: who is present, where each is registered, and which gate holds back the others."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from rollbook.adapters.cli.common import ConfigFile, Json, load_config, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import Lines, Piece, one_line, out_json, say
from rollbook.adapters.settings import Config
from rollbook.events import Codec
from rollbook.events.times import parse_rfc3339, rfc3339
from rollbook.projections.status import FleetStatus, ProxyStatus, RegistrationStatus, Standing, WorkerStatus

EXAMPLE = """\
Example:

    rollbook status
    rollbook status --json | jq '.workers[] | select(.phase != "serving")'

Exit codes: 0 converged, 2 drift: a proxy does not answer, or does not list exactly what it should."""

_STYLES: Final = {
    Standing.REGISTERED: "green",
    Standing.OUT: "yellow",
    Standing.UNKNOWN: "red",
    Standing.MISSING: "bold red",
    Standing.UNWANTED: "bold red",
}
"""From the best to the worst."""
MOST_FOREIGN: Final = 3
LONGEST_SHOWN: Final = 200
"""Letters of a reason. Workers, operators and routers write them as long as they like; `--json` has them whole."""

_PHASES: Final = {"serving": "green", "starting": "cyan", "draining": "yellow", "down": "red", "retired": "dim"}


def status(*, config: ConfigFile = None, json: Json = False) -> Exit:
    """Show every worker's phase and life, and per proxy whether it is registered or the gate that holds it back.

    Reads the log, and asks the proxies and the provider now. A controller need not be running.
    """
    found = load_config(config)
    start_logs()
    taken = run(_take(found))
    if json:
        out_json(msgspec.to_builtins(taken))
    else:
        lines = Lines()
        for line in render(taken, time.time()):
            lines.write(line)
    for note in taken.notes:
        say(f"rollbook: {note}")
    return Exit.DONE if taken.converged else Exit.DIFFERENCES


async def _take(config: Config) -> FleetStatus:
    from rollbook.adapters.bootstrap import nats_connection, open_provider, open_reader, open_readiness
    from rollbook.adapters.proxies.opening import open_proxies
    from rollbook.projections.admission import Admission
    from rollbook.projections.catchup import state_now
    from rollbook.projections.status import Look

    settings, base = config.settings, config.file.parent
    connection = nats_connection(settings.nats, environ=os.environ, directory=config.directory)
    async with contextlib.AsyncExitStack() as stack:
        reader = await stack.enter_async_context(open_reader(settings.fleet, connection))
        proxies = await stack.enter_async_context(open_proxies(settings, environ=os.environ, base=base))
        readiness = await stack.enter_async_context(open_readiness())
        state = await state_now(reader.log, reader.snapshots, Codec(settings.fleet), reader.clock)
        provider = await stack.enter_async_context(open_provider(settings))
        policy = settings.policy()
        admission = Admission(policy, lambda: state.roster, provider, readiness)
        look = Look(policy, state, proxies=proxies, provider=provider, admission=admission)
        return await look.take(rfc3339(reader.clock.now()))


def render(taken: FleetStatus, now: float) -> Iterator[list[Piece]]:
    """The status as lines for a person."""
    verdict: Piece = ("converged", "green") if taken.converged else ("DRIFT", "bold red")
    yield [("fleet ", "dim"), (taken.fleet, "bold"), f"  at sequence {taken.sequence}  ", verdict]
    yield []
    yield from _table([["worker", "life", "phase", "since", "address", "registered at"], *_workers(taken, now)])
    yield []
    yield from _table([["proxy", "kind", "listed / wanted", "foreign", "answers"], *map(_proxy, taken.proxies)])


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
    return (worker.phase + mark, _PHASES.get(worker.phase, ""))


def _registrations(found: tuple[RegistrationStatus, ...]) -> Piece:
    """All of a worker's proxies in one cell, in the colour of the worst."""
    if not found:
        return ("no proxy serves its pool", "dim")
    worst = max(found, key=lambda one: list(_STYLES).index(one.state))
    return ("; ".join(map(_registration, found)), _STYLES[worst.state])


def _registration(found: RegistrationStatus) -> str:
    if found.state is Standing.REGISTERED:
        return f"{found.proxy}: {found.url}"
    why = ": ".join(part for part in (found.gate, found.reason) if part)
    return f"{found.proxy}: {found.state}" + (f" ({one_line(why, LONGEST_SHOWN)})" if why else "")


def _proxy(proxy: ProxyStatus) -> list[Piece]:
    right = "green" if proxy.registered == proxy.wanted else "bold red"
    answers: Piece = (f"yes ({proxy.version})" if proxy.version else "yes", "green")
    if not proxy.reachable:
        answers = (f"NO: {one_line(proxy.reason or '', LONGEST_SHOWN)}", "bold red")
    counts: Piece = (f"{proxy.registered} / {proxy.wanted}" if proxy.reachable else f"? / {proxy.wanted}", right)
    return [proxy.name, proxy.kind, counts, _foreign(proxy.foreign), answers]


def _foreign(urls: tuple[str, ...]) -> str:
    """The first few, in a column that still fits a terminal."""
    shown = ", ".join(one_line(url, LONGEST_SHOWN) for url in urls[:MOST_FOREIGN])
    return f"{shown} and {len(urls) - MOST_FOREIGN} more" if len(urls) > MOST_FOREIGN else shown or "-"


def _natural(cell: str | None) -> tuple[int, str]:
    return (int(cell), "") if cell is not None and cell.isdecimal() else (-1, cell or "")


def _ago(since: str, now: float) -> str:
    """`42s`, `3m12s`, `5h03m`, `2d04h` ago; the text itself if it is no time."""
    try:
        seconds = max(0, int(now - parse_rfc3339(since)))
    except ValueError:
        return one_line(since, LONGEST_SHOWN) or "-"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{seconds % 60:02}s" if minutes else f"{seconds}s"


def _table(rows: list[list[Piece]]) -> Iterator[list[Piece]]:
    """Columns as wide as their widest cell; the last one takes the rest of the line."""

    def text(cell: Piece) -> str:
        return cell if isinstance(cell, str) else cell[0]

    widths = [max(len(text(row[column])) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        line: list[Piece] = []
        for column, cell in enumerate(row):
            last = column == len(row) - 1
            padded = text(cell) if last else text(cell).ljust(widths[column] + 2)
            style = "dim" if number == 0 else ("" if isinstance(cell, str) else cell[1])
            line.append((padded, style) if style else padded)
        yield line
