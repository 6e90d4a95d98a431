"""What the gates say of a worker by the log alone, one by one: for a story, and for other gates than those in force."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.history.narrative import GateAnswer, Verdict
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.state.roster import Roster

BY_LOG: Final = (
    Gate.NOT_FORGOTTEN,
    Gate.SELECTED,
    Gate.ENTRYPOINT,
    Gate.SERVING,
    Gate.NOT_SUSPENDED,
    Gate.CELL_COMPLETE,
    Gate.NOT_CORDONED,
    Gate.WEIGHTS_CURRENT,
    Gate.PAIR_READY,
)
"""The gates that the log alone answers, in the order in which they are asked; the last one of paired pools only."""


def verdict(roster: Roster, policy: Policy, served: ProxyPolicy, worker: str) -> Verdict:
    """Every gate that the log answers, up to the first that fails."""
    held = gates.standing(roster, policy, served, worker)
    if held is None and worker in roster.workers:
        held = gates.admission_by_log(roster, policy, served, roster.workers[worker])
    if held is not None and roster.ended:
        return Verdict(served.name, (GateAnswer(str(held.gate), passed=False, reason=held.reason),))
    pool = roster.workers[worker].pool if worker in roster.workers else None
    asked = [gate for gate in BY_LOG if gate is not Gate.PAIR_READY or policy.partner(pool) is not None]
    return Verdict(served.name, tuple(_answers(asked, held)))


def _answers(asked: Iterable[Gate], held: Held | None) -> list[GateAnswer]:
    answers: list[GateAnswer] = []
    for gate in asked:
        if held is not None and gate is held.gate:
            return [*answers, GateAnswer(str(gate), passed=False, reason=held.reason)]
        answers.append(GateAnswer(str(gate), passed=True))
    return answers
