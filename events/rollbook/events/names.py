"""Names of fleets, workers, proxies and publishers: parse, format, validate.

A name becomes one token of a NATS subject, a label in a router and a server name in HAProxy, so the alphabet is what
all of them take. `<pool>-<cell>-<rank>` is the usual worker name; any other name is free, and then pool and cell come
with the fact.
"""

from __future__ import annotations

import re

import msgspec

from rollbook.events.errors import InvalidName

_LONGEST = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_WORKER = re.compile(r"(?P<pool>[A-Za-z0-9_-]*[A-Za-z_][A-Za-z0-9_]*)-(?P<cell>[0-9]{1,9})-(?P<rank>[0-9]{1,9})")


class WorkerName(msgspec.Struct, frozen=True):
    """A worker's name taken apart. For a free name `pool` and `cell` are None and `rank` is 0."""

    name: str
    pool: str | None
    cell: str | None
    rank: int

    def __str__(self) -> str:
        return self.name


def validate_name(kind: str, value: str) -> str:
    """Return `value` if it can name a `kind` ("fleet", "worker", ...); `InvalidName` says which letter is wrong."""
    if _NAME.fullmatch(value):
        return value
    if not value:
        problem = "it is empty"
    elif len(value) > _LONGEST:
        problem = f"it is {len(value)} characters long, {_LONGEST} are allowed"
    else:
        bad = next(c for c in value if not _NAME.fullmatch(c))
        problem = f"{bad!r} is not allowed"
    msg = f"{value[:140]!r} cannot name a {kind}: {problem}; use letters, digits, '_' and '-'"
    raise InvalidName(msg)


def parse_worker(name: str) -> WorkerName:
    """Take `<pool>-<cell>-<rank>` apart; a free name is allowed, `InvalidName` is raised for what cannot be a name."""
    validate_name("worker", name)
    match = _WORKER.fullmatch(name)
    if match is None:
        return WorkerName(name, None, None, 0)
    return WorkerName(name, match["pool"], match["cell"], int(match["rank"]))


def format_worker(pool: str, cell: int | str, rank: int) -> str:
    """The inverse of `parse_worker`: `format_worker("rollout", 3, 0) == "rollout-3-0"`.

    Raises `InvalidName` if the three cannot be read back from the name, as with a cell that is not a number.
    """
    name = f"{pool}-{cell}-{rank}"
    parsed = parse_worker(name)
    if (parsed.pool, parsed.cell, parsed.rank) != (pool, str(cell), rank):
        msg = (
            f"{name!r} does not say pool {pool!r}, cell {str(cell)!r} and rank {rank}: cell and rank have at most nine "
            "digits, and a pool's last word is no number. Choose a free name; pool, cell and rank then go with facts"
        )
        raise InvalidName(msg)
    return name
