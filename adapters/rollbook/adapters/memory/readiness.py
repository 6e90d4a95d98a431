"""Readiness in memory: a world of URLs, each of which answers or does not."""

from __future__ import annotations

from typing import Final

from rollbook.adapters.proxies.identity import stranger
from rollbook.projections.ports import Clock, Identity

REFUSED: Final = "connection refused"


class MemoryReadiness:
    """Workers are ready where `serve` said so; everywhere else nobody listens."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self.seconds = seconds
        """How long an answer takes."""
        self._clock = clock
        self._answers: dict[str, tuple[str | None, str | None]] = {}

    def serve(self, url: str, reason: str | None = None, *, who: str | None = None) -> None:
        """Something listens at `url` from now on, and is ready unless there is a `reason` why not.

        Asked who it is, it says `who`; None for a worker that cannot tell.
        """
        self._answers[url] = (reason, who)

    def close(self, url: str) -> None:
        """Nobody listens at `url` any more."""
        self._answers.pop(url, None)

    async def check(self, url: str, path: str, identity: Identity | None = None) -> str | None:
        """None if what listens at `url` is ready now and is who it should be; otherwise the reason."""
        if self.seconds:
            await self._clock.sleep(self.seconds)
        reason, who = self._answers.get(url, (REFUSED, None))
        if reason is not None or identity is None or who == identity.value:
            return reason
        return stranger(f"GET {url}{path}", identity, who)
