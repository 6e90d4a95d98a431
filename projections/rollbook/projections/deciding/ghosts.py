"""Late adds at proxies that keep no tags: for how long an entry that appears is still taken for ours.

A router may carry out an add long after it was given up. Without tags only the log can say whose such an entry is; and
it must not say so for ever, since anybody may use that address later.
"""

from __future__ import annotations

from typing import Final

from rollbook.projections.deciding.observed import Life
from rollbook.projections.state.ledger import Ghost, ProxyRecord

BELIEVED_SECONDS: Final = 600.0
"""From the moment at which a leader knows of it. Far beyond any router's patience with an add that keeps no tags."""


class Ghosts:
    """Remembers when each was first heard of in this leadership."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, Ghost], float] = {}

    def now(self, record: ProxyRecord, moment: float) -> dict[str, Life]:
        """By URL: whose entry it is if one appears there now. `moment` is in seconds of a monotonic clock."""
        self._since = {key: self._since.get(key, moment) for key in record.ghosts.items()}
        return {
            url: (ghost.worker, ghost.incarnation)
            for (url, ghost), since in self._since.items()
            if moment - since < BELIEVED_SECONDS
        }
