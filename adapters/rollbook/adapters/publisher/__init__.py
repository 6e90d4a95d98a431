"""Publishing facts from trainers, health checks and workers: at once, from any thread, with NATS up or down.

Belongs here: taking facts from callers without making them wait, keeping them until JetStream has them, numbering
lives, and fencing verdicts. Never here: what a fact means for the roster. Importing this package does not import
nats-py; making a `Publisher` does.
"""

from rollbook.adapters.publisher.errors import (
    IncarnationUnknown,
    NotSent,
    OutboxError,
    OutboxFull,
    OutboxInUse,
    OutboxUnusable,
    PublisherClosed,
    PublisherError,
    PublisherForked,
    PublisherMisconfigured,
    Refused,
    WouldBlock,
)
from rollbook.adapters.publisher.life import Life
from rollbook.adapters.publisher.probe import Probe
from rollbook.adapters.publisher.publisher import Publisher
from rollbook.adapters.publisher.receipt import Flushed, PublisherStats, Receipt, Superseded, Unsent

__all__ = [
    "Flushed",
    "IncarnationUnknown",
    "Life",
    "NotSent",
    "OutboxError",
    "OutboxFull",
    "OutboxInUse",
    "OutboxUnusable",
    "Probe",
    "Publisher",
    "PublisherClosed",
    "PublisherError",
    "PublisherForked",
    "PublisherMisconfigured",
    "PublisherStats",
    "Receipt",
    "Refused",
    "Superseded",
    "Unsent",
    "WouldBlock",
]
