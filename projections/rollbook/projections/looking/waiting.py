"""Whether those workers are routed, or gone, that somebody waits for: by the log, where every outcome stands.

Pure. A worker is *routed* when its current life serves and is registered, by the log's last word, at every proxy that
serves its pool, and those proxies answer. It is *gone* when no proxy has anything of it left, open intents included;
where it is known which proxies there are, one that was taken out of the configuration does not count: nobody would ever
deregister anything there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rollbook.events import RollbookError
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import ProxyRecord, Told
from rollbook.projections.state.worker import Phase, Worker

Pools = Mapping[str, tuple[str, ...]]
"""By proxy: the pools that it serves."""


class WrongGoal(RollbookError, ValueError):
    """What is waited for contradicts itself."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for. Raises `WrongGoal`."""

    state: Literal["routed", "gone"] = "routed"
    pool: str | None = None
    """None: every pool."""
    at_least: int | None = None
    """How many; None: all that are there, and one at least to be routed."""
    worker: str | None = None
    """This one only."""
    incarnation: int | None = None
    """Of `worker`: routed in this life or a later one; gone with this life and all before it."""

    def __post_init__(self) -> None:
        if self.worker is not None and (self.pool is not None or self.at_least is not None):
            raise WrongGoal("one worker is waited for, so a pool or a number of workers has no meaning")
        if self.incarnation is not None and self.worker is None:
            raise WrongGoal("a life belongs to a worker: say which worker")
        if self.at_least is not None and (self.at_least < 1 or self.state == "gone"):
            raise WrongGoal("a number of workers can be waited for to be routed, and is 1 or more")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is."""

    reached: bool
    there: tuple[str, ...]
    """Workers that are as they are waited for."""
    missing: dict[str, str]
    """The others, with the reason of each."""
    wanted: int
    """How many are needed."""
    sequence: int

    def __str__(self) -> str:
        return f"{len(self.there)} of {self.wanted}"


def look(state: State, goal: Goal, pools: Pools | None) -> Progress:
    """How far `goal` is. Without `pools` nobody knows which proxy serves whom: registered anywhere is routed."""
    found = {name: _reason(state, goal, pools, name) for name in _names(state, goal)}
    there = tuple(name for name, reason in found.items() if reason is None)
    missing = {name: reason for name, reason in found.items() if reason is not None}
    least = 0 if goal.state == "gone" else 1
    wanted = goal.at_least or max(least, len(found))
    return Progress(reached=len(there) >= wanted, there=there, missing=missing, wanted=wanted, sequence=state.sequence)


def _names(state: State, goal: Goal) -> list[str]:
    if goal.worker is not None:
        return [goal.worker]
    roster = state.roster.workers
    if goal.state == "routed":
        return [
            name
            for name, worker in roster.items()
            if goal.pool in {None, worker.pool} and worker.entrypoint and worker.phase is not Phase.RETIRED
        ]
    names = dict.fromkeys(name for record in state.ledger.proxies.values() for name in record.registrations)
    names.update(dict.fromkeys(roster))
    if goal.pool is None:
        return list(names)
    # What is registered and not in the roster any more was forgotten; whose pool it was is not known.
    return [name for name in names if name in roster and roster[name].pool == goal.pool]


def _reason(state: State, goal: Goal, pools: Pools | None, name: str) -> str | None:
    """Why `name` is not yet as it is waited for; None if it is."""
    if goal.state == "gone":
        return _still_there(state, name, goal.incarnation, pools)
    worker = state.roster.workers.get(name)
    if worker is None:
        return "the log knows no such worker"
    if goal.incarnation is not None and worker.incarnation < goal.incarnation:
        return f"its life is {worker.incarnation}"
    if worker.phase is not Phase.SERVING:
        said = ": ".join(part for part in (worker.evidence, worker.reason) if part)
        return f"{worker.phase} ({said})" if said else str(worker.phase)
    if pools is None:
        return _registered_anywhere(state, worker)
    serving = [proxy for proxy, served in pools.items() if worker.pool in served]
    if not serving:
        return "no proxy serves its pool"
    reasons = (_not_at(state, proxy, worker) for proxy in serving)
    return next((reason for reason in reasons if reason is not None), None)


def _registered_anywhere(state: State, worker: Worker) -> str | None:
    reasons = [_not_at(state, proxy, worker) for proxy in state.ledger.proxies]
    return None if None in reasons else (reasons[0] if reasons else "no controller has run yet")


def _not_at(state: State, proxy: str, worker: Worker) -> str | None:
    record = state.ledger.look(proxy)
    if record.reachable is False:
        return f"{proxy} does not answer: {record.reason}"
    life = record.registrations.get(worker.name, {}).get(worker.incarnation)
    if life is not None and life.told is Told.REGISTERED:
        return None
    cordon = state.roster.cordons.get(worker.name)
    if cordon is not None:
        return f"cordoned by {cordon.by}: {cordon.why}"
    hold = state.roster.holding(proxy)
    if hold is not None:
        return f"{proxy} is held by {hold.by}: {hold.why}"
    sleep = state.roster.sleep(worker)
    asleep = "" if sleep is None else f" (asleep: {sleep.reason or 'no reason given'})"
    if life is None:
        bar = state.roster.bars.get(worker.pool or "")
        holds = (
            "" if bar is None or worker.weights == bar.version else f" ({_holds(worker)}, {bar.version} is published)"
        )
        return f"not registered at {proxy} yet{asleep or holds}"
    return f"{proxy}: {life.told}" + (f" ({life.reason})" if life.reason else "")


def _holds(worker: Worker) -> str:
    return "it has not said what weights it holds" if worker.weights is None else f"it holds weights {worker.weights}"


def _still_there(state: State, name: str, incarnation: int | None, pools: Pools | None) -> str | None:
    for proxy, record in state.ledger.proxies.items():
        if pools is not None and proxy not in pools:
            continue
        for life in sorted(_lives(record, name, incarnation)):
            told = record.registrations[name][life]
            return f"{proxy}: {told.told} (life {life}, {told.url})"
    return None


def _lives(record: ProxyRecord, name: str, incarnation: int | None) -> list[int]:
    return [life for life in record.registrations.get(name, {}) if incarnation is None or life <= incarnation]
