"""All transitions of a worker's life, in one table.

The fold looks up `rule(phase, fact, relation)` and does what it says; nowhere else is it decided what a fact does to a
phase. `docs/transitions.md` is made from this table (`python -m rollbook.projections.state.transitions`), and an
exhaustive test walks it.

How to read it: a fact of an *older* incarnation is history. One of a *newer* incarnation begins a new life, which is
then treated as absent. Only for the *same* incarnation does the row decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from rollbook.events import (
    DrainRequested,
    Fact,
    RecoveryFailed,
    RecoveryStarted,
    WeightsLoaded,
    WorkerDown,
    WorkerDraining,
    WorkerResumed,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.state.worker import Phase


class Relation(StrEnum):
    """How a fact's incarnation stands to the roster's."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"


class Rule(msgspec.Struct, frozen=True, gc=False):
    """What a fact does: move to `phase` (or stay in it and change a mark), or be ignored with a reason."""

    phase: Phase
    ignored: str | None = None
    if_seen: bool = False
    """Only if the author had seen this life's last Down (`seen` at or beyond it)."""


_OLDER, _SAME, _NEWER = Relation.OLDER, Relation.SAME, Relation.NEWER
_STARTING, _SERVING, _DRAINING = Phase.STARTING, Phase.SERVING, Phase.DRAINING
_DOWN, _RETIRED, _ABSENT = Phase.DOWN, Phase.RETIRED, Phase.ABSENT

COLUMNS: Final[tuple[type[Fact], ...]] = (
    WorkerStarted,
    WorkerUp,
    WorkerDown,
    WorkerSuspected,
    WorkerSuspended,
    WorkerResumed,
    WorkerDraining,
    WorkerRetired,
    WeightsLoaded,
    RecoveryStarted,
    RecoveryFailed,
    DrainRequested,
)

STALE: Final = "an older incarnation: a newer life of this worker is known"
NOT_SEEN: Final = "the life is over, and the author had not seen that when it said up"
_LATE: Final = "it is past starting"
_DRAINS: Final = "it is draining; a drain ends in down, not in up"
_ENDED: Final = "this life is down"
_GONE: Final = "this life is retired; only a new incarnation returns"


def _ignore(phase: Phase, reason: str) -> Rule:
    return Rule(phase, reason)


TABLE: Final[dict[Phase, dict[type[Fact], Rule]]] = {
    _ABSENT: {
        WorkerStarted: Rule(_STARTING),
        WorkerUp: Rule(_SERVING),
        WorkerDown: Rule(_DOWN),
        WorkerSuspected: Rule(_STARTING),
        WorkerSuspended: Rule(_STARTING),
        WorkerResumed: Rule(_STARTING),
        WorkerDraining: Rule(_DRAINING),
        WorkerRetired: Rule(_RETIRED),
        WeightsLoaded: Rule(_STARTING),
        RecoveryStarted: Rule(_DOWN),
        RecoveryFailed: Rule(_DOWN),
        DrainRequested: _ignore(_ABSENT, "nothing is known of this worker"),
    },
    _STARTING: {
        WorkerStarted: _ignore(_STARTING, "it is starting already"),
        WorkerUp: Rule(_SERVING),
        WorkerDown: Rule(_DOWN),
        WorkerSuspected: Rule(_STARTING),
        WorkerSuspended: Rule(_STARTING),
        WorkerResumed: Rule(_STARTING),
        WorkerDraining: Rule(_DRAINING),
        WorkerRetired: Rule(_RETIRED),
        WeightsLoaded: Rule(_STARTING),
        RecoveryStarted: Rule(_DOWN),
        RecoveryFailed: Rule(_STARTING),
        DrainRequested: Rule(_DRAINING),
    },
    _SERVING: {
        WorkerStarted: _ignore(_SERVING, _LATE),
        WorkerUp: Rule(_SERVING),
        WorkerDown: Rule(_DOWN),
        WorkerSuspected: Rule(_SERVING),
        WorkerSuspended: Rule(_SERVING),
        WorkerResumed: Rule(_SERVING),
        WorkerDraining: Rule(_DRAINING),
        WorkerRetired: Rule(_RETIRED),
        WeightsLoaded: Rule(_SERVING),
        RecoveryStarted: Rule(_DOWN),
        RecoveryFailed: Rule(_SERVING),
        DrainRequested: Rule(_DRAINING),
    },
    _DRAINING: {
        WorkerStarted: _ignore(_DRAINING, _LATE),
        WorkerUp: _ignore(_DRAINING, _DRAINS),
        WorkerDown: Rule(_DOWN),
        WorkerSuspected: Rule(_DRAINING),
        WorkerSuspended: Rule(_DRAINING),
        WorkerResumed: Rule(_DRAINING),
        WorkerDraining: _ignore(_DRAINING, "it is draining already"),
        WorkerRetired: Rule(_RETIRED),
        WeightsLoaded: Rule(_DRAINING),
        RecoveryStarted: Rule(_DOWN),
        RecoveryFailed: Rule(_DRAINING),
        DrainRequested: _ignore(_DRAINING, "it is draining already"),
    },
    _DOWN: {
        WorkerStarted: _ignore(_DOWN, _ENDED),
        WorkerUp: Rule(_SERVING, if_seen=True),
        WorkerDown: Rule(_DOWN),
        WorkerSuspected: _ignore(_DOWN, _ENDED),
        WorkerSuspended: _ignore(_DOWN, _ENDED),
        WorkerResumed: _ignore(_DOWN, _ENDED),
        WorkerDraining: _ignore(_DOWN, _ENDED),
        WorkerRetired: Rule(_RETIRED),
        WeightsLoaded: Rule(_DOWN),
        RecoveryStarted: Rule(_DOWN),
        RecoveryFailed: Rule(_DOWN),
        DrainRequested: _ignore(_DOWN, _ENDED),
    },
    _RETIRED: dict.fromkeys(COLUMNS, _ignore(_RETIRED, _GONE)),
}

_STALE_RULES: Final = {phase: _ignore(phase, STALE) for phase in Phase}


def rule(phase: Phase, fact: type[Fact], relation: Relation) -> Rule:
    """What a fact of this type does to a worker in this phase."""
    if relation is _OLDER:
        return _STALE_RULES[phase]
    return TABLE[_ABSENT if relation is _NEWER else phase][fact]


def relate(incarnation: int, known: int) -> Relation:
    """How a fact's incarnation stands to the one known."""
    if incarnation == known:
        return _SAME
    return _NEWER if incarnation > known else _OLDER


def diagram() -> Iterator[str]:
    """`docs/transitions.md`, line by line: a Mermaid diagram and the whole table."""
    yield "# Transitions of a worker's life"
    yield ""
    yield "Made from `rollbook.projections.state.transitions` by `make docs`; CI checks that it is current."
    yield ""
    yield "A fact of an older incarnation is ignored in every phase. One of a newer incarnation begins a new life: the"
    yield "row *absent* applies, whatever the phase was. The rows below decide for the same incarnation."
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> absent"
    for phase, row in TABLE.items():
        moves: dict[Phase, list[str]] = {}
        for fact, found in row.items():
            if found.ignored is None and found.phase is not phase:
                condition = " (if it saw the Down)" if found.if_seen else ""
                moves.setdefault(found.phase, []).append(fact.__name__ + condition)
        for target, facts in moves.items():
            yield f"    {phase} --> {target}: {', '.join(facts)}"
    yield "```"
    yield ""
    yield "| fact | " + " | ".join(TABLE) + " |"
    yield "|---" * (len(TABLE) + 1) + "|"
    for fact in COLUMNS:
        cells = (_cell(phase, TABLE[phase][fact]) for phase in TABLE)
        yield f"| {fact.__name__} | " + " | ".join(cells) + " |"
    yield ""
    yield "*mark* means that the phase stays, and suspicion, suspension, weights, evidence or the last Down may change."


def _cell(phase: Phase, found: Rule) -> str:
    if found.ignored is not None:
        return f"ignored: {found.ignored}"
    if found.phase is phase:
        return "mark"
    return f"→ {found.phase}" + (" if it saw the Down" if found.if_seen else "")


if __name__ == "__main__":
    print("\n".join(diagram()))  # noqa: T201 - this is the generator of the page
