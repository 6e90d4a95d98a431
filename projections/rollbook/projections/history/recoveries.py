"""How long it took from the end of one life to the next one being registered: the figure that a run is judged by."""

from __future__ import annotations

from typing import Final

import msgspec

from rollbook.events import Codec, Recorded, Registered
from rollbook.projections.history.moments import fold, state_at
from rollbook.projections.history.past import Past
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told
from rollbook.projections.state.roster import Change
from rollbook.projections.state.worker import LIVE

_LISTED: Final = frozenset({Told.REGISTERED, Told.DEREGISTERING, Told.REMOVE_UNSUPPORTED})


class Recovery(msgspec.Struct, frozen=True):
    """One worker, back at one proxy."""

    worker: str
    pool: str | None
    proxy: str
    incarnation: int
    """Of the life that was registered."""
    evidence: str | None
    """How it was known that the life before was over."""
    down_sequence: int
    down_at: float
    """Seconds since the epoch by the log's clock."""
    registered_sequence: int
    registered_at: float

    @property
    def seconds(self) -> float:
        """From down to registered."""
        return self.registered_at - self.down_at


class _Ended(msgspec.Struct, frozen=True):
    sequence: int
    at: float
    evidence: str | None
    waiting: frozenset[str]
    """Proxies at which it was registered and is not again."""


class _Watch:
    def __init__(self, state: State) -> None:
        self.found: list[Recovery] = []
        self._state = state
        self._ended: dict[str, _Ended] = {}

    def note(self, stored: Stored, recorded: Recorded | None, change: Change) -> None:
        if recorded is None or change.ignored is not None:
            return
        fact = recorded.fact
        if isinstance(fact, Registered):
            self._registered(stored, fact)
            return
        for name in change.workers:
            worker = self._state.roster.workers.get(name)
            if worker is None or worker.phase in LIVE or worker.since_sequence != stored.sequence:
                continue
            if name not in self._ended:
                proxies = self._state.ledger.proxies.items()
                where = frozenset(
                    proxy
                    for proxy, record in proxies
                    if any(life.told in _LISTED for life in record.registrations.get(name, {}).values())
                )
                if where:
                    self._ended[name] = _Ended(stored.sequence, stored.stored_at, worker.evidence, where)

    def _registered(self, stored: Stored, fact: Registered) -> None:
        ended = self._ended.get(fact.worker)
        worker = self._state.roster.workers.get(fact.worker)
        if ended is None or worker is None or worker.phase not in LIVE or fact.proxy not in ended.waiting:
            return
        self.found.append(
            Recovery(
                worker=fact.worker,
                pool=worker.pool,
                proxy=fact.proxy,
                incarnation=fact.incarnation,
                evidence=ended.evidence,
                down_sequence=ended.sequence,
                down_at=ended.at,
                registered_sequence=stored.sequence,
                registered_at=stored.stored_at,
            )
        )
        left = ended.waiting - {fact.proxy}
        if left:
            self._ended[fact.worker] = msgspec.structs.replace(ended, waiting=left)
        else:
            del self._ended[fact.worker]


async def recoveries(past: Past, codec: Codec, first: int, to: int) -> list[Recovery]:
    """Every recovery that began and ended from `first` to `to`. Raises `HistoryHole`."""
    state = await state_at(past, codec, first - 1)
    watch = _Watch(state)
    await fold(past, codec, state, to, watch.note)
    return watch.found
