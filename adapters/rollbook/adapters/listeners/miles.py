"""miles and slime: a hook for their RolloutHealthMonitor.

Their monitor kills the actors of an engine that fails its check, and calls `on_engine_failure(server_group, id)`. An
engine is a cell of as many workers as it has nodes; the first takes the requests. Their own look-up by name makes a
provider: `FrameworkProvider.by_name(get_addr, names)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rollbook.adapters.listeners.listener import Listener
from rollbook.adapters.publisher.life import Identity
from rollbook.events import InvalidFact

_REASON: Final = "the rollout health monitor killed its engine"


class MilesHook(Listener):
    """Says what their health monitor finds and their recovery does. Every method returns at once.

    Workers are `<pool>-<engine>-<node>`. What is no server group raises `InvalidFact`. Otherwise as `Listener`.
    """

    def on_engine_failure(self, server_group: Any, rollout_engine_id: int) -> None:
        """The engine was killed: the lives of this moment are down. Has the shape of the monitor's callback."""
        names = self._names(server_group, rollout_engine_id)
        for name, identity in self._said(names, self._lives.present_cell(names)):
            self._lives.end(name, evidence="actor_dead", reason=_REASON, **identity)

    def on_engines_started(self, server_group: Any, rollout_engine_ids: Iterable[int]) -> None:
        """They serve, for the first time or again: each worker has a new life."""
        for engine in rollout_engine_ids:
            names = self._names(server_group, engine)
            for name, identity in self._said(names, self._lives.next_cell(names)):
                self._lives.begin(name, **identity)

    def on_pause(self, server_group: Any, rollout_engine_ids: Iterable[int], *, reason: str, ttl: float) -> None:
        """Beside the monitor's `pause()`: they are offloaded, which is not dead, for `ttl` seconds at most."""
        self.publisher.suspend(self._all(server_group, rollout_engine_ids), reason=reason, ttl=ttl)

    def on_resume(self, server_group: Any, rollout_engine_ids: Iterable[int]) -> None:
        """Beside the monitor's `resume()`: they are back."""
        self.publisher.resume(self._all(server_group, rollout_engine_ids))

    def _names(self, server_group: Any, engine: int) -> list[str]:
        told = getattr(server_group, "nodes_per_engine", 1)
        try:
            nodes = int(told)
        except (TypeError, ValueError):
            nodes = 0
        if nodes < 1:
            raise InvalidFact(f"nodes_per_engine of {str(server_group)[:100]} is {told!r}; an engine has one or more")
        return [f"{self._pool}-{engine}-{node}" for node in range(nodes)]

    def _all(self, server_group: Any, engines: Iterable[int]) -> list[str]:
        return [name for engine in engines for name in self._names(server_group, engine)]

    def _said(self, names: list[str], cell: int) -> list[tuple[str, Identity]]:
        if len(names) == 1:
            return [(names[0], Identity())]
        return [(name, Identity(cell_size=len(names), cell_incarnation=cell)) for name in names]
