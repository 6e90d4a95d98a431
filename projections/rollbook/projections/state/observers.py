"""Who watches the fleet, by their heartbeats: heard, silent, or gone on purpose.

Heartbeats do not stand in the log, so each controller process knows what it heard itself, also while it stands by.
Silence means "unknown": nobody is down because of it. And who is deaf, or was stopped, calls nobody silent.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rollbook.events import ObserverSilent, Recorded
from rollbook.events.facts.base import Name
from rollbook.projections.ports import Stored
from rollbook.projections.state.roster import Change

MISSED: Final = 3
"""Heartbeats in a row that may be missed."""
SLACK_SECONDS: Final = 1.0
"""On top: for an observer that is busy."""
FORGET_SECONDS: Final = 3600.0
"""After so much silence it is not mentioned any more: it was replaced by one of another name."""
MOST_OBSERVERS: Final = 1000
"""Anyone who may send heartbeats may invent names; more than these are not noted."""
LONGEST_EVERY: Final = 600.0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an observer says of itself now and then."""

    observer: Name
    every: float
    """Seconds until the next one."""
    pools: tuple[Name, ...] = ()
    """What it watches."""
    leaving: bool = False
    """It ends on purpose; its silence means nothing."""


class _Heard(msgspec.Struct):
    every: float
    pools: tuple[str, ...]
    at: float
    """Monotonic."""
    told: bool = False
    """Whether the log says already that it is silent."""


class Observers:
    """Those that one process has heard. All times are its own monotonic ones."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._deaf = False

    def heard(self, beat: Heartbeat, now: float) -> None:
        """A heartbeat came in."""
        if beat.leaving:
            self._heard.pop(beat.observer, None)
        elif 0 < beat.every <= LONGEST_EVERY and (beat.observer in self._heard or len(self._heard) < MOST_OBSERVERS):
            self._heard[beat.observer] = _Heard(beat.every, beat.pools, now)

    def deaf(self) -> None:
        """Nothing can be heard for now."""
        self._deaf = True

    def listening(self, now: float) -> None:
        """From now on everything can be heard again, and each observer has its time anew."""
        self._deaf = False
        for one in self._heard.values():
            one.at = now if not one.told else one.at

    def witness(self, _: Stored, recorded: Recorded | None, __: Change) -> None:
        """A fact was folded: the log says of an observer that it is silent, so nobody says it again."""
        if recorded is not None and isinstance(recorded.fact, ObserverSilent):
            one = self._heard.get(recorded.fact.observer)
            if one is not None:
                one.told = True

    def silent(self, now: float) -> dict[str, float]:
        """By name: for how many seconds nothing was heard of those that should have been."""
        if self._deaf:
            return {}
        for name in [name for name, one in self._heard.items() if now - one.at > FORGET_SECONDS]:
            del self._heard[name]
        return {
            name: now - one.at for name, one in self._heard.items() if now - one.at > MISSED * one.every + SLACK_SECONDS
        }

    def untold(self, now: float) -> dict[str, float]:
        """Those of `silent` of whom the log does not say it yet."""
        return {name: seconds for name, seconds in self.silent(now).items() if not self._heard[name].told}

    def names(self) -> list[str]:
        """All that are known, heard or silent."""
        return sorted(self._heard)

    def notes(self, now: float) -> tuple[str, ...]:
        """For `status`: one line for each that is silent."""
        return tuple(
            f"observer {name} has been silent for {seconds:.0f} s: whether {self._of(name)} is well is unknown to it. "
            "Start `rollbook monitor` again, unless another one watches"
            for name, seconds in sorted(self.silent(now).items())
        )

    def _of(self, name: str) -> str:
        pools = self._heard[name].pools
        return f"pool {', '.join(pools)}" if pools else "its workers"
