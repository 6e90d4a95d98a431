"""Lives that promised to be heard of: which are, which are overdue, and which are back.

Renewals do not stand in the log, so each controller process knows what it heard itself, also while it stands by. One
that was not heard of here yet begins now, and so do all after this process was deaf: silence is "unknown".
"""

from __future__ import annotations

from typing import Final

import msgspec

from rollbook.events.facts.base import Incarnation, Name
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import LIVE, Phase, Worker

MOST: Final = 100_000
"""Anyone who may send renewals may invent names; more than these are not noted."""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher says of its worker now and then."""

    worker: Name
    incarnation: Incarnation


class Leases:
    """Those that one process has heard of. All times are its own monotonic ones."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, float]] = {}
        """By worker: of which life, and when."""
        self._deaf = False

    def renewed(self, worker: str, incarnation: int, now: float) -> None:
        """It lives, by the word of its publisher or because it answered."""
        known = self._heard.get(worker)
        if known is None and len(self._heard) >= MOST:
            return
        if known is None or incarnation >= known[0]:
            self._heard[worker] = (incarnation, now)

    def deaf(self) -> None:
        """Nothing can be heard for now."""
        self._deaf = True

    def listening(self, now: float) -> None:
        """From now on everything can be heard again, and each lease begins anew."""
        self._deaf = False
        self._heard = {name: (incarnation, now) for name, (incarnation, _) in self._heard.items()}

    def overdue(self, roster: Roster, now: float) -> list[str]:
        """Workers that live by the log and were not heard of for as long as they promised. Who sleeps may be silent."""
        return [name for name, worker in roster.workers.items() if self.is_overdue(worker, roster, now)]

    def is_overdue(self, worker: Worker, roster: Roster, now: float) -> bool:
        """Whether that is so of this one."""
        if self._deaf or roster.ended:
            return False
        if worker.lease is None or worker.phase not in LIVE or roster.sleep(worker) is not None:
            return False
        incarnation, at = self._heard.get(worker.name, (0, now))
        if incarnation != worker.incarnation:
            self._heard[worker.name] = (worker.incarnation, now)
            return False
        return now - at > worker.lease

    def back(self, roster: Roster, now: float) -> list[str]:
        """Workers that are down for an expired lease alone, and are heard of again."""
        return [name for name, worker in roster.workers.items() if self.is_back(worker, now)]

    def is_back(self, worker: Worker, now: float) -> bool:
        """Whether that is so of this one."""
        return (
            worker.phase is Phase.DOWN
            and worker.evidence == "lease_expired"
            and self._fresh(worker.name, worker.lease, now)
            and self._heard[worker.name][0] == worker.incarnation
        )

    def _fresh(self, name: str, lease: float | None, now: float) -> bool:
        return lease is not None and name in self._heard and now - self._heard[name][1] <= lease
