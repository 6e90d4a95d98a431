"""What is counted while it happens: facts folded, outcomes at the proxies, and how long their calls take.

Counters begin at zero when the process starts, and count what the log stored from then on: a controller that reads a
long history at its start counts none of it, so that a rate shows no peak that never was. Everything is in a registry of
its own; nothing is global.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from rollbook.adapters.service.server import rollbook_version
from rollbook.events import (
    Deregistered,
    DriftFound,
    Fact,
    LeadershipTaken,
    Recorded,
    Registered,
    RegistrationFailed,
    UnknownFact,
)
from rollbook.events.facts import FACTS, type_of
from rollbook.projections.ports import Stored
from rollbook.projections.state.roster import Change

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: an admin call takes milliseconds on loopback and is given up after `call_deadline`."""

UNKNOWN: Final = "unknown"
"""Label of facts of a later version: their types are anybody's to choose, so they share one."""
UNREADABLE: Final = "unreadable"
"""Label of messages that are no facts."""
OTHER: Final = "other"
"""Label of proxies that are not in the configuration: facts about them may be anybody's."""


class Metrics:
    """The counters of one controller. `witness` sees every message, `note_call` every admin call.

    `begun` is the log's last sequence when the process started: what stands at or before it is history. `proxies` are
    those of the configuration.
    """

    def __init__(self, begun: int, proxies: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self.last: Stored | None = None
        """The last message folded by this process."""
        self.drift: dict[str, DriftFound] = {}
        """By proxy: what was last found, as far as this process has folded it."""
        self._begun = begun
        self._proxies = frozenset(proxies)
        self._epoch = 0
        self._facts = Counter(
            "rollbook_facts", "Facts that the log stored since the start.", ["type"], registry=self.registry
        )
        self._ignored = Counter(
            "rollbook_facts_ignored",
            "Facts among them that changed nothing: stale, repeated, or not for the phase that the worker is in.",
            ["type"],
            registry=self.registry,
        )
        self._outcomes = Counter(
            "rollbook_outcomes",
            "Registrations and removals, by what came of them.",
            ["proxy", "action", "result"],
            registry=self.registry,
        )
        self._calls = Histogram(
            "rollbook_proxy_call_seconds",
            "How long admin calls take.",
            ["proxy", "verb", "result"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._takeovers = Counter(
            "rollbook_takeovers", "Times that a controller began to lead, whichever it was.", registry=self.registry
        )
        self.loop_lag = Gauge(
            "rollbook_loop_lag_seconds", "By how much the event loop was late when last looked.", registry=self.registry
        )
        Gauge(
            "rollbook_build_info",
            "Always 1; the labels say what runs.",
            ["version", "python"],
            registry=self.registry,
        ).labels(rollbook_version(), platform.python_version()).set(1)
        ProcessCollector(registry=self.registry)

    def note_call(self, proxy: str, verb: str, result: str, seconds: float) -> None:
        """One admin call is over."""
        self._calls.labels(proxy, verb, result).observe(seconds)

    def witness(self, stored: Stored, recorded: Recorded | None, change: Change) -> None:
        """One message has been folded."""
        self.last = stored
        if recorded is not None:
            fact = recorded.fact
            if isinstance(fact, DriftFound) and fact.proxy in self._proxies:
                self.drift[fact.proxy] = fact
        if stored.sequence <= self._begun:
            return
        label = UNREADABLE if recorded is None else _label(recorded.fact)
        self._facts.labels(label).inc()
        if recorded is None:
            return
        if change.ignored is not None:
            self._ignored.labels(label).inc()
        self._count(recorded.fact)

    def _count(self, fact: Fact) -> None:
        match fact:
            case Registered():
                self._outcome(fact.proxy, "register", "done")
            case Deregistered():
                self._outcome(fact.proxy, "deregister", "done")
            case RegistrationFailed():
                self._outcome(fact.proxy, fact.action, "failed" if fact.retryable else "unsupported")
            case LeadershipTaken() if fact.epoch > self._epoch:
                self._epoch = fact.epoch
                self._takeovers.inc()
            case _:
                pass

    def _outcome(self, proxy: str, action: str, result: str) -> None:
        self._outcomes.labels(proxy if proxy in self._proxies else OTHER, action, result).inc()


def _label(fact: Fact) -> str:
    """`worker.up` for `rollbook.worker.up.v1`: as many as there are types in the catalogue, and one more."""
    if isinstance(fact, UnknownFact):
        return UNKNOWN
    return _LABELS[type_of(fact)]


_LABELS: Final = {name: name.removeprefix("rollbook.").rpartition(".")[0] for name in FACTS}
