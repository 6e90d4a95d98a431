"""A second net below the call that is always under way at each worker: who Ray's head does not list is gone.

The call ends with a death within milliseconds, unless Ray itself loses it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

SECONDS: Final = 10.0
"""Between two scans: one question to Ray's head for the whole fleet."""


class Scan:
    """Remembers who was missing the last time: one whose process was just being made is missing only once."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}

    def lost(self, listed: AbstractSet[str], processes: Mapping[str, int]) -> list[str]:
        """Who is gone for sure. `processes` are those that should be there: worker → which process it is."""
        missing = {name: process for name, process in processes.items() if name not in listed}
        found = [name for name, process in missing.items() if self._missing.get(name) == process]
        self._missing = missing
        return found
