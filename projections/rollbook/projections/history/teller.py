"""Makes the story of one worker: why it was or was not routed.

Told from the facts about one worker, read by their subjects, and the same fold and gates that the controller runs.
Nothing is guessed: an outcome names its intent, an ignored fact is ignored by the fold, and what made a lane look again
is the newest fact that changed something for this worker at this proxy.
"""

from __future__ import annotations

import msgspec

from rollbook.events import (
    CellDeclared,
    DriftFound,
    LeadershipTaken,
    OperatorProxyFact,
    OperatorWorkerFact,
    ProxyFact,
    ProxyReachable,
    ProxyUnreachable,
    Recorded,
    RegistrationFact,
    RemovalWithheld,
    WorkerFact,
    parse_worker,
    type_of,
)
from rollbook.events.subjects import entity_of
from rollbook.projections.deciding.gates import Gate
from rollbook.projections.history.effects import effects_of, marks_of
from rollbook.projections.history.judged import verdict
from rollbook.projections.history.narrative import Event, Life, Narrative, StandsNow, Step, Verdict
from rollbook.projections.history.passages import Passages
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Stored
from rollbook.projections.state.ledger import Ledger
from rollbook.projections.state.roster import STALE, Roster
from rollbook.projections.state.transitions import NOT_SEEN


class Teller:
    """Takes the facts about one worker in order and makes its story of them.

    `roster` is where the story begins: empty, or as it was before the first fact that can still be read.
    """

    def __init__(self, fleet: str, policy: Policy | None, worker: str, proxy: str | None, roster: Roster) -> None:
        self.in_a_cell_of_several = False
        """Whether its cell was declared with others: without their facts the story is not right."""
        self._fleet = fleet
        self._policy = policy or Policy(fleet=fleet, pools={}, proxies={})
        self._learns = policy is None
        self._worker = worker
        self._only = proxy
        self._roster = roster
        self._ledger = Ledger()
        self._lives: list[tuple[int, list[Event]]] = []
        self._ids: dict[str, int] = {}
        self._passages = Passages()
        self._forgotten = 0
        self._marks = marks_of(self._roster, self._worker)
        self._verdicts = self._judge()

    @property
    def proxies(self) -> tuple[str, ...]:
        """Those that it is told of."""
        return tuple(self._policy.proxies)

    @property
    def heard(self) -> bool:
        """Whether anything was said about the worker itself."""
        return bool(self._lives) or self._worker in self._roster.workers

    # -------------------------------------------------------------- taking facts

    def take(self, stored: Stored, recorded: Recorded) -> None:
        """The next fact."""
        fact = recorded.fact
        if isinstance(fact, ProxyFact):
            self._proxy_fact(stored, recorded, fact)
        else:
            self._other_fact(stored, recorded)

    def _other_fact(self, stored: Stored, recorded: Recorded) -> None:
        fact = recorded.fact
        mine = isinstance(fact, WorkerFact | OperatorWorkerFact) and fact.worker == self._worker
        if isinstance(fact, CellDeclared) and fact.size > 1 and self._is_its_cell(fact):
            self.in_a_cell_of_several = True
        holds = self._holds()
        change = self._roster.apply(recorded)
        before, self._marks = self._marks, marks_of(self._roster, self._worker)
        effects = effects_of(before, self._marks, self._roster, self._worker)
        if isinstance(fact, OperatorProxyFact):
            effects += self._held_effects(holds)
        verdicts = self._judge()
        changed = tuple(one for name, one in verdicts.items() if one != self._verdicts.get(name))
        self._verdicts = verdicts
        if mine or effects or changed:
            superseded = self._superseded(recorded, change.ignored)
            self._add(stored, recorded, effects, change.ignored, superseded, changed, None)
            if change.ignored is None:
                for name in self._verdicts if effects else (one.proxy for one in changed):
                    self._passages.wake(name, stored.sequence)
        if mine:
            self._ids.setdefault(recorded.id, stored.sequence)
        if self._marks.known != before.known and not self._marks.known:
            self._forgotten = stored.sequence

    def _proxy_fact(self, stored: Stored, recorded: Recorded, fact: ProxyFact) -> None:
        if self._only not in {None, fact.proxy}:
            return
        match fact:
            case RegistrationFact() if fact.worker == self._worker:
                self._ledger.apply(recorded)
                learned = self._learn(fact.proxy)
                self._add(stored, recorded, (), None, None, learned, self._passages.step(stored, fact))
                self._passages.wake(fact.proxy, stored.sequence)
            case DriftFound() if self._worker in {*fact.missing, *fact.unexpected}:
                lost = self._worker in fact.missing
                told = "the proxy lost it" if lost else "the proxy lists it, and the log knew nothing of that"
                self._add(stored, recorded, (told,), None, None, (), None)
                self._passages.wake(fact.proxy, stored.sequence)
            case RemovalWithheld() if self._worker in fact.workers:
                self._add(stored, recorded, ("its removal is withheld: it answered a probe",), None, None, (), None)
            case ProxyReachable() | ProxyUnreachable() | LeadershipTaken() if self._serves(fact.proxy):
                self._ledger.apply(recorded)
                self._add(stored, recorded, (), None, None, (), None)
                if not isinstance(fact, ProxyUnreachable):
                    self._passages.wake(fact.proxy, stored.sequence)
            case _:
                return

    def _learn(self, proxy: str) -> tuple[Verdict, ...]:
        """Without a configuration: a proxy that it is brought to serves its pool."""
        worker = self._roster.workers.get(self._worker)
        pool = parse_worker(self._worker).pool if worker is None else worker.pool
        if not self._learns or proxy in self._policy.proxies or pool is None:
            return ()
        proxies = {**self._policy.proxies, proxy: ProxyPolicy(name=proxy, pools=(pool,))}
        self._policy = msgspec.structs.replace(self._policy, proxies=proxies)
        self._verdicts = self._judge()
        return (self._verdicts[proxy],) if proxy in self._verdicts else ()

    def _serves(self, proxy: str) -> bool:
        """Whether what happens to a proxy is part of this story."""
        return bool(self._lives) and (proxy in self._verdicts or proxy in self._passages)

    def _add(
        self,
        stored: Stored,
        recorded: Recorded,
        effects: tuple[str, ...],
        ignored: str | None,
        superseded_by: int | None,
        verdicts: tuple[Verdict, ...],
        step: Step | None,
    ) -> None:
        event = Event(
            stored.sequence,
            stored.stored_at,
            type_of(recorded.fact),
            entity_of(recorded.fact) or "",
            recorded.source,
            recorded.fact,
            effects,
            ignored,
            superseded_by,
            verdicts,
            step,
        )
        self._passages.time(stored)
        if not self._lives or self._lives[-1][0] != self._marks.incarnation:
            self._lives.append((self._marks.incarnation, []))
        self._lives[-1][1].append(event)

    def _superseded(self, recorded: Recorded, ignored: str | None) -> int | None:
        """What an ignored fact came too late for."""
        if ignored is None:
            return None
        if recorded.id in self._ids:
            return self._ids[recorded.id]
        worker = self._roster.workers.get(self._worker)
        if worker is None:
            return self._forgotten or None
        if ignored == STALE:
            return worker.began
        return worker.ended if ignored == NOT_SEEN else worker.since_sequence

    def _is_its_cell(self, fact: CellDeclared) -> bool:
        worker = self._roster.workers.get(self._worker)
        known = parse_worker(self._worker) if worker is None else worker
        return (known.pool, known.cell) == (fact.pool, fact.cell)

    def _judge(self) -> dict[str, Verdict]:
        """By proxy; those that do not serve its pool are no part of the story, unless one is asked for."""
        found: dict[str, Verdict] = {}
        for name, served in self._policy.proxies.items():
            if self._only not in {None, name}:
                continue
            one = verdict(self._roster, self._policy, served, self._worker)
            gate = None if one.failed is None else one.failed.gate
            unknown = gate == Gate.NOT_FORGOTTEN and self._worker not in self._roster.tombstones
            if self._only == name or (gate != Gate.SELECTED and not unknown):
                found[name] = one
        return found

    def _holds(self) -> dict[str, str | None]:
        return {name: self._holding(name) for name in self._policy.proxies}

    def _holding(self, proxy: str) -> str | None:
        decision = self._roster.holding(proxy)
        return None if decision is None else f"held by {decision.by}: {decision.why}"

    def _held_effects(self, before: dict[str, str | None]) -> tuple[str, ...]:
        return tuple(
            f"{name} is {now}" if now is not None else f"{name} is released"
            for name, now in self._holds().items()
            if now != before[name] and name in self._verdicts
        )

    # -------------------------------------------------------------- the story

    def tell(self, sequence: int, notes: tuple[str, ...] = (), lives: int | None = None) -> Narrative:
        """All of it, up to `sequence`, or only the newest `lives`."""
        if lives is not None:
            del self._lives[: max(0, len(self._lives) - lives)]
        slowest = max(
            (
                event.step.seconds
                for _, events in self._lives
                for event in events
                if event.step is not None and event.step.seconds is not None
            ),
            default=None,
        )
        told = tuple(
            Life(incarnation, tuple(_marked(event, slowest) for event in events)) for incarnation, events in self._lives
        )
        now = tuple(self._stands(one) for one in self._verdicts.values())
        return Narrative(
            self._fleet,
            self._worker,
            sequence,
            self._marks.phase,
            self._marks.incarnation,
            told,
            tuple(self._passages.told),
            now,
            notes,
        )

    def _stands(self, one: Verdict) -> StandsNow:
        lives = self._ledger.look(one.proxy).registrations.get(self._worker, {})
        last = lives.get(self._marks.incarnation)
        held = self._holding(one.proxy)
        if last is None:
            return StandsNow(one, None, None, "", 0, held)
        return StandsNow(one, str(last.told), last.url, last.reason, last.sequence, held)


def _marked(event: Event, slowest: float | None) -> Event:
    """Every step that took as long as the slowest, which is one, or several that took the same."""
    step = event.step
    if step is None or slowest is None or slowest <= 0 or step.seconds != slowest:
        return event
    return msgspec.structs.replace(event, step=msgspec.structs.replace(step, slowest=True))
