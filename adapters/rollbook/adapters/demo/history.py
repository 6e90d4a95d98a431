"""The log of a run, folded anew from its first message: what the report is measured by.

Nothing of the controller's memory is used here; this is the replay. On the way it notes what cannot be seen from the
final state: when each life ended, and whether an intent contradicted the roster as it stood before it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec

from rollbook.events import (
    Codec,
    Deregistered,
    Deregistering,
    LeadershipTaken,
    ProxyFact,
    Recorded,
    Registered,
    Registering,
    RegistrationFact,
)
from rollbook.events.facts import DIRECT_EVIDENCE
from rollbook.projections.deciding import gates
from rollbook.projections.policy import Policy
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import OutOfOrder, State
from rollbook.projections.state.worker import LIVE

Life = tuple[str, int]
"""Worker and incarnation."""


class Moment(msgspec.Struct, frozen=True, gc=False):
    """Which life of a worker the log knew from `at` on, and whether it lived."""

    at: float
    incarnation: int
    live: bool
    certain: bool
    """Of a life that is over: whether somebody saw that it is, and did not only conclude it."""


class Written(msgspec.Struct, frozen=True, gc=False):
    """A fact of the proxy family, and who wrote it."""

    sequence: int
    at: float
    source: str
    fact: ProxyFact


class Word(msgspec.Struct, frozen=True, gc=False):
    """A fact about a registration, where and when it was stored."""

    sequence: int
    at: float
    fact: RegistrationFact


class History:
    """Folds `messages` in order. A gap ends it: then `broken` says where, and the rest is not known."""

    def __init__(self, policy: Policy, proxy: str, messages: Sequence[Stored], *, digest_at: int) -> None:
        self.state = State()
        self.digest: str | None = None
        """Digest of the state at `digest_at`; None if the log does not reach that far."""
        self.broken: str | None = None
        self.words: list[Word] = []
        """Every fact about a registration at `proxy`, in the log's order."""
        self.written: list[Written] = []
        """Every fact about `proxy`, in the log's order."""
        self.times: list[float] = []
        """When each message was stored, in the log's order."""
        self.against: dict[int, str] = {}
        """By sequence: intents that contradicted the roster as it stood before them, and how."""
        self._policy = policy
        self._served = policy.proxies[proxy]
        self._moments: dict[str, list[Moment]] = {}
        self._by_life: dict[Life, list[Word]] = {}
        codec = Codec(policy.fleet)
        for stored in messages:
            self.times.append(stored.stored_at)
            try:
                recorded, _ = self.state.apply(stored, codec)
            except OutOfOrder as exc:
                self.broken = str(exc)
                return
            if recorded is not None:
                self._note(stored, recorded)
            if self.state.sequence == digest_at:
                self.digest = self.state.digest()

    def _note(self, stored: Stored, recorded: Recorded) -> None:
        fact = recorded.fact
        if isinstance(fact, ProxyFact) and fact.proxy == self._served.name:
            self.written.append(Written(stored.sequence, stored.stored_at, recorded.source, fact))
        if isinstance(fact, RegistrationFact) and fact.proxy == self._served.name:
            word = Word(stored.sequence, stored.stored_at, fact)
            self.words.append(word)
            self._by_life.setdefault((fact.worker, fact.incarnation), []).append(word)
            # A fact of the proxy family leaves the roster as it was, so this is the roster before it.
            if (reason := self._contradicts(fact)) is not None:
                self.against[stored.sequence] = reason
        for worker in self.state.roster.workers.values():
            moments = self._moments.setdefault(worker.name, [])
            live = worker.phase in LIVE
            known = (worker.incarnation, live, not live and worker.evidence in DIRECT_EVIDENCE)
            if not moments or (moments[-1].incarnation, moments[-1].live, moments[-1].certain) != known:
                moments.append(Moment(stored.stored_at, *known))

    def _contradicts(self, fact: RegistrationFact) -> str | None:
        if not isinstance(fact, Registering | Deregistering):
            return None
        unwanted = self.unwanted(fact.worker, fact.incarnation)
        if isinstance(fact, Registering):
            return unwanted
        return "it is the current life and belongs there" if unwanted is None else None

    def unwanted(self, worker: str, incarnation: int) -> str | None:
        """Why this life does not belong in the proxy by the roster as it is now; None if it does."""
        roster = self.state.roster
        if (held := gates.standing(roster, self._policy, self._served, worker)) is not None:
            return str(held)
        current = roster.workers[worker].incarnation
        return None if current == incarnation else f"incarnation {current} is the current one"

    def wanted(self) -> dict[str, int]:
        """The workers that belong in the proxy at the end, with their incarnations."""
        return {
            name: worker.incarnation
            for name, worker in self.state.roster.workers.items()
            if self.unwanted(name, worker.incarnation) is None
        }

    def known(self, worker: str, at: float) -> Moment | None:
        """What the log knew of a worker at `at`; None if nothing yet."""
        moments = self._moments.get(worker, [])
        index = bisect.bisect_right(moments, at, key=lambda moment: moment.at)
        return moments[index - 1] if index else None

    def takeovers(self) -> list[Written]:
        """Who began to lead at the proxy, in order."""
        return [one for one in self.written if isinstance(one.fact, LeadershipTaken)]

    def next_message(self, after: float) -> float | None:
        """When the first message after that moment was stored."""
        index = bisect.bisect_right(self.times, after)
        return self.times[index] if index < len(self.times) else None

    def heard_of(self, life: Life) -> bool:
        """Whether the log ever knew this life as a current one."""
        return any(moment.incarnation == life[1] for moment in self._moments.get(life[0], []))

    def over(self, life: Life) -> float | None:
        """When the log first knew that this life was over; None if it never did."""
        begun = False
        for moment in self._moments.get(life[0], []):
            begun = begun or moment.incarnation == life[1]
            if (begun and moment.incarnation == life[1] and not moment.live) or moment.incarnation > life[1]:
                return moment.at
        return None

    def registered(self, life: Life, at: float) -> bool:
        """Whether, by the log's word at `at`, the proxy might have listed this life."""
        before = [word for word in self.words_about(life) if word.at <= at]
        return bool(before) and not isinstance(before[-1].fact, Deregistered)

    def deregistered(self, life: Life, after: float) -> float | None:
        """When, not before `after`, the proxy was first seen not to list this life any more; None if it never was."""
        seen = (word.at for word in self.words_about(life) if isinstance(word.fact, Deregistered))
        return next((at for at in seen if at >= after), None)

    def registered_after(self, life: Life) -> Word | None:
        """The first word that a later life of this worker was listed."""
        for word in self.words:
            later = word.fact.worker == life[0] and word.fact.incarnation > life[1]
            if later and isinstance(word.fact, Registered):
                return word
        return None

    def words_about(self, life: Life) -> Sequence[Word]:
        """Every fact about this life's registrations at the proxy, in the log's order."""
        return self._by_life.get(life, [])
