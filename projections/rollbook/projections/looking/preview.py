"""What a pass would change, entry by entry, and why; before it is done and without doing it.

Pure, over the state, the policy, and what proxies, provider and workers answered. Every line comes from the same
`make_plan` and gates that the lanes act on: a step of a worker is followed by the next, on a listing without what the
first one removes, until nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from rollbook.projections.deciding import plan
from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.observed import Observed, observe
from rollbook.projections.deciding.occupied import in_the_way
from rollbook.projections.deciding.outdated import outdated
from rollbook.projections.deciding.plan import Add, Remove
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Capabilities, Listing
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import ProxyRecord


class Change(StrEnum):
    """What becomes of one entry."""

    REGISTER = "register"
    REPLACE = "replace"
    """The same worker, of another life or at another URL: the removal and the addition are one change."""
    DEREGISTER = "deregister"
    WITHHELD = "withheld"
    """It would change, and something holds that back."""
    FOREIGN = "foreign"
    """Rollbook did not put it there, and leaves it alone."""


class Was(msgspec.Struct, frozen=True):
    """An entry that is replaced."""

    incarnation: int
    url: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One entry at one proxy."""

    change: Change
    proxy: str
    worker: str | None
    """None for an entry that Rollbook did not make."""
    incarnation: int | None
    url: str | None
    """What is, or will be, listed; None where the worker's address was not asked for."""
    reason: str
    would: Change | None = None
    """Of a withheld one: what it would be."""
    gate: str | None = None
    """Of a withheld one: the gate that keeps the worker out. None if a person or the removal budget holds it back."""
    was: tuple[Was, ...] = ()
    """Of a replacement: what goes."""

    @property
    def differs(self) -> bool:
        """Whether the proxy does not list what it should. A newcomer that a gate keeps out is no difference."""
        return self.change is not Change.FOREIGN and self.gate is None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over some proxies would do at one moment."""

    fleet: str
    sequence: int
    """Of the log: what was folded."""
    time: str
    lines: tuple[Line, ...]
    unreachable: dict[str, str] = {}
    """Proxies that did not answer, with the reason: nothing is known of them."""
    unrecorded: int = 0
    """Outcomes that the log lacks and a pass would write down without a call."""
    notes: tuple[str, ...] = ()
    """What could not be asked, for people."""

    @property
    def differs(self) -> bool:
        """Whether any proxy does not list what it should."""
        return any(line.differs for line in self.lines)

    def count(self, change: Change) -> int:
        """How many lines of a kind there are."""
        return sum(line.change is change for line in self.lines)

    def summary(self) -> str:
        """`Plan: 2 to register, 0 to replace, 1 to deregister`, and what else there is."""
        counts = [
            f"{self.count(change)} to {change}" for change in (Change.REGISTER, Change.REPLACE, Change.DEREGISTER)
        ]
        counts += [
            f"{self.count(change)} {change}" for change in (Change.WITHHELD, Change.FOREIGN) if self.count(change)
        ]
        counts += [f"{len(self.unreachable)} unreachable"] if self.unreachable else []
        return f"Plan: {', '.join(counts)}"


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What was read at one proxy, and what was asked about its workers."""

    listing: Listing
    """Of a blind proxy: what is believed to be there."""
    capabilities: Capabilities = plan.ALL
    admitted: Mapping[str, str | Held] = {}
    """Newcomers: the canonical URL, or the admission gate that keeps them out. Who is missing was not asked about."""
    moved: Mapping[str, str] = {}
    """Listed workers that were found to be at another URL now."""
    budget: Mapping[str, str] = {}
    """Workers whose removal the budget withholds, with the reason [I12]."""


class Steps(msgspec.Struct, frozen=True):
    """All that the plan would do for one worker, one step after the other."""

    removals: tuple[Remove, ...]
    add: Add | None


def lines_at(state: State, policy: Policy, served: ProxyPolicy, answers: Answers) -> tuple[list[Line], int]:
    """What a pass would change at one proxy, and how many outcomes it would only write down."""
    observed = observe(policy.fleet, state.ledger.look(served.name), answers.listing, answers.capabilities)
    steps, unrecorded = steps_at(state, policy, served, observed, answers.moved, answers.capabilities)
    lines = _changes(state, policy, served, answers, steps)
    foreign = [
        _foreign(served, url, leaves=served.exclusive and answers.capabilities.remove) for url in observed.foreign
    ]
    lines += [line for line in foreign if line.change is Change.DEREGISTER]
    decision = state.roster.holding(served.name)
    if decision is not None:
        lines = [_withheld(line, f"held by {decision.by}: {decision.why}") for line in lines]
    lines += [line for line in foreign if line.change is Change.FOREIGN]
    return sorted(lines, key=lambda line: (_ORDER.index(line.change), line.worker or "", line.url or "")), unrecorded


_ORDER: Final = (Change.REGISTER, Change.REPLACE, Change.DEREGISTER, Change.WITHHELD, Change.FOREIGN)


def steps_at(
    state: State,
    policy: Policy,
    served: ProxyPolicy,
    observed: Observed,
    moved: Mapping[str, str],
    capabilities: Capabilities = plan.ALL,
) -> tuple[dict[str, Steps], int]:
    """By worker: all that is to be done at one proxy; and how many outcomes are only to be written down."""
    leaving = outdated(state, policy, served)
    made = plan.make_plan(state, policy, served, observed, None, moved, capabilities, leaving)
    calls = {action.worker: action for action in made.actions if isinstance(action, (Add, Remove))}
    unrecorded = sum(not isinstance(action, (Add, Remove)) for action in made.actions)
    followed = {name: _follow(state, policy, served, observed, moved, capabilities, leaving, name) for name in calls}
    return followed, unrecorded


def _follow(
    state: State,
    policy: Policy,
    served: ProxyPolicy,
    observed: Observed,
    moved: Mapping[str, str],
    capabilities: Capabilities,
    leaving: Mapping[str, str],
    name: str,
) -> Steps:
    """One step after the other, each on a listing without what went before it."""
    left = list(observed.owned.get(name, ()))
    removals: list[Remove] = []
    while True:
        seen = Observed({name: left} if left else {}, (), observed.urls)
        actions = plan.make_plan(state, policy, served, seen, [name], moved, capabilities, leaving).actions
        removal = next((action for action in actions if isinstance(action, Remove)), None)
        if removal is None:
            return Steps(tuple(removals), next((action for action in actions if isinstance(action, Add)), None))
        removals.append(removal)
        if removal.outdated:
            return Steps(tuple(removals), None)  # it is added again once it holds another version
        left = [own for own in left if own.entry is not removal.entry]


def _changes(
    state: State, policy: Policy, served: ProxyPolicy, answers: Answers, steps: dict[str, Steps]
) -> list[Line]:
    gone = {id(removal.entry) for one in steps.values() for removal in one.removals}
    stays = Listing(tuple(entry for entry in answers.listing.entries if id(entry) not in gone))
    observed = observe(policy.fleet, state.ledger.look(served.name), stays, answers.capabilities)
    lines: list[Line] = []
    for name, one in steps.items():
        if one.add is None:
            lines += [_removed(served, removal, answers.budget.get(name)) for removal in one.removals]
            continue
        admitted = answers.admitted.get(name)
        if isinstance(admitted, str):
            blocked = in_the_way(state, policy, served, answers.capabilities, one.add, admitted, observed)
            if blocked is not None and blocked[1] is None:
                admitted = blocked[0]
            elif blocked is not None and blocked[1] is not None:
                lines.append(_removed(served, blocked[1], None))
        lines += _added(served, one.add, admitted, one.removals)
    return lines


def _added(served: ProxyPolicy, add: Add, admitted: str | Held | None, removals: Iterable[Remove]) -> list[Line]:
    why = "; ".join(removal.reason for removal in removals)
    if isinstance(admitted, Held):
        held = Line(
            change=Change.WITHHELD,
            proxy=served.name,
            worker=add.worker,
            incarnation=add.incarnation,
            url=None,
            reason=admitted.reason,
            would=Change.REGISTER,
            gate=str(admitted.gate),
        )
        return [*(_removed(served, removal, None) for removal in removals), held]
    was = tuple(Was(removal.incarnation, removal.entry.url) for removal in removals)
    return [
        Line(
            change=Change.REPLACE if was else Change.REGISTER,
            proxy=served.name,
            worker=add.worker,
            incarnation=add.incarnation,
            url=admitted,
            reason=why or "belongs here, is not listed",
            was=was,
        )
    ]


def _removed(served: ProxyPolicy, removal: Remove, budget: str | None) -> Line:
    line = Line(
        change=Change.DEREGISTER,
        proxy=served.name,
        worker=removal.worker,
        incarnation=removal.incarnation,
        url=removal.entry.url,
        reason=removal.reason,
    )
    return line if budget is None else _withheld(line, budget)


def _withheld(line: Line, why: str) -> Line:
    """The same change, held back; one that a gate keeps out anyway stays as it is."""
    if line.change is Change.WITHHELD:
        return line
    reason = f"{why} ({line.reason})"
    return msgspec.structs.replace(line, change=Change.WITHHELD, would=line.change, reason=reason)


def _foreign(served: ProxyPolicy, url: str, *, leaves: bool) -> Line:
    """An entry of others: reported, or removed where the proxy is to hold no others [I11]."""
    return Line(
        change=Change.DEREGISTER if leaves else Change.FOREIGN,
        proxy=served.name,
        worker=None,
        incarnation=None,
        url=url,
        reason="Rollbook did not put it there" + (", and the proxy is exclusive" if leaves else ""),
    )


def withheld_at(
    proxy: str, record: ProxyRecord, lanes: Mapping[str, Mapping[str, str]] | None = None
) -> Mapping[str, str]:
    """Whose removal is withheld at a proxy [I12], and why: by what the lanes say now, else by the log's word.

    The log names no more than a fact has room for, and nobody who cannot be judged yet.
    """
    if lanes is not None:
        return lanes.get(proxy, {})
    reason = "beyond the removal budget, and it answered when it was asked"
    return {name: reason for names in record.withheld.values() for name in names}


def newcomers(steps: Mapping[str, Steps]) -> list[Add]:
    """Whom to ask about before the lines can be written."""
    return [one.add for one in steps.values() if one.add is not None]


__all__ = [
    "Answers",
    "Change",
    "Line",
    "Preview",
    "Steps",
    "Was",
    "lines_at",
    "newcomers",
    "steps_at",
    "withheld_at",
]
