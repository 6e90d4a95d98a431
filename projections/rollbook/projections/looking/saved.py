"""A plan kept for later: what was to be done, so that a pass can be refused once the world has moved on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from rollbook.events import RollbookError
from rollbook.projections.looking.preview import Change, Line, Preview

FORMAT: Final = 1
MOST_SHOWN: Final = 50
"""Of what has moved, in the refusal."""


class UnusablePlan(RollbookError):
    """A file that is no plan, not whole, or another fleet's."""


class Overtaken(RollbookError):
    """What is to be done now is not what the plan says."""

    def __init__(self, since: int, now: int, moved: tuple[str, ...]) -> None:
        shown = [f"  {line}" for line in moved[:MOST_SHOWN]]
        if len(moved) > MOST_SHOWN:
            shown.append(f"  and {len(moved) - MOST_SHOWN} more")
        head = f"the plan was made at sequence {since} and does not fit any more at {now}; nothing was done. Moved:"
        super().__init__("\n".join([head, *shown, "make a new one with `rollbook plan --out FILE`"]))


class SavedEntry(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One thing to be done."""

    proxy: str
    worker: str
    incarnation: int
    url: str
    action: str
    """`register`, `replace` or `deregister`; also of what is withheld, since that is what is done after its release."""

    def __str__(self) -> str:
        return f"{self.action} {self.worker or 'an entry of others'} #{self.incarnation} {self.url} at {self.proxy}"


class SavedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `rollbook plan --out` writes."""

    format: int
    fleet: str
    sequence: int
    """Of the log, when it was made."""
    proxy: str | None
    """The one that was planned for; None: all."""
    entries: tuple[SavedEntry, ...]
    digest: str
    """SHA-256 over all the rest, hexadecimal."""


def save(preview: Preview, proxy: str | None) -> SavedPlan:
    """The plan to keep. `proxy` is the one that the preview was limited to."""
    entries = tuple(sorted(_entries(preview.lines)))
    bare = SavedPlan(
        format=FORMAT, fleet=preview.fleet, sequence=preview.sequence, proxy=proxy, entries=entries, digest=""
    )
    return msgspec.structs.replace(bare, digest=_digest(bare))


def load_saved(data: bytes, fleet: str) -> SavedPlan:
    """Read a plan back. Raises `UnusablePlan`."""
    try:
        saved = msgspec.json.decode(data, type=SavedPlan)
    except (msgspec.MsgspecError, RecursionError) as exc:
        msg = f"it is not a plan that `rollbook plan --out` wrote ({exc})"
        raise UnusablePlan(msg) from exc
    if saved.format != FORMAT:
        msg = f"it is a plan of format {saved.format}; this version reads {FORMAT}. Make a new one"
        raise UnusablePlan(msg)
    if _digest(saved) != saved.digest:
        raise UnusablePlan("it was changed or cut after it was written: its digest does not fit. Make a new one")
    if saved.fleet != fleet:
        msg = f"it is a plan for fleet {saved.fleet!r}, and this is {fleet!r}"
        raise UnusablePlan(msg)
    return saved


def check(saved: SavedPlan, fresh: Preview) -> None:
    """Raise `Overtaken` unless what is to be done now is exactly what was planned."""
    planned, now = set(saved.entries), set(_entries(fresh.lines))
    moved = [f"no more: {entry}" for entry in sorted(planned - now)]
    moved += [f"new: {entry}" for entry in sorted(now - planned)]
    moved += [f"{name} does not answer: {reason}" for name, reason in sorted(fresh.unreachable.items())]
    if moved:
        raise Overtaken(saved.sequence, fresh.sequence, tuple(moved))


def _entries(lines: Iterable[Line]) -> Iterable[SavedEntry]:
    """What a pass does or, after a release, would do. Foreign entries and closed gates are no work of it."""
    for line in lines:
        action = line.would if line.change is Change.WITHHELD else line.change
        if line.differs and action is not None:
            yield SavedEntry(
                proxy=line.proxy,
                worker=line.worker or "",
                incarnation=line.incarnation or 0,
                url=line.url or "",
                action=str(action),
            )


def _digest(plan: SavedPlan) -> str:
    bare = msgspec.structs.replace(plan, digest="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()
