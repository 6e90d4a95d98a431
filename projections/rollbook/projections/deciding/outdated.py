"""Registered workers that leave because of their weights, and how many at a time.

A new version of the weights keeps newcomers out and evicts nobody, unless the pool says so (`stale`). With `replace`
one leaves for each worker that holds the new version and is registered at this proxy, the lowest version first: whoever
loaded it stays, and of a pool at least half is always there. Pure; asked again right before each call, because who
leaves depends on all the others.
"""

from __future__ import annotations

from typing import Final

from rollbook.projections.deciding import gates
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import ProxyRecord, Told
from rollbook.projections.state.worker import Worker

_LISTED: Final = frozenset({Told.REGISTERED, Told.DEREGISTERING})
_UNKNOWN: Final = float("-inf")


def outdated(state: State, policy: Policy, proxy: ProxyPolicy) -> dict[str, str]:
    """Worker → why its current life leaves `proxy` now, although it passes every standing gate."""
    found: dict[str, str] = {}
    for pool in proxy.pools:
        if pool in state.roster.bars and policy.pool(pool).stale != "keep":
            found |= _of_pool(state, policy, proxy, pool)
    return found


def _of_pool(state: State, policy: Policy, proxy: ProxyPolicy, pool: str) -> dict[str, str]:
    roster, record = state.roster, state.ledger.look(proxy.name)
    current = out = 0
    there: list[tuple[Worker, str]] = []
    for worker in roster.workers.values():
        if worker.pool != pool or gates.standing(roster, policy, proxy, worker.name) is not None:
            continue
        held = gates.weights(roster, policy, worker)
        if held is None:
            current += _is_registered(record, worker)
        elif _may_be_there(record, worker):
            there.append((worker, str(held)))
        else:
            out += 1
    if policy.pool(pool).stale == "replace":
        there.sort(key=lambda one: (_UNKNOWN if one[0].weights is None else one[0].weights, one[0].name))
        there = there[: max(0, current - out)]
    return {worker.name: why for worker, why in there}


def _is_registered(record: ProxyRecord, worker: Worker) -> bool:
    life = record.registrations.get(worker.name, {}).get(worker.incarnation)
    return life is not None and life.told is Told.REGISTERED


def _may_be_there(record: ProxyRecord, worker: Worker) -> bool:
    """By the log's word: also while its removal is under way, or has failed."""
    life = record.registrations.get(worker.name, {}).get(worker.incarnation)
    return life is not None and (life.told in _LISTED or (life.told is Told.FAILED and life.possible))
