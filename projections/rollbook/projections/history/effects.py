"""What a fact changed for one worker: how it stood before and after, and the difference in words."""

from __future__ import annotations

import msgspec

from rollbook.projections.state.roster import Roster


class Marks(msgspec.Struct, frozen=True):
    """What is compared."""

    known: bool
    incarnation: int = 0
    phase: str = "absent"
    suspected: str | None = None
    suspended: str | None = None
    cordoned: str | None = None
    weights: int | None = None
    place: str = ""


def marks_of(roster: Roster, name: str) -> Marks:
    """As the roster has it now."""
    worker = roster.workers.get(name)
    cordon = roster.cordons.get(name)
    cordoned = None if cordon is None else f"{cordon.by}: {cordon.why}"
    if worker is None:
        return Marks(known=False, cordoned=cordoned)
    return Marks(
        known=True,
        incarnation=worker.incarnation,
        phase=str(worker.phase),
        suspected=worker.suspicion,
        suspended=None if worker.suspension is None else worker.suspension.reason or "no reason given",
        cordoned=cordoned,
        weights=worker.weights,
        place="" if worker.pool is None else f"{worker.pool}/{worker.cell}/{worker.rank}",
    )


def effects_of(before: Marks, after: Marks, roster: Roster, worker: str) -> tuple[str, ...]:
    """What became another for `worker`, in words."""
    effects: list[str] = []
    if after.known and before.incarnation != after.incarnation:
        effects.append(f"life {after.incarnation} begins")
        before = Marks(known=True, cordoned=before.cordoned, place=before.place)
    if before.known and not after.known:
        effects.append("struck off the roster")
    elif before.phase != after.phase:
        record = roster.workers[worker]
        why = ": ".join(part for part in (record.evidence, record.reason) if part) if after.phase != "serving" else ""
        effects.append(f"{before.phase} → {after.phase}" + (f" ({why})" if why else ""))
    if before.suspected != after.suspected:
        effects.append("suspicion over" if after.suspected is None else f"suspected: {after.suspected}")
    if before.suspended != after.suspended:
        effects.append("awake" if after.suspended is None else f"suspended: {after.suspended}")
    if before.cordoned != after.cordoned:
        effects.append("cordon lifted" if after.cordoned is None else f"cordoned by {after.cordoned}")
    if before.weights != after.weights and after.weights is not None:
        effects.append(f"holds weights {after.weights}")
    if before.known and after.known and before.place not in {"", after.place}:
        effects.append(f"moved from {before.place} to {after.place}")
    return tuple(effects)
