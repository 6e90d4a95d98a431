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
    if worker.suspension is not None and policy.pool(worker.pool).deregister_suspended:
        return Held(Gate.NOT_SUSPENDED, worker.suspension.reason or "suspended")
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


def weights(roster: Roster, worker: Worker) -> Held | None:
    """The admission gate that the log alone answers: are the worker's weights at the bar?"""
    bar = roster.bars.get(worker.pool or "")
    if bar is None or (worker.weights is not None and worker.weights >= bar):
        return None
    holds = "no known version" if worker.weights is None else f"version {worker.weights}"
    return Held(Gate.WEIGHTS_CURRENT, f"it holds {holds} of the weights, the bar is {bar}")


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
