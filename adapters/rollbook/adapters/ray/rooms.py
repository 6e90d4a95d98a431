"""Placement groups: room for a whole cell, or for none of it, one bundle for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollbook.adapters.ray.border import host_name
from rollbook.adapters.ray.checking import bundle_of
from rollbook.adapters.ray.spec import InvalidSpec, Spec


class Rooms:
    """The placement groups of one fleet. All methods block for a round trip to Ray's head.

    Those of a fleet that is not `detached` end with the process that made them, should nobody remove them.
    """

    def __init__(self, fleet: str, *, detached: bool) -> None:
        self._fleet = fleet
        self._detached = detached

    def make(self, specs: Sequence[Spec]) -> Any:
        """A new one for these workers of a cell, in place of one that is left of its life before."""
        from ray.util.placement_group import placement_group

        cell = specs[0].cell_key
        self.remove(cell)
        bundles = [bundle_of(spec) for spec in specs]
        lifetime = "detached" if self._detached else None
        name = host_name(self._fleet, cell)
        try:
            return placement_group(bundles, strategy=str(specs[0].placement), name=name, lifetime=lifetime)
        except ValueError as exc:
            raise InvalidSpec(f"cell {cell}: Ray does not make its placement group: {exc}") from exc

    def remove(self, cell: str) -> None:
        """Remove it, with whatever runs in it; nothing if there is none."""
        import ray
        from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

        # Not by name: names belong to the Ray namespace of whoever launched the manager, which may be another one now.
        for id_, found in placement_group_table().items():
            if found["name"] == host_name(self._fleet, cell) and found["state"] != "REMOVED":
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(id_))))

    def strategy(self, room: Any, spec: Spec) -> Any:
        """How the actor of one of its workers is told where to run."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        index = spec.place.rank if len(room.bundle_specs) > 1 else 0
        return PlacementGroupSchedulingStrategy(placement_group=room, placement_group_bundle_index=index)
