"""`rollbook reconcile`: a pass now, and what became of each entry."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from rollbook.adapters.cli.common import (
    ConfigFile,
    Found,
    Json,
    ProxyName,
    load_config,
    load_what_is_there,
    parse_timeout,
    run,
    start_logs,
)
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import LONGEST_SHOWN, Lines, Piece, one_line, out_json, say
from rollbook.adapters.cli.people import who
from rollbook.adapters.cli.plan import render, show, verdict
from rollbook.events import RollbookError

if TYPE_CHECKING:
    from rollbook.adapters.service.messages import Reconciled, ReconcileRequest, Step
    from rollbook.adapters.settings import Config
    from rollbook.projections.looking.saved import SavedPlan

EXAMPLE = """\
Example:

    rollbook reconcile
    rollbook reconcile --proxy router-a --force
    rollbook reconcile --plan next.plan
    rollbook reconcile --once

Exit codes: 0 all is as it should be, 2 something is left to do or withheld,
3 not finished in time, 1 a proxy did not answer or anything else failed."""

_MARKS: Final = {"registered": ("+", "green"), "deregistered": ("-", "red"), "failed": ("x", "bold red")}


class NobodyToAsk(RollbookError):
    """No controller runs that could make the pass."""


class LedAlready(RollbookError):
    """A pass of one's own was asked for while a controller leads."""

    def __init__(self, fleet: str, owner: str) -> None:
        super().__init__(f"{owner} leads fleet {fleet!r}: let it make the pass, without --once")


def reconcile(  # noqa: PLR0913 - one for each option
    *,
    proxy: ProxyName = None,
    plan: Annotated[
        Path | None, Parameter(help="A plan of `rollbook plan --out`; refused if it is not what is to be done now.")
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Only show what would be done, as `rollbook plan` does.")
    ] = False,
    force: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Exceed the removal budget, this once.")
    ] = False,
    once: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Without a controller: take the lease, do one pass, give it back."
        ),
    ] = False,
    by: Annotated[
        str | None, Parameter(help="Who asks, for the log; by default user@host.", show_default=False)
    ] = None,
    timeout: Annotated[
        str, Parameter(help="How long to wait until the pass is over; a number alone is seconds.")
    ] = "120s",
    json: Json = False,
    config: ConfigFile = None,
) -> Exit:
    """Let the controller make a pass now, and show what it did to each entry and what it left.

    A controller makes passes by itself all the time. This one comes at once, also for what waits to be tried again,
    and says when it is over.
    """
    from rollbook.adapters.service.messages import ReconcileRequest

    seconds = parse_timeout(timeout)
    found = load_what_is_there(config)
    start_logs()
    saved = None if plan is None else read_plan(plan, found.client.settings.fleet)
    if saved is not None and proxy not in {None, saved.proxy}:
        raise UsageError(f"{plan} is a plan for {saved.proxy or 'all proxies'}, and --proxy says {proxy}")
    proxy = proxy if saved is None else saved.proxy
    request = ReconcileRequest(proxy=proxy, force=force, by=by or who(), plan=saved, deadline_seconds=seconds)
    if dry_run:
        return run(_dry(found, request, json=json))
    told = _Told(json=json)
    done = run(_once(found, load_config(config), request, told) if once else _ask(found, request, told))
    return _show(done, told, json=json)


def read_plan(file: Path, fleet: str) -> SavedPlan:
    """A saved plan. Raises `UsageError` for what is none, or another fleet's."""
    from rollbook.projections.looking.saved import UnusablePlan, load_saved

    try:
        return load_saved(file.read_bytes(), fleet)
    except OSError as exc:
        raise UsageError(f"{file} cannot be read: {exc.strerror}") from exc
    except UnusablePlan as exc:
        raise UsageError(f"{file}: {exc}") from exc


async def _dry(found: Found, request: ReconcileRequest, *, json: bool) -> Exit:
    from rollbook.adapters.cli.asking import open_found, preview
    from rollbook.projections.looking import saved

    async with open_found(found) as reader:
        fresh = await preview(found, reader, request.proxy)
    if request.plan is not None:
        saved.check(request.plan, fresh)
    return show(fresh, json=json)


class _Told:
    """Shows each step as soon as it is known, and once."""

    def __init__(self, *, json: bool) -> None:
        self._lines = None if json else Lines(flush=True)
        self._count = 0

    def __call__(self, step: Step) -> None:
        self._count += 1
        if self._lines is not None:
            self._lines.write(_line(step))

    def rest(self, steps: Sequence[Step]) -> None:
        """What came with the reply only."""
        for step in steps[self._count :]:
            self(step)


async def _ask(found: Found, request: ReconcileRequest, told: _Told) -> Reconciled:
    from rollbook.adapters.cli.asking import ask, open_found
    from rollbook.adapters.service.client import NoController
    from rollbook.adapters.service.messages import RECONCILE

    async with open_found(found) as reader:
        try:
            return await ask(reader, found.client.settings.fleet, RECONCILE, request, told)
        except NoController as exc:
            msg = f"{exc}, or let this command make one pass by itself: rollbook reconcile --once"
            raise NobodyToAsk(msg) from exc


async def _once(found: Found, config: Config, request: ReconcileRequest, told: _Told) -> Reconciled:
    """Lead for one pass. Raises `LedAlready` if a controller leads."""
    from rollbook.adapters.bootstrap import build
    from rollbook.adapters.service.server import Serving
    from rollbook.adapters.service.verbs import reconcile as make_pass
    from rollbook.projections.leading.controller import Leading
    from rollbook.projections.ports import AlreadyLed

    await _refuse_if_led(found)
    done: list[Reconciled] = []

    async def once(leading: Leading) -> None:
        async def progress(step: Step) -> None:
            told(step)

        done.append(await make_pass(Serving(leading), request, progress))
        built.controller.stop()

    async with build(config.settings, config.directory, environ=os.environ, once=once) as built:
        try:
            await built.run()
        except AlreadyLed as exc:
            raise LedAlready(config.settings.fleet, exc.owner) from exc
    return done[0]


async def _refuse_if_led(found: Found) -> None:
    """Before anything is started: an embedded server that runs belongs to the controller that runs."""
    from rollbook.adapters.bootstrap import NoServer
    from rollbook.adapters.cli.asking import ask_if_there, open_found
    from rollbook.adapters.service.messages import INFO, InfoRequest
    from rollbook.projections.ports import LogError

    fleet = found.client.settings.fleet
    try:
        async with open_found(found) as reader:
            info = await ask_if_there(reader, fleet, INFO, InfoRequest(deadline_seconds=5.0))
    except (NoServer, LogError):
        return  # no log yet, or what is wrong with it is said when it is opened to lead
    if info is not None:
        raise LedAlready(fleet, info.owner)


def _show(done: Reconciled, told: _Told, *, json: bool) -> Exit:
    if json:
        out_json(msgspec.to_builtins(done))
    else:
        told.rest(done.steps)
        lines = Lines()
        for line in _summary(done):
            lines.write(line)
    for note in done.left.notes:
        say(f"rollbook: {note}")
    if not done.finished:
        say("rollbook: the pass was not over in time; the controller goes on, and `rollbook plan` shows what is left")
        return Exit.WAITED
    return verdict(done.left)


def _summary(done: Reconciled) -> Iterator[list[Piece]]:
    *left, _ = render(done.left)
    yield from left
    counts = [f"{sum(step.outcome == outcome for step in done.steps)} {outcome}" for outcome in _MARKS]
    remaining = sum(line.differs for line in done.left.lines)
    yield [f"Reconciled: {', '.join(counts)}; {remaining} left"]


def _line(step: Step) -> list[Piece]:
    mark, style = _MARKS[step.outcome]
    why = f"  {one_line(step.reason, LONGEST_SHOWN)}" if step.reason else ""
    life = "" if step.worker is None else f"{step.worker} #{step.incarnation} "
    whom = f"{life}{one_line(step.url, LONGEST_SHOWN)}"
    return [(f"{mark} {step.outcome:<13}", style), f"{step.proxy}  {whom}", (why, "dim")]
