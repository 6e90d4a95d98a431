"""The facts: what can happen in a fleet, how each is named, addressed and written as bytes.

Belongs here: names, fact types (one module per family), the recorded form, the codec, the subjects, and the root of
the error tree. Never here: sockets, threads, clocks, asyncio, nats, ray. Ids and times are arguments; adapters make
them. Only the standard library and msgspec are imported.
"""

from rollbook.events import facts
from rollbook.events.codec import Codec, Draft
from rollbook.events.errors import (
    EventError,
    InvalidFact,
    InvalidName,
    InvalidSubject,
    RollbookError,
    Undecodable,
    WrongFleet,
)
from rollbook.events.facts import *  # noqa: F403 - the catalogue, which names what it exports
from rollbook.events.names import WorkerName, parse_worker, validate_name
from rollbook.events.recorded import Recorded
from rollbook.events.subjects import Subject, parse_subject, stream_name, stream_subjects, subject_of, worker_subject

__all__ = [
    "Codec",
    "Draft",
    "EventError",
    "InvalidFact",
    "InvalidName",
    "InvalidSubject",
    "Recorded",
    "RollbookError",
    "Subject",
    "Undecodable",
    "WorkerName",
    "WrongFleet",
    "parse_subject",
    "parse_worker",
    "stream_name",
    "stream_subjects",
    "subject_of",
    "validate_name",
    "worker_subject",
]
__all__ += facts.__all__
