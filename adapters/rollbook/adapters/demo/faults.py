"""What a chaos run does to the fleet and to Rollbook itself: a schedule that a seed decides. Pure.

All kinds of faults come once before any comes twice, in an order that the seed shuffles, spread over the run with some
chance in it; so a short run has met most of them and a long one meets every pair. How long things then take is the
machine's: a part that is away when its turn comes is waited for, so the schedule may slip.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec


class Kind(StrEnum):
    """One way to hurt one part."""

    WORKER_KILLED = "worker killed"
    """SIGKILL to the process that serves."""
    ACTOR_KILLED = "actor killed"
    """Ray is told to kill its actor."""
    WORKER_HUNG = "worker hung"
    """SIGSTOP, for good: it keeps its connections and answers nobody."""
    WORKER_PAUSED = "worker paused"
    """SIGSTOP, and SIGCONT later: maybe it was given up meanwhile."""
    MANAGER_KILLED = "manager killed"
    """SIGKILL to the Ray manager's process; Ray starts the actor again."""
    MONITOR_KILLED = "monitor killed"
    MONITOR_PAUSED = "monitor paused"
    RECOVERER_KILLED = "recoverer killed"
    RECOVERER_PAUSED = "recoverer paused"
    LEADER_KILLED = "leader killed"
    LEADER_PAUSED = "leader paused"
    """SIGSTOP for longer than its lease: it wakes up deposed [I7]."""
    STANDBY_KILLED = "standby killed"
    NATS_KILLED = "nats killed"
    """It hangs, dies by SIGKILL, and is started again on its store."""
    NATS_PAUSED = "nats paused"
    ROUTER_KILLED = "router killed"
    """SIGKILL, and started again on its port with an empty list."""
    ROUTER_PAUSED = "router paused"
    NODE_KILLED = "node killed"
    """The second Ray node loses its raylet and with it all of its workers; it comes back later."""


OF_A_WORKER: Final = frozenset({Kind.WORKER_KILLED, Kind.ACTOR_KILLED, Kind.WORKER_HUNG, Kind.WORKER_PAUSED})
"""The kinds that name a worker."""

_AWAY: Final = {
    Kind.WORKER_KILLED: (0.0, 0.0),
    Kind.ACTOR_KILLED: (0.0, 0.0),
    Kind.WORKER_HUNG: (0.0, 0.0),
    Kind.WORKER_PAUSED: (1.0, 10.0),
    Kind.MANAGER_KILLED: (0.0, 0.0),
    Kind.MONITOR_KILLED: (0.0, 4.0),
    Kind.MONITOR_PAUSED: (3.0, 10.0),
    Kind.RECOVERER_KILLED: (0.0, 4.0),
    Kind.RECOVERER_PAUSED: (3.0, 10.0),
    Kind.LEADER_KILLED: (0.0, 4.0),
    Kind.LEADER_PAUSED: (6.0, 12.0),
    Kind.STANDBY_KILLED: (0.0, 4.0),
    Kind.NATS_KILLED: (0.0, 4.0),
    Kind.NATS_PAUSED: (1.0, 5.0),
    Kind.ROUTER_KILLED: (0.0, 3.0),
    Kind.ROUTER_PAUSED: (1.0, 6.0),
    Kind.NODE_KILLED: (1.0, 10.0),
}
"""Seconds that a part stays stopped, or is away before it is started again."""

QUIET_START: Final = 0.05
QUIET_END: Final = 0.20
"""Parts of a run in which nothing is done: the last fault's consequences belong into the picture too."""
PORT_TAKEN: Final = 0.25
"""Chance that a killed worker's port is taken by somebody else; else its next life may have the same URL."""
GRACE_SECONDS: Final = (0.5, 2.5)
_UNEVEN: Final = 0.8
"""The part of the pace by which each fault is moved at random, so that some come close together."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to be done."""

    at: float
    """Seconds after the beginning."""
    kind: Kind
    worker: str | None
    """Whom it hits, for the kinds that hit a worker."""
    seconds: float
    """How long the part stays stopped, or away."""
    port_taken: bool
    grace: float
    """Seconds that a victim which had to be waited for may serve first."""


def make_faults(seed: int, *, workers: Sequence[str], seconds: float, count: int) -> tuple[Fault, ...]:
    """`count` faults in order of time; the same for the same arguments, on every machine."""
    rng = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point
    first, last = seconds * QUIET_START, seconds * (1 - QUIET_END)
    pace = (last - first) / max(count, 1)
    kinds = _decks(rng)
    faults = [
        Fault(
            at=first + pace * (turn + rng.uniform(0, _UNEVEN)),
            kind=(kind := next(kinds)),
            worker=rng.choice(workers) if kind in OF_A_WORKER else None,
            seconds=rng.uniform(*_AWAY[kind]),
            port_taken=kind is Kind.WORKER_KILLED and rng.random() < PORT_TAKEN,
            grace=rng.uniform(*GRACE_SECONDS),
        )
        for turn in range(count)
    ]
    return tuple(faults)


def _decks(rng: random.Random) -> Iterator[Kind]:
    """Every kind once, then every kind once more, each time in another order."""
    while True:
        deck = list(Kind)
        rng.shuffle(deck)
        yield from deck
