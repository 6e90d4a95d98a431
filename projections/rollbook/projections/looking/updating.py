"""Who takes part in an update of the weights, and who is ready at its end. Pure.

The lives that are there when it begins take part. Whoever restarts meanwhile is another life: it holds what it was
started with, whatever was loaded into the one before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import LIVE, Phase


class Updated(msgspec.Struct, frozen=True, kw_only=True):
    """How an update ended."""

    version: int
    ready: tuple[str, ...]
    """Workers that hold the version, in the life that took part."""
    restarted: dict[str, int]
    """Workers whose life is another one now, and which: they are not ready, whatever was said of them."""
    gone: tuple[str, ...]
    """Workers that took part and are down, retired or forgotten now."""
    not_loaded: tuple[str, ...]
    """Workers that took part, are there, and were not said to have loaded it, or hold another one since."""
    strangers: tuple[str, ...]
    """Workers that were said to have loaded it and took no part: they began later, or are of another pool."""

    @property
    def complete(self) -> bool:
        """Whether all that took part are ready."""
        return not (self.restarted or self.gone or self.not_loaded)


def participants(roster: Roster, pools: Collection[str]) -> dict[str, int]:
    """Worker → its life: those of the pools that take requests and live."""
    return {
        worker.name: worker.incarnation
        for worker in roster.workers.values()
        if worker.pool in pools and worker.entrypoint and worker.phase in LIVE
    }


def ended(roster: Roster, version: int, began_with: Mapping[str, int], loaded: Collection[str]) -> Updated:
    """What became of those that it `began_with`, by the roster at its end; `loaded` were said to have loaded it."""
    ready: list[str] = []
    gone: list[str] = []
    not_loaded: list[str] = []
    restarted: dict[str, int] = {}
    for name, incarnation in began_with.items():
        worker = roster.workers.get(name)
        if worker is None or worker.phase in {Phase.DOWN, Phase.RETIRED}:
            gone.append(name)
        elif worker.incarnation != incarnation:
            restarted[name] = worker.incarnation
        elif worker.weights == version and name in loaded:
            ready.append(name)
        else:
            not_loaded.append(name)
    return Updated(
        version=version,
        ready=tuple(ready),
        restarted=restarted,
        gone=tuple(gone),
        not_loaded=tuple(not_loaded),
        strangers=tuple(sorted(set(loaded) - began_with.keys())),
    )
