"""Gates: the named conditions that a worker must pass to be registered, and the first one that it fails.

**Standing gates** decide whether it belongs in a proxy; failing one ends its registration. **Admission gates** are
asked only before an add: they keep newcomers out and evict nobody, because unknown is never no.
"""

from __future__ import annotations

import string
from enum import StrEnum
from typing import Final

import msgspec

from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Located
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase, Worker


class Gate(StrEnum):
    """Named as `status` and `explain` show them, in the order in which they are asked."""

    NOT_FORGOTTEN = "not_forgotten"
    SELECTED = "selected"
    ENTRYPOINT = "entrypoint"
    SERVING = "serving"
    NOT_SUSPENDED = "not_suspended"
    CELL_COMPLETE = "cell_complete"
    NOT_CORDONED = "not_cordoned"
    WEIGHTS_CURRENT = "weights_current"
    PAIR_READY = "pair_ready"
    ADDRESS_KNOWN = "address_known"
    ADDRESS_FREE = "address_free"
    READY = "ready"


class Held(msgspec.Struct, frozen=True, gc=False):
    """The first gate that a worker fails, and why."""

    gate: Gate
    reason: str

    def __str__(self) -> str:
        return f"{self.gate}: {self.reason}"


_ENTRYPOINT: Final = Held(Gate.ENTRYPOINT, "it is not the worker of its cell that takes requests")


def standing(roster: Roster, policy: Policy, proxy: ProxyPolicy, name: str) -> Held | None:
    """The first standing gate that `name` fails at `proxy`, or None if it belongs there."""
    if roster.ended:
        return Held(Gate.SERVING, f"run {roster.run_id} ended" if roster.run_id else "the run ended")
    worker = roster.workers.get(name)
    if worker is None:
        forgotten = name in roster.tombstones
        reason = "an operator had it forgotten" if forgotten else "the log knows no such worker"
        return Held(Gate.NOT_FORGOTTEN, reason)
    if worker.pool not in proxy.pools:
        pool = "it has no pool" if worker.pool is None else f"its pool {worker.pool!r} is not served by {proxy.name}"
        return Held(Gate.SELECTED, pool)
    if not worker.entrypoint:
        return _ENTRYPOINT
    if worker.phase is not Phase.SERVING:
        return Held(Gate.SERVING, _phase_reason(worker))
    sleep = roster.sleep(worker)
    if sleep is not None and policy.pool(worker.pool).deregister_suspended:
        return Held(Gate.NOT_SUSPENDED, sleep.reason or "suspended")
    if (missing := _cell_gap(roster, worker)) is not None:
        return Held(Gate.CELL_COMPLETE, missing)
    cordon = roster.cordons.get(name)
    if cordon is not None:
        return Held(Gate.NOT_CORDONED, f"cordoned by {cordon.by}: {cordon.why}")
    return None


def unwanted(roster: Roster, policy: Policy, proxy: ProxyPolicy, name: str, incarnation: int) -> str | None:
    """Why this life of `name` does not belong at `proxy` [I2]; None if it does."""
    held = standing(roster, policy, proxy, name)
    if held is not None:
        return str(held)
    current = roster.workers[name].incarnation
    return None if current == incarnation else f"superseded by incarnation {current}"


def admission_by_log(roster: Roster, policy: Policy, proxy: ProxyPolicy, worker: Worker) -> Held | None:
    """The first of those admission gates that the log alone answers."""
    return weights(roster, policy, worker) or pair(roster, policy, proxy, worker)


def weights(roster: Roster, policy: Policy, worker: Worker) -> Held | None:
    """Does it hold a version that its pool takes: the one published last, or `max_lag` below it at most?

    Who is ahead of it must have loaded that since: it knows of a version that is about to be published. Before that, it
    is of a run that was given up for an older checkpoint.
    """
    bar = roster.bars.get(worker.pool or "")
    pool = policy.pool(worker.pool)
    if bar is None or not pool.require_weights:
        return None
    if worker.weights is None:
        return Held(Gate.WEIGHTS_CURRENT, f"it has not said what weights it holds; version {bar.version} is published")
    if worker.weights > bar.version:
        if worker.weights_sequence > bar.sequence:
            return None
        return Held(
            Gate.WEIGHTS_CURRENT,
            f"it holds version {worker.weights} of the weights, and version {bar.version} was published after it",
        )
    if bar.version - worker.weights <= pool.max_lag:
        return None
    lag = f", which it may lag {pool.max_lag} behind" if pool.max_lag else ""
    return Held(
        Gate.WEIGHTS_CURRENT,
        f"it holds version {worker.weights} of the weights; version {bar.version} is published{lag}",
    )


def pair(roster: Roster, policy: Policy, proxy: ProxyPolicy, worker: Worker) -> Held | None:
    """Is there anybody of the pool that a request also needs, by all that the log says?

    Asked of the roster and not of what is registered: otherwise each of the two would wait for the other for ever.
    """
    partner = policy.partner(worker.pool)
    # The phase first, because everybody is walked where nobody could: it is what fails of most, and costs least.
    if partner is None or any(
        other.pool == partner and other.phase is Phase.SERVING and _takes_requests(roster, policy, proxy, other)
        for other in roster.workers.values()
    ):
        return None
    return Held(Gate.PAIR_READY, f"no worker of pool {partner!r}, which requests need too, could take any there")


def _takes_requests(roster: Roster, policy: Policy, proxy: ProxyPolicy, worker: Worker) -> bool:
    """Whether nothing that the log says keeps it out. Who lives since before the bar was raised may be in already."""
    if standing(roster, policy, proxy, worker.name) is not None:
        return False
    if weights(roster, policy, worker) is None:
        return True
    bar = roster.bars[worker.pool or ""]
    return worker.began < bar.sequence and policy.pool(worker.pool).stale != "remove"


def address(worker: Worker, located: Located) -> Held | None:
    """The admission gate on the provider's answer: is it an address of this very life?"""
    if located.incarnation not in {0, worker.incarnation}:
        told = f"the provider answers for incarnation {located.incarnation}, the log is at {worker.incarnation}"
        return Held(Gate.ADDRESS_KNOWN, told)
    if not located.alive:
        return Held(Gate.ADDRESS_KNOWN, "the provider says that it is dead")
    if not located.addresses:
        return Held(Gate.ADDRESS_KNOWN, "it has no address yet")
    return None


def worker_url(template: str, located: Located) -> str | Held:
    """Fill a pool's URL template (`http://{primary}`) from the named addresses, or say which one is missing."""
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    absent = [field for field in fields if field not in located.addresses]
    if absent:
        known = ", ".join(sorted(located.addresses)) or "none"
        return Held(Gate.ADDRESS_KNOWN, f"its url template names {absent[0]!r}; the provider knows: {known}")
    return template.format_map({field: str(located.addresses[field]) for field in fields})


def _phase_reason(worker: Worker) -> str:
    why = worker.evidence or ""
    said = ": ".join(part for part in (why, worker.reason) if part)
    return f"{worker.phase} ({said})" if said else str(worker.phase)


def _cell_gap(roster: Roster, worker: Worker) -> str | None:
    """What its cell lacks, if it is one of several workers: every rank serving, all with one cell_incarnation."""
    declared = roster.declared.get(f"{worker.pool}/{worker.cell}")
    size = worker.cell_size
    if declared is not None and declared.cell_incarnation >= (worker.cell_incarnation or 0):
        if declared.size > 1 and declared.cell_incarnation != worker.cell_incarnation:
            return f"it is of cell incarnation {worker.cell_incarnation}, {declared.cell_incarnation} is declared"
        size = declared.size
    if size == 1:
        return None
    ranks: set[int] = set()
    for name in roster.siblings(worker):
        sibling = roster.workers[name]
        if sibling.cell_incarnation == worker.cell_incarnation and sibling.phase is Phase.SERVING:
            ranks.add(sibling.rank)
    # One by one: anyone may say a size, and a range of 10^15 would be walked to its end.
    serving = sum(rank < size for rank in ranks)
    if serving >= size:
        return None
    return f"{serving} of {size} ranks serve in cell incarnation {worker.cell_incarnation}"
