"""A promise that a run is held to, with what broke it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

MOST_SHOWN: Final = 5
"""Of one check's problems; the others are counted."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise."""

    name: str
    guards: str
    """The invariant of the design that it checks."""
    looked_at: int
    """How many things were looked at."""
    held: bool
    broken: tuple[str, ...]
    """One line for each thing that broke it: the first `MOST_SHOWN`, and how many more there are."""


def checked(name: str, guards: str, looked_at: int, broken: Sequence[str]) -> Check:
    """It held if nothing broke it."""
    shown = list(broken[:MOST_SHOWN])
    if len(broken) > MOST_SHOWN:
        shown.append(f"and {len(broken) - MOST_SHOWN} more")
    return Check(name=name, guards=guards, looked_at=looked_at, held=not broken, broken=tuple(shown))
