"""The root of Rollbook's error tree, and the part of it that concerns facts.

::

    RollbookError                 everything that Rollbook raises on purpose
    └── EventError                something is wrong with a fact, a name or its bytes
        ├── InvalidName           a fleet, worker or proxy name that cannot stand in a subject
        ├── InvalidSubject        a NATS subject outside the families of semantics.md, 1
        ├── InvalidFact           a fact whose fields contradict each other
        └── Undecodable           bytes that are not a fact of ours; goes to quarantine
            └── WrongFleet        a well-formed fact that belongs to another fleet

Adapters and projections add their own branches under `RollbookError`.
"""

from __future__ import annotations


class RollbookError(Exception):
    """Everything that Rollbook raises on purpose. `str()` says what was wrong, where, and what to do next."""


class EventError(RollbookError):
    """Something is wrong with a fact, a name or its bytes."""


class InvalidName(EventError, ValueError):
    """A fleet, worker or proxy name that cannot stand in a subject."""


class InvalidSubject(EventError, ValueError):
    """A NATS subject outside the families of facts."""


class InvalidFact(EventError, ValueError):
    """A fact whose fields contradict each other, such as a cell of two without `cell_incarnation`."""


class Undecodable(EventError):
    """Bytes that are not a fact of ours.

    `reason` is a short constant word for counting (`not_json`, `wrong_shape`, `subject_mismatch`, ...), `detail` a
    sentence for a person. Neither repeats the payload.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class WrongFleet(Undecodable):
    """A well-formed fact that says it belongs to another fleet than the subject it was published on."""

    def __init__(self, detail: str) -> None:
        super().__init__("wrong_fleet", detail)
