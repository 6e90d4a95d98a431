"""Workers, as they tell of themselves: which one answers, and whether it can take requests."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Identity(msgspec.Struct, frozen=True, gc=False):
    """How a worker says who it is, so that a stranger on a reused port is not taken for it.

    Exactly one of `header` (of the answer to the readiness probe) and `path` with `field` (a key of the JSON object
    that GET `path` answers, such as `/server_info` and `worker_id`).
    """

    value: str
    """What it must say."""
    header: str | None = None
    path: str | None = None
    field: str | None = None


class Readiness(Protocol):
    """Asks a worker whether it can take requests, before it is added anywhere."""

    async def check(self, url: str, path: str, identity: Identity | None = None) -> str | None:
        """None if GET `path` on `url` answers 200 and the worker is the one that `identity` says.

        Otherwise the reason, for people. Never raises for a sick worker.
        """
        ...
