"""What a controller is built from, as one value: the ports, the chance and the name under which it writes."""

from __future__ import annotations

import random

import msgspec

from rollbook.projections.ports import (
    Clock,
    EventLog,
    Ids,
    Leadership,
    Readiness,
    SnapshotStore,
    WorkerProvider,
)
from rollbook.projections.state.leases import Leases
from rollbook.projections.state.observers import Observers
from rollbook.projections.tell import Tell, tell_nobody


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Made once, at the composition root, and passed down whole."""

    log: EventLog
    snapshots: SnapshotStore
    leadership: Leadership
    provider: WorkerProvider
    readiness: Readiness
    clock: Clock
    ids: Ids
    rng: random.Random
    """For the jitter of retries."""
    owner: str
    """Who writes: the publisher in the envelope's source, and the leader's name."""
    observers: Observers = msgspec.field(default_factory=Observers)
    """Who watches the fleet, as far as this process has heard."""
    leases: Leases = msgspec.field(default_factory=Leases)
    """Which lives that promised it were heard of."""
    tell: Tell = tell_nobody
