"""The shapes that XTuner hands to its worker lifecycle listeners."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    rank: int
    url: str | None
    session_url: str | None = None
    is_request_entrypoint: bool = True


@dataclass(frozen=True)
class Group:
    ranks: tuple[int, ...]
    workers: tuple[Snapshot, ...]


def group(rank: int, url: str | None = None) -> Group:
    """Of one worker."""
    return Group((rank,), (Snapshot(rank, url),))


def pair(rank: int) -> Group:
    """Of two, of which the first takes requests."""
    workers = (Snapshot(rank, None), Snapshot(rank + 1, None, is_request_entrypoint=False))
    return Group((rank, rank + 1), workers)
