"""Keys in flight: at most one step of a worker at a proxy is under way, from its start until its outcome is folded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Action
from rollbook.projections.ending import end
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.lanes.outcomes import Outcome
from rollbook.projections.lanes.retries import Retries
from rollbook.projections.lanes.steps import Steps


class Flights:
    """Starts steps. `landed` is called with each outcome, `failed` with what a step failed with beyond all outcomes."""

    def __init__(
        self,
        steps: Steps,
        retries: Retries,
        tick: Callable[[], int],
        *,
        landed: Callable[[str, Outcome], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._steps = steps
        self._retries = retries
        self._tick = tick
        self._landed = landed
        self._failed = failed
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, int] = {}
        """When the last step of a key ended, on the count of `Seen.began`."""
        self._again: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether a step of `name` is under way."""
        return name in self._under_way

    def __len__(self) -> int:
        """How many are."""
        return len(self._under_way)

    @property
    def names(self) -> Collection[str]:
        """Whose steps are under way."""
        return self._under_way.keys()

    @property
    def busy(self) -> set[str]:
        """Those, and whose last step ended while or after the newest listing was read."""
        return self._under_way.keys() | self._ended.keys()

    def forget_before(self, began: int) -> None:
        """Drop what only mattered to listings begun before `began`."""
        self._ended = {name: tick for name, tick in self._ended.items() if tick > began}

    def outdate(self, seen: Seen, name: str) -> bool:
        """Whether a step of `name` ended after that listing began: it shows what was before."""
        return self._ended.get(name, 0) > seen.began

    def again(self, names: Iterable[str]) -> None:
        """Let these be looked at once more when the step that is under way, or starts now, has ended."""
        self._again.update(names)

    def wants_another_look(self, name: str) -> bool:
        """Whether that was asked for; then it is done with."""
        found = name in self._again
        self._again.discard(name)
        return found

    def start(self, action: Action, seen: Seen, observed: Observed) -> None:
        """Begin a step of a key that has none under way."""
        self._retries.started(action.worker)
        self._again.discard(action.worker)
        self._under_way[action.worker] = asyncio.create_task(self._fly(action, seen, observed))

    async def _fly(self, action: Action, seen: Seen, observed: Observed) -> None:
        name = action.worker
        try:
            again = self._retries.failed_before(name)
            outcome = await self._steps.carry_out(action, seen, observed, again=again)
        except Exception as exc:  # noqa: BLE001 - not swallowed: handed to the lane, which ends with it
            self._failed(exc)
            return
        del self._under_way[name]
        self._ended[name] = self._tick()
        self._landed(name, outcome)
        if outcome.evict is not None and outcome.evict.worker not in self._under_way:
            self.start(outcome.evict, seen, observed)

    async def close(self) -> None:
        """Stop what is under way."""
        await end(*self._under_way.values())
