"""What the log alone can say where nobody can be asked: which pools a proxy serves, and what it lists.

Both are second best. The log holds no configuration, so a proxy serves the pools of the workers that were ever
registered there; and it lists what the log last says of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.projections.deciding import gates
from rollbook.projections.looking.preview import Answers, Line, Preview, lines_at, withheld_at
from rollbook.projections.looking.status import (
    FleetStatus,
    ProxyStatus,
    RegistrationStatus,
    Standing,
    bars,
    restarts,
    worker_status,
)
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Entry, Listing
from rollbook.projections.state.decisions import decisions
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import ProxyRecord, Told

_LISTED = frozenset({Told.REGISTERED, Told.DEREGISTERING, Told.REMOVE_UNSUPPORTED})

NOTE = "no controller answered and no proxy was asked: this is what the log says last"


def policy_of(fleet: str, state: State) -> Policy:
    """The policy as far as the log shows it."""
    proxies: dict[str, ProxyPolicy] = {}
    for name, record in state.ledger.proxies.items():
        workers = (state.roster.workers.get(worker) for worker in record.registrations)
        pools = dict.fromkeys(worker.pool for worker in workers if worker is not None and worker.pool is not None)
        proxies[name] = ProxyPolicy(name=name, pools=tuple(pools))
    return Policy(fleet=fleet, pools={}, proxies=proxies)


def listing_of(fleet: str, record: ProxyRecord) -> Listing:
    """What a proxy lists by the log's last word."""
    return Listing(
        tuple(
            Entry(url=life.url, handle=life.url, fleet=fleet, worker=worker, incarnation=incarnation)
            for worker, lives in record.registrations.items()
            for incarnation, life in lives.items()
            if life.told in _LISTED
        ),
        record.version,
    )


def status_of(state: State, policy: Policy, time: str) -> FleetStatus:
    """How things stand by the log's word alone. Nobody was asked, so nothing is known to have converged."""
    by_worker: dict[str, list[RegistrationStatus]] = {name: [] for name in state.roster.workers}
    proxies: list[ProxyStatus] = []
    for name, served in policy.proxies.items():
        standings = {worker: _standing(state, policy, served, worker) for worker in by_worker}
        for worker, standing in standings.items():
            if standing is not None:
                by_worker[worker].append(standing)
        proxies.append(_proxy(name, state.ledger.look(name), [one for one in standings.values() if one is not None]))
    workers = tuple(
        worker_status(worker, None, tuple(by_worker[worker.name])) for worker in state.roster.workers.values()
    )
    return FleetStatus(
        policy.fleet,
        state.sequence,
        time,
        converged=False,
        workers=workers,
        proxies=tuple(proxies),
        notes=(NOTE, *restarts(state.roster)),
        decisions=decisions(state.roster),
        weights=bars(state.roster),
    )


def _standing(state: State, policy: Policy, served: ProxyPolicy, name: str) -> RegistrationStatus | None:
    """What the log last says of a worker at a proxy; None if the two have nothing to do with each other."""
    lives = state.ledger.look(served.name).registrations.get(name, {})
    worker = state.roster.workers[name]
    if not lives and worker.pool not in served.pools:
        return None
    held = gates.standing(state.roster, policy, served, name)
    told = lives.get(worker.incarnation)
    if held is None and told is not None and told.told is Told.REGISTERED:
        return RegistrationStatus(served.name, Standing.REGISTERED, told.url, None, "by the log")
    if held is not None:
        there = next((life.url for life in lives.values() if life.told in _LISTED), None)
        state_there = Standing.OUT if there is None else Standing.UNWANTED
        return RegistrationStatus(served.name, state_there, there, str(held.gate), held.reason)
    said = "the log says nothing" if told is None else f"{told.told}: {told.reason}".removesuffix(": ")
    return RegistrationStatus(served.name, Standing.UNKNOWN, None, None, said)


def _proxy(name: str, record: ProxyRecord, standings: list[RegistrationStatus]) -> ProxyStatus:
    registered = sum(one.state is Standing.REGISTERED for one in standings)
    unknown = sum(one.state is Standing.UNKNOWN for one in standings)
    return ProxyStatus(
        name,
        kind="unknown",
        reachable=record.reachable is True,
        reason=record.reason or None if record.reachable is False else "not asked",
        registered=registered,
        wanted=registered + unknown,
        foreign=record.foreign,
        version=record.version,
    )


def preview_of(
    state: State, policy: Policy, time: str, only: str | None = None, *, unreachable: Mapping[str, str] | None = None
) -> Preview:
    """The plan by the log's word alone; `only` names one proxy. `unreachable`: those that were asked in vain."""
    lines: list[Line] = []
    unrecorded = 0
    for name, served in policy.proxies.items():
        if only in {None, name}:
            record = state.ledger.look(name)
            answers = Answers(listing=listing_of(policy.fleet, record), budget=withheld_at(name, record))
            found, count = lines_at(state, policy, served, answers)
            lines += found
            unrecorded += count
    return Preview(
        fleet=policy.fleet,
        sequence=state.sequence,
        time=time,
        lines=tuple(lines),
        unreachable=dict(unreachable or {}),
        unrecorded=unrecorded,
        notes=(NOTE,),
    )
