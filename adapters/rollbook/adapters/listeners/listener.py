"""What every listener has: a publisher, a follow of the log, and the lives that it speaks of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Self

from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.listeners.follow import Follow
from rollbook.adapters.listeners.lives import Lives
from rollbook.adapters.publisher import Flushed, Publisher, PublisherMisconfigured
from rollbook.events import validate_name

POOL: Final = "rollout"
LIMIT: Final = 10_000
"""Facts that may wait for the log."""


class Listener:
    """Base of a framework's listener. `connection` is a `Connection` or a URL; the rest is as for `Publisher`.

    Making one waits for nothing. Raises `InvalidName`, `LogError` (a wrong URL), `OutboxInUse` or `OutboxUnusable`.
    """

    def __init__(
        self,
        fleet: str,
        connection: Connection | str,
        *,
        pool: str = POOL,
        outbox: str | None = None,
        limit: int = LIMIT,
    ) -> None:
        self._pool = validate_name("pool", pool)
        self._connection = Connection(url=connection) if isinstance(connection, str) else connection
        self.publisher = Publisher(fleet, self._connection, outbox=outbox, limit=limit)
        """For everything else that the trainer has to say."""
        try:
            self._follow = Follow(fleet, self._connection)
        except BaseException:  # no descriptor or thread is left: the next try needs the outbox
            self.publisher.close(timeout=0)
            raise
        self._lives = Lives(self.publisher, self._follow)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """From ROLLBOOK_FLEET, ROLLBOOK_NATS_URL with its credentials, and ROLLBOOK_OUTBOX if it is set.

        `options` are those of the constructor. Raises `PublisherMisconfigured` naming the variable that is missing.
        """
        for variable in ("ROLLBOOK_FLEET", "ROLLBOOK_NATS_URL"):
            if not environ.get(variable):
                raise PublisherMisconfigured(f"{variable} is not set; the trainer's runtime_env has to hand it on")
        options.setdefault("outbox", environ.get("ROLLBOOK_OUTBOX") or None)
        return cls(environ["ROLLBOOK_FLEET"], Connection.from_env(environ), **options)

    def wait_until_followed(self, timeout: float) -> bool:
        """Wait until the log was read to its end once; False after `timeout` seconds. No call needs it."""
        return self._follow.wait(timeout)

    def close(self, timeout: float = 10.0) -> Flushed:
        """Send what is waiting, and let go of threads and connections; says what has not been sent."""
        self._follow.stop()
        return self.publisher.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
