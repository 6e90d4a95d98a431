"""Which ports a worker listens on: described with `PortInfo`, and chosen on its node before it starts.

The choice is pure: what is free, and in which order to try, are arguments. Ports are chosen before anything listens,
because the other workers of a cell, and commands, must be told them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from rollbook.events import RollbookError

PRIMARY: Final = "primary"
"""The address that takes requests."""
MOST_PORTS: Final = 1024
_HIGHEST: Final = 65_535


class PortInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of address of a worker: a port, or several that follow each other."""

    name: str = PRIMARY
    """The kind: `primary`, `rpc`, `disaggregation_bootstrap`, ..."""
    port: int = 0
    """The first port; 0: free ones are chosen on the worker's node at every start."""
    count: int = 1
    """How many ports, one after the other. The address tells the first; templates write the next one `{rpc[1]}`."""
    per: Literal["worker", "master"] = "worker"
    """master: only rank 0 listens on it, and it is an address of every rank of the cell."""
    keep: bool = True
    """Whether a restarted worker gets the port of its former life if that is free, so that its URL stays."""


class PortTaken(RollbookError):
    """A port that a spec asks for is in use on the node, or none is free."""


def problems(infos: Sequence[PortInfo]) -> Iterable[str]:
    """What is wrong with the ports of one worker, each in a sentence without a subject."""
    seen: dict[str, PortInfo] = {}
    for info in infos:
        if info.name in seen:
            yield f"port {info.name!r} is described twice"
        if not info.name.isidentifier():
            yield f"port {info.name!r} cannot be written in a template; name it with letters, digits and '_'"
        if not 0 <= info.port <= _HIGHEST:
            yield f"port {info.port} is no port; 0 lets one be chosen"
        elif not 1 <= info.count <= MOST_PORTS:
            yield f"port {info.name!r} has count {info.count}; it must be from 1 to {MOST_PORTS}"
        elif info.port + info.count - 1 > _HIGHEST:
            yield f"port {info.name!r}: {info.count} ports from {info.port} on end above {_HIGHEST}"
        else:
            for other in seen.values():
                if info.port and other.port and set(_run(info.port, info)) & set(_run(other.port, other)):
                    yield f"ports {other.name!r} and {info.name!r} overlap"
        if info.per not in {"worker", "master"}:
            yield f"port {info.name!r} is per {info.per!r}, which is neither 'worker' nor 'master'"
        seen[info.name] = info


def of_rank(infos: Sequence[PortInfo], rank: int) -> list[PortInfo]:
    """Those that the worker of this rank listens on itself."""
    return [info for info in infos if rank == 0 or info.per == "worker"]


def choose(
    infos: Sequence[PortInfo],
    *,
    former: Mapping[str, int],
    is_free: Callable[[int], bool],
    candidates: Sequence[int],
) -> dict[str, int]:
    """The first port of each, by name; none of them twice. Raises `PortTaken`.

    `former` are those of the life before. `candidates` is the order in which dynamic ones are tried.
    """
    taken: set[int] = set()
    found: dict[str, int] = {}
    for info in sorted(infos, key=lambda info: info.port == 0):
        first = _first(info, former.get(info.name, 0), taken, is_free, candidates)
        found[info.name] = first
        taken.update(_run(first, info))
    return found


def _first(
    info: PortInfo, former: int, taken: set[int], is_free: Callable[[int], bool], candidates: Sequence[int]
) -> int:
    def fits(first: int) -> bool:
        run = _run(first, info)
        return run[-1] <= _HIGHEST and not taken.intersection(run) and all(map(is_free, run))

    if info.port:
        if fits(info.port):
            return info.port
        raise PortTaken(f"port {info.name!r}: {_told(info.port, info)} in use on this node; free it, or give 0")
    if info.keep and former and fits(former):
        return former
    for first in candidates:
        if fits(first):
            return first
    raise PortTaken(f"port {info.name!r}: no {info.count} ports one after the other are free on this node")


def _run(first: int, info: PortInfo) -> range:
    return range(first, first + info.count)


def _told(first: int, info: PortInfo) -> str:
    return f"{first} is" if info.count == 1 else f"one of {first}-{first + info.count - 1} is"
