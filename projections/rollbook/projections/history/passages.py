"""Every change at a proxy, from what led to it to its outcome, and how long each step took."""

from __future__ import annotations

from typing import Literal

import msgspec

from rollbook.events import Deregistered, Deregistering, Registering, RegistrationFact, RegistrationFailed
from rollbook.projections.history.narrative import Passage, Step
from rollbook.projections.ports import Stored


class Passages:
    """Those of one worker, made as its facts come by in order."""

    def __init__(self) -> None:
        self.told: list[Passage] = []
        self._open: dict[int, int] = {}
        """By the sequence of their intent: where those without an outcome yet are told."""
        self._times: dict[int, float] = {}
        self._woke: dict[str, int] = {}
        """By proxy: the newest sequence that changed something for the worker there."""

    def __contains__(self, proxy: str) -> bool:
        return proxy in self._woke

    def wake(self, proxy: str, sequence: int) -> None:
        """What stands at `sequence` made the lane of `proxy` look again."""
        self._woke[proxy] = sequence

    def time(self, stored: Stored) -> None:
        """Delays are counted from it, too."""
        self._times[stored.sequence] = stored.stored_at

    def step(self, stored: Stored, fact: RegistrationFact) -> Step:
        """The next intent or outcome, as a link of the chain that it belongs to."""
        proxy = fact.proxy
        if isinstance(fact, Registering | Deregistering):
            because = max(fact.cause, self._woke.get(proxy, 0))
            to_decide = self._since(because, stored)
            action: Literal["register", "deregister"] = "register" if isinstance(fact, Registering) else "deregister"
            passage = Passage(
                proxy=proxy,
                incarnation=fact.incarnation,
                action=action,
                cause=fact.cause,
                because=because,
                decided=stored.sequence,
                result="unanswered",
                to_decide=to_decide,
            )
            self._open[stored.sequence] = len(self.told)
            self.told.append(passage)
            return Step(fact.cause, because, to_decide)
        place = self._open.pop(fact.cause, None)
        if place is None:
            self.told.append(
                Passage(
                    proxy=proxy,
                    incarnation=fact.incarnation,
                    action="deregister" if isinstance(fact, Deregistered) else "register",
                    cause=fact.cause,
                    because=fact.cause,
                    answered=stored.sequence,
                    result="read back",
                )
            )
            return Step(fact.cause, fact.cause, None)
        seconds = self._since(fact.cause, stored)
        intent = self.told[place]
        self.told[place] = msgspec.structs.replace(
            intent,
            answered=stored.sequence,
            result="failed" if isinstance(fact, RegistrationFailed) else "confirmed",
            to_answer=seconds,
            in_all=self._since(intent.cause, stored),
        )
        return Step(fact.cause, fact.cause, seconds)

    def _since(self, sequence: int, stored: Stored) -> float | None:
        before = self._times.get(sequence)
        return None if before is None else max(0.0, stored.stored_at - before)
