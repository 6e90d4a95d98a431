"""`rollbook status --at`: the fleet as it was, by the log's word alone. Nobody is asked anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rollbook.adapters.cli.common import load_client_config, run, start_logs
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import LONGEST_SHOWN, Piece, one_line, out_document
from rollbook.adapters.cli.past import open_past, said_moment
from rollbook.adapters.cli.status import PHASES
from rollbook.adapters.cli.table import table
from rollbook.adapters.settings import Client
from rollbook.projections.history.moments import Moment
from rollbook.projections.history.view import FleetThen, ProxyThen, RegistrationThen, WorkerThen

_TOLD: Final = {"registered": "green", "registering": "cyan", "deregistering": "yellow", "failed": "red"}


def status_at(at: str, archive: str | None, config: Path | None, *, json: bool) -> Exit:
    """Show the roster and every proxy's registrations as they were at a moment."""
    moment = said_moment(at)
    client = load_client_config(config)
    start_logs()
    found = run(_look(client, archive, moment))
    out_document(found, render(found), json=json)
    return Exit.DONE


async def _look(client: Client, archive: str | None, moment: Moment) -> FleetThen:
    async with open_past(client, archive) as history:
        return await history.at(moment)


def render(then: FleetThen) -> Iterator[list[Piece]]:
    """The fleet as lines for a person."""
    run_id = f"  run {one_line(then.run_id, LONGEST_SHOWN)}" + (" (ended)" if then.ended else "") if then.run_id else ""
    stored = f" ({then.time})" if then.time else ""
    yield [("fleet ", "dim"), (then.fleet, "bold"), f"  as it was at sequence {then.sequence}{stored}{run_id}"]
    yield []
    yield from table([["worker", "life", "phase", "since", "marks", "at the proxies"], *map(_worker, then.workers)])
    yield []
    yield from table([["proxy", "registered", "foreign", "answered", "written by"], *map(_proxy, then.proxies)])
    for lost in then.lost:
        yield [(f"{lost.worker} is not on the roster; {_told(lost)}", "yellow")]


def _worker(worker: WorkerThen) -> list[Piece]:
    why = ": ".join(part for part in (worker.evidence, worker.reason) if part)
    marks = [
        f"suspected: {worker.suspicion}" if worker.suspicion else "",
        f"suspended: {worker.suspended or 'no reason'}" if worker.suspended is not None else "",
        f"cordoned by {worker.cordon.by}: {worker.cordon.why}" if worker.cordon else "",
        f"weights {worker.weights}" if worker.weights is not None else "",
        why if worker.phase != "serving" else "",
    ]
    return [
        worker.name,
        str(worker.incarnation),
        (worker.phase, PHASES.get(worker.phase, "")),
        f"#{worker.since_sequence}",
        one_line("; ".join(mark for mark in marks if mark), LONGEST_SHOWN) or "-",
        _registrations(worker.registrations),
    ]


def _registrations(found: tuple[RegistrationThen, ...]) -> Piece:
    if not found:
        return ("-", "dim")
    worst = max(found, key=lambda one: one.told != "registered")
    return ("; ".join(map(_told, found)), _TOLD.get(worst.told, "red"))


def _told(one: RegistrationThen) -> str:
    why = f" ({one_line(one.reason, LONGEST_SHOWN)})" if one.reason else ""
    return f"{one.proxy}: {one.told} life {one.incarnation} at {one_line(one.url, LONGEST_SHOWN)}{why}"


def _proxy(proxy: ProxyThen) -> list[Piece]:
    answered: Piece = ("never asked", "dim")
    if proxy.reachable is not None:
        version = f" ({one_line(proxy.version, LONGEST_SHOWN)})" if proxy.version else ""
        why = one_line(proxy.reason, LONGEST_SHOWN)
        answered = (f"yes{version}", "green") if proxy.reachable else (f"NO: {why}", "bold red")
    held = f"; held by {proxy.held.by}: {proxy.held.why}" if proxy.held else ""
    owner = f"{proxy.owner}, epoch {proxy.epoch}" if proxy.owner else "nobody"
    return [
        proxy.name,
        str(proxy.registered),
        one_line(", ".join(proxy.foreign), LONGEST_SHOWN) or "-",
        answered,
        one_line(owner + held, LONGEST_SHOWN),
    ]
