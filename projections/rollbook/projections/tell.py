"""How the loops say what they did, without knowing how logs are written."""

from __future__ import annotations

from typing import Protocol


class Tell(Protocol):
    """`tell("proxy.registered", proxy=..., worker=...)`: a constant event name and its keys, for the logs."""

    def __call__(self, event: str, /, **keys: object) -> None:
        """Write one line. Must not block or raise."""
        ...


def tell_nobody(event: str, /, **keys: object) -> None:
    """For who does not want to hear."""
