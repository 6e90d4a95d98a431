"""An operator's decisions, published as facts with who and why: they need no controller, and outlive it.

`cordon`, `uncordon`, `drain` and `forget` are about one worker, `hold` and `release` about reconciliation, `end` about
the whole run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, Found, load_what_is_there, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import out, say
from rollbook.adapters.cli.people import publisher_name, who
from rollbook.adapters.spelling import counted
from rollbook.events import (
    DrainRequested,
    Fact,
    FleetEnded,
    ReconcileHeld,
    ReconcileReleased,
    WorkerCordoned,
    WorkerForgotten,
    WorkerUncordoned,
    validate_name,
)

if TYPE_CHECKING:
    from rollbook.adapters.bootstrap import Reader
    from rollbook.projections.state.fold import State


def _says_why(_: type, reason: str) -> None:
    if not reason.strip():
        raise ValueError("say why: whoever reads the log at night has nothing else")


Worker = Annotated[str, Parameter(help="Its name, such as rollout-3-0.")]
Reason = Annotated[str, Parameter(help="Why, for whoever reads the log.", validator=_says_why)]
By = Annotated[str | None, Parameter(help="Who decides; by default user@host.", show_default=False)]
Yes = Annotated[
    bool, Parameter(negative=(), show_default=False, help="Do it also for a name that the log does not know.")
]
Proxy = Annotated[str | None, Parameter(name="--proxy", help="Only at this proxy; by default at all of them.")]

Decide = Callable[["State"], "Fact | str"]
"""The fact to publish after a look at the state, or why there is nothing to publish."""

_EXAMPLES: Final = {
    "cordon": """\
Example:

    rollbook cordon rollout-3-0 --reason "wrong answers since noon"
    rollbook uncordon rollout-3-0 --reason "its GPU was replaced" """,
    "uncordon": """\
Example:

    rollbook uncordon rollout-3-0 --reason "its GPU was replaced" """,
    "drain": """\
Example:

    rollbook drain rollout-3-0 --reason "node goes down" --deadline 60
    rollbook wait --worker rollout-3-0 --for gone""",
    "forget": """\
Example:

    rollbook forget rollout-3-0 --reason "that node is gone for good" """,
    "hold": """\
Example:

    rollbook hold --reason "the provider lists nothing"
    rollbook plan
    rollbook release --reason "it lists them again" """,
    "release": """\
Example:

    rollbook release --reason "it lists them again"
    rollbook release --proxy router-a --reason "its upgrade is over" """,
    "end": """\
Example:

    rollbook end
    rollbook end --yes --reason "converged" """,
}


def register(commands: App) -> None:
    """Add the commands to the program."""
    for command in (cordon, uncordon, drain, forget, hold, release, end):
        commands.command(command, help_epilogue=_EXAMPLES[command.__name__])


def cordon(worker: Worker, /, *, reason: Reason, by: By = None, yes: Yes = False, config: ConfigFile = None) -> Exit:
    """Keep a worker out of every proxy, in this life and in later ones, until it is uncordoned."""

    def decide(state: State) -> Fact:
        _known(state, worker, yes=yes)
        return WorkerCordoned(worker=worker, by=by or who(), why=reason)

    return _publish(config, "worker", worker, decide)


def uncordon(worker: Worker, /, *, reason: Reason, by: By = None, yes: Yes = False, config: ConfigFile = None) -> Exit:
    """Let a cordoned worker be registered again."""

    def decide(state: State) -> Fact | str:
        if worker not in state.roster.cordons:
            _known(state, worker, yes=yes)
        if worker not in state.roster.cordons:
            return f"{worker} is not cordoned{_nearest(worker, state.roster.cordons)}"
        return WorkerUncordoned(worker=worker, by=by or who(), why=reason)

    return _publish(config, "worker", worker, decide)


def drain(
    worker: Worker,
    /,
    *,
    reason: Reason,
    deadline: Annotated[
        float | None,
        Parameter(help="Seconds that running requests have; by default the proxy's.", validator=Number(gt=0)),
    ] = None,
    by: By = None,
    yes: Yes = False,
    config: ConfigFile = None,
) -> Exit:
    """Take a worker's present life out of rotation, and let its running requests end. A later life is not touched."""

    def decide(state: State) -> Fact | str:
        _known(state, worker, yes=yes)
        found = state.roster.workers.get(worker)
        if found is not None and found.phase not in {"starting", "serving"}:
            return f"{worker} is {found.phase}: there is nothing to drain"
        return DrainRequested(worker=worker, by=by or who(), why=reason, deadline_seconds=deadline)

    return _publish(config, "worker", worker, decide)


def forget(worker: Worker, /, *, reason: Reason, by: By = None, yes: Yes = False, config: ConfigFile = None) -> Exit:
    """Strike a worker off the roster, and deregister it. It comes back by starting anew, as a new life."""

    def decide(state: State) -> Fact | str:
        if worker in state.roster.tombstones:
            return f"{worker} was forgotten already, with life {state.roster.tombstones[worker]}"
        _known(state, worker, yes=yes)
        return WorkerForgotten(worker=worker, by=by or who(), why=reason)

    return _publish(config, "worker", worker, decide)


def hold(*, reason: Reason, proxy: Proxy = None, by: By = None, yes: Yes = False, config: ConfigFile = None) -> Exit:
    """Make no admin calls until released. Facts are folded on, and `rollbook plan` shows what waits."""

    def decide(state: State) -> Fact:
        _known_proxy(state, proxy, yes=yes)
        return ReconcileHeld(proxy=proxy, by=by or who(), why=reason)

    return _publish(config, "proxy", proxy, decide)


def release(*, reason: Reason, proxy: Proxy = None, by: By = None, config: ConfigFile = None) -> Exit:
    """Let admin calls be made again. What was held as a whole is released as a whole, a proxy by its name."""

    def decide(state: State) -> Fact | str:
        held = state.roster.held
        if (proxy or "") not in held:
            others = ", ".join(f"{name or 'everything'} by {one.by}" for name, one in held.items())
            return f"{proxy or 'reconciliation as a whole'} is not held" + (f"; held: {others}" if others else "")
        return ReconcileReleased(proxy=proxy, by=by or who(), why=reason)

    return _publish(config, "proxy", proxy, decide)


def end(
    *,
    reason: Annotated[str, Parameter(help="Why, for whoever reads the log.")] = "the run is over",
    by: By = None,
    yes: Annotated[bool, Parameter(negative=(), show_default=False, help="Do it.")] = False,
    config: ConfigFile = None,
) -> Exit:
    """End the run: every worker is retired and deregistered everywhere. A new run begins with FleetStarted.

    Without --yes it only says how many registrations would go.
    """

    def decide(state: State) -> Fact | str:
        if state.roster.ended:
            return "the run has ended already"
        workers = sum(worker.phase != "retired" for worker in state.roster.workers.values())
        entries = sum(len(lives) for one in state.ledger.proxies.values() for lives in one.registrations.values())
        run_id = state.roster.run_id
        counts = f"{counted(workers, 'worker')}, {counted(entries, 'registration')} to be removed"
        what = f"{f'run {run_id!r}' if run_id else 'the run'}: {counts}"
        if not yes:
            raise UsageError(f"this ends {what}; say --yes to do it")
        say(f"rollbook: ending {what}")
        return FleetEnded(run_id=run_id or UNNAMED_RUN, reason=f"{reason} ({by or who()})")

    return _publish(config, "fleet", None, decide)


UNNAMED_RUN: Final = "unnamed"
"""What ends where nobody said which run it is."""


def _publish(file: ConfigFile, kind: str, name: str | None, decide: Decide) -> Exit:
    if name is not None:
        validate_name(kind, name)
    found = load_what_is_there(file)
    start_logs()
    return run(_decide(found, decide))


async def _decide(found: Found, decide: Decide) -> Exit:
    """Look, decide, publish; the fact's sequence is printed once the log has it."""
    from rollbook.adapters.cli.asking import open_found, state_of

    fleet = found.client.settings.fleet
    async with open_found(found) as reader:
        decided = decide(await state_of(reader, fleet))
        if isinstance(decided, str):
            say(f"rollbook: {decided}; nothing was published")
            return Exit.DONE
        out(str(await _store(reader, fleet, decided)))
    return Exit.DONE


async def _store(reader: Reader, fleet: str, fact: Fact) -> int:
    from rollbook.adapters.ids import UuidV7
    from rollbook.events import Codec
    from rollbook.events.times import rfc3339
    from rollbook.projections.ports import LogUnavailable

    time = rfc3339(reader.clock.now())
    draft = Codec(fleet).draft(fact, id=UuidV7().new(), time=time, publisher=publisher_name())
    try:
        [sequence] = await reader.log.append([draft])
    except LogUnavailable as exc:
        msg = (
            f"{exc}. Whether the decision was stored is unknown: look at `rollbook log --since 5m` before you repeat it"
        )
        raise LogUnavailable(msg) from exc
    return sequence


def _known(state: State, worker: str, *, yes: bool) -> None:
    roster = state.roster
    if not yes and worker not in roster.workers and worker not in roster.tombstones:
        raise UsageError(f"the log knows no worker {worker!r}{_nearest(worker, roster.workers)}; say --yes to mean it")


def _known_proxy(state: State, proxy: str | None, *, yes: bool) -> None:
    proxies = state.ledger.proxies
    if proxy is not None and not yes and proxy not in proxies:
        raise UsageError(f"the log knows no proxy {proxy!r}{_nearest(proxy, proxies)}; say --yes to mean it")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
