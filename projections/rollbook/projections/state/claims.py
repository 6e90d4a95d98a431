"""What the roster keeps of restarts: who holds the claim on a cell, and when it was tried.

The claim stands on the cell's first worker (its lowest rank), whose subject all recoverers append to with an expected
sequence: two of them can never both hold it. Pure, and without a clock: a claim ends by a fact.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rollbook.events import Recorded, RecoveryFailed, RecoveryStarted, WorkerDown, WorkerRetired
from rollbook.projections.state.bounds import LONGEST_TIME

ATTEMPTS_KEPT: Final = 64
LONGEST_NAME: Final = 128
LONGEST_REASON: Final = 300


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Somebody restarts this cell; nobody else does."""

    by: str
    """The publisher that said so."""
    incarnation: int
    """Of the cell's first worker: the life to be replaced."""
    attempt: int
    until: str
    """RFC 3339: after it the leader ends the claim."""
    sequence: int


class Restarts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was done about one cell lately."""

    claim: Claim | None = None
    attempts: tuple[str, ...] = ()
    """When each began (RFC 3339, by its author), oldest first."""
    unfinished: bool = False
    """A restart began, and the cell has not been up since."""
    failure: str = ""
    """Why the last attempt failed, if it did."""


def noted(restarts: Restarts | None, recorded: Recorded) -> Restarts | None:
    """`restarts` after a fact about the cell's first worker that was not ignored."""
    fact = recorded.fact
    if isinstance(fact, RecoveryStarted) and fact.until is not None:
        by = recorded.source.rpartition("/")[2][:LONGEST_NAME]
        claim = Claim(by, fact.incarnation, fact.attempt, fact.until[:LONGEST_TIME], recorded.sequence)
        began = () if restarts is None else restarts.attempts
        if fact.at is not None:
            began = (*began, fact.at[:LONGEST_TIME])[-ATTEMPTS_KEPT:]
        return Restarts(claim, began, unfinished=True)
    if restarts is None:
        return None
    match fact:
        case RecoveryFailed():
            return msgspec.structs.replace(restarts, claim=None, failure=fact.reason[:LONGEST_REASON])
        case WorkerDown() if fact.evidence == "planned" and restarts.claim is None:
            return msgspec.structs.replace(restarts, unfinished=False)
        case WorkerRetired():
            return None
        case _:
            return restarts


def anew(restarts: Restarts | None) -> Restarts | None:
    """`restarts` when a person has said that it may be tried anew; what was left half done is still to be done."""
    return Restarts(unfinished=True) if restarts is not None and restarts.unfinished else None


def restored(restarts: Restarts | None, incarnation: int) -> Restarts | None:
    """`restarts` when all workers of the cell serve, the first one in its life `incarnation`."""
    if restarts is None or (restarts.claim is not None and incarnation <= restarts.claim.incarnation):
        return restarts
    return msgspec.structs.replace(restarts, claim=None, unfinished=False, failure="")
