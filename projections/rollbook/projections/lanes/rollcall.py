"""Asking those whom nobody saw go whether they are there [I12]: for all lanes together, and ever more rarely.

Who answers stays listed, and so would be asked at every pass at every proxy for as long as the log is wrong about it:
with a fleet of thousands, some thousands of connections a second, on the loop that renews the lease. So a worker that
answered is believed for a while that grows with every answer, until the log has another word about it. That one did not
answer is kept nowhere.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec

from rollbook.projections.deciding.observed import Life
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.ports import Clock
from rollbook.projections.state.roster import Roster

FIRST_REST: Final = 5.0
LONGEST_REST: Final = 60.0
"""Seconds, at most, before a worker that answered is asked again: doubling from the first to the longest."""


class _Answer(msgspec.Struct, gc=False):
    """It is there."""

    last: int
    """What the log's last word about the worker was."""
    times: int
    """In a row, with the same word."""
    until: float
    """When it is to be asked again, on the clock's `monotonic`."""


class RollCall:
    """One for all lanes of a controller; `roster` gives the roster as it is now."""

    def __init__(self, admission: Admission, roster: Callable[[], Roster], clock: Clock, rng: random.Random) -> None:
        self._admission = admission
        self._roster = roster
        self._clock = clock
        self._rng = rng
        self._asking: dict[tuple[Life, str], asyncio.Future[None]] = {}
        self._answers: dict[tuple[Life, str], _Answer] = {}
        self._sweep_at = 0.0

    def answered(self, life: Life, url: str) -> bool:
        """Whether `life` answered at `url` so lately that it need not be asked now."""
        answer = self._answers.get((life, url))
        return answer is not None and answer.last == self._last(life) and self._clock.monotonic() < answer.until

    async def absent(self, life: Life, url: str) -> str | None:
        """Why nobody serves at `url`, or somebody else does; None if `life` answers, or cannot be asked."""
        if not self._admission.can_be_asked(life[0]):
            return None
        other = self._asking.get((life, url))
        if other is not None:
            await asyncio.wait([other])
        # Nobody's entry goes because of what another lane heard: only that it answers is shared.
        return None if self.answered(life, url) else await self._ask(life, url)

    async def _ask(self, life: Life, url: str) -> str | None:
        last, over = self._last(life), asyncio.get_running_loop().create_future()
        self._asking[life, url] = over
        try:
            reason = await self._admission.absent(life[0], url)
            if reason is None:
                self._believe(life, url, last)
            else:
                self._answers.pop((life, url), None)
            return reason
        finally:
            over.set_result(None)
            if self._asking.get((life, url)) is over:
                del self._asking[life, url]

    def _believe(self, life: Life, url: str, last: int) -> None:
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._answers = {key: one for key, one in self._answers.items() if now < one.until + LONGEST_REST}
            self._sweep_at = now + LONGEST_REST
        before = self._answers.get((life, url))
        times = before.times + 1 if before is not None and before.last == last else 0
        most = min(LONGEST_REST, FIRST_REST * 2.0**times)
        self._answers[life, url] = _Answer(last, times, now + self._rng.uniform(most / 2, most))

    def _last(self, life: Life) -> int:
        worker = self._roster().workers.get(life[0])
        return 0 if worker is None else worker.last
