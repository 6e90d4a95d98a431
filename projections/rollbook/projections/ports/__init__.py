"""What the decisions need from outside, as Protocols, with the few values and errors that cross them.

One module per family; they are imported from here.

Every port has two implementations that pass one contract suite: the real one, and the shipped in-memory one in
`adapters/memory` that the simulation runs on.

::

    RollbookError
    ├── LogError                the event log
    │   ├── LogUnavailable      no answer; nothing is known to be stored or not; try again
    │   ├── AppendConflict      the expected last sequence was wrong: somebody else wrote; nothing of it is stored
    │   ├── LogMisconfigured    the stream's settings would lose facts; names the setting
    │   └── HistoryHole         facts that the fold needs are gone; names the sequences and the two ways out
    ├── ProviderError           the worker provider
    │   ├── ProviderUnavailable no answer: unknown, which is never no
    │   ├── UnknownWorker       it answered, and has no such worker
    │   └── WorkerUnreachable   it knows the worker, which is dead or has no address yet
    ├── ProxyUnavailable        the proxy gave no usable answer; what it did is unknown
    └── AlreadyLed              another projector owns the fleet
"""

from __future__ import annotations

from rollbook.projections.ports.chance import Clock, Ids
from rollbook.projections.ports.leadership import AlreadyLed, Leadership
from rollbook.projections.ports.log import (
    AppendConflict,
    EventLog,
    HistoryHole,
    LogError,
    LogMisconfigured,
    LogState,
    LogUnavailable,
    Stored,
)
from rollbook.projections.ports.provider import (
    HostAndPort,
    Located,
    ProviderError,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerProvider,
    WorkerUnreachable,
)
from rollbook.projections.ports.proxy import (
    Answer,
    Capabilities,
    Done,
    Entry,
    Failed,
    Listing,
    Pending,
    Proxy,
    ProxyUnavailable,
    Role,
    Target,
    Unsupported,
)
from rollbook.projections.ports.readiness import Identity, Readiness
from rollbook.projections.ports.snapshots import Snapshot, SnapshotStore

__all__ = [
    "AlreadyLed",
    "Answer",
    "AppendConflict",
    "Capabilities",
    "Clock",
    "Done",
    "Entry",
    "EventLog",
    "Failed",
    "HistoryHole",
    "HostAndPort",
    "Identity",
    "Ids",
    "Leadership",
    "Listing",
    "Located",
    "LogError",
    "LogMisconfigured",
    "LogState",
    "LogUnavailable",
    "Pending",
    "ProviderError",
    "ProviderUnavailable",
    "ProviderWorker",
    "Proxy",
    "ProxyUnavailable",
    "Readiness",
    "Role",
    "Snapshot",
    "SnapshotStore",
    "Stored",
    "Target",
    "UnknownWorker",
    "Unsupported",
    "WorkerProvider",
    "WorkerUnreachable",
]
