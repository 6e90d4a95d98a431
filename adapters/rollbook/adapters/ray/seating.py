"""What the workers of a cell are told before their code starts: where all are reached whom their templates name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from rollbook.adapters.ray.rank import Over, Rank
from rollbook.adapters.ray.seat import Neighbour, Seat, needs
from rollbook.adapters.ray.spec import WorkerSpec

LOOK_SECONDS: Final = 0.05
"""Between two looks for an address that is awaited."""

Neighbours = Callable[[str], Neighbour | None]
"""Where a worker of the fleet is reached in its present life; None if that is not known yet."""


def shared(rank0: WorkerSpec, places: Mapping[str, Neighbour]) -> dict[str, Neighbour]:
    """The places of a cell's workers, each with what only rank 0 listens on, and all are told."""
    own = places[rank0.name].addresses
    masters = {info.name: own[info.name] for info in rank0.ports if info.per == "master" and info.name in own}
    return {name: Neighbour(place.addresses | masters, place.urls) for name, place in places.items()}


def first_ports(place: Neighbour) -> dict[str, int]:
    """By the kind of address."""
    return {kind: address.port for kind, address in place.addresses.items()}


async def seated(
    rank: Rank,
    *,
    numbers: Mapping[str, int],
    cell_incarnation: int,
    rank0: str,
    places: Mapping[str, Neighbour],
    neighbours: Neighbours,
) -> None:
    """Start one, once everybody is known whom its templates name. Raises `Over`.

    `numbers` and `places` are those of all workers of the cell.
    """
    wanted = needs(rank.spec.templates())
    now = asyncio.get_running_loop().time
    until = now() + rank.spec.start_seconds
    while True:
        known = {name: found for name, _ in wanted if (found := neighbours(name)) is not None}
        missing = [f"{name}.{kind}" for name, kind in wanted if name not in known or kind not in known[name].addresses]
        if not missing:
            break
        rank.note(reason=f"it waits for the address {missing[0]}, which it is to be told")
        if now() > until:
            raise Over(rank.name, "exited", f"there is no address {missing[0]}, which it was to be told")
        await asyncio.sleep(LOOK_SECONDS)
    seat = Seat(
        name=rank.name,
        incarnation=numbers[rank.name],
        rank=rank.spec.place.rank,
        cell_size=len(numbers),
        cell_incarnation=cell_incarnation,
        host=rank.state.node or "",
        rank0=rank0,
        workers=known | dict(places),
    )
    await rank.begin(seat)
