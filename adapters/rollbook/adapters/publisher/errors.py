"""What can go wrong for somebody who publishes.

::

    RollbookError
    └── PublisherError
        ├── PublisherMisconfigured    an environment variable or argument is missing or wrong
        ├── PublisherClosed           used after `close()`
        ├── PublisherForked           used in a forked child; make a new one there
        ├── WouldBlock                a blocking call on an event loop's thread
        ├── OutboxError               the durable outbox cannot be used
        │   ├── OutboxInUse           another process has it open
        │   └── OutboxUnusable        the file cannot be opened or is no outbox
        └── NotSent                   how a receipt ends when its fact is not known to be in the log
            ├── OutboxFull            as many facts as allowed were waiting already
            ├── IncarnationUnknown    it is not known which life the fact is about
            └── Refused               the server will never take it
"""

from __future__ import annotations

from rollbook.events import RollbookError


class PublisherError(RollbookError):
    """Something is wrong on the publishing side."""


class PublisherMisconfigured(PublisherError):
    """An environment variable or an argument is missing or wrong. The message names it."""


class PublisherClosed(PublisherError):
    """The publisher is closed and takes no more facts."""


class PublisherForked(PublisherError):
    """The publisher was made before a fork and has no thread in this process."""

    def __init__(self) -> None:
        super().__init__(
            "this publisher belongs to the parent process; a forked child makes its own: Publisher.from_env()"
        )


class WouldBlock(PublisherError):
    """A blocking call on the thread of a running event loop."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(f"{call} would block the running event loop; use `{instead}` there")


class OutboxError(PublisherError):
    """The durable outbox cannot be used."""


class OutboxInUse(OutboxError):
    """Another process, or another publisher of this one, has the outbox open."""


class OutboxUnusable(OutboxError):
    """The outbox cannot be opened, or the file there is no outbox."""


class NotSent(PublisherError):
    """The fact is not known to be in the log, and this publisher does not try any more."""


class OutboxFull(NotSent):
    """As many facts as the outbox may hold were waiting when this one came."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} facts are waiting already, so this one was not taken; see whether NATS can be reached "
            "(publisher.stats()), or raise `limit`"
        )


class IncarnationUnknown(NotSent):
    """It is not known which life the fact is about, and it must not be guessed later."""


class Refused(NotSent):
    """The server will never take this fact. The message repeats the server's reason."""
