"""Whether a controller is ready: it leads, or stands by with a warm roster. Pure, so that every case can be tried."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rollbook.projections.leading.controller import Controller
from rollbook.projections.ports import LogState

Role = Literal["leading", "standing by", "starting"]

BEHIND_SECONDS: Final = 5.0
"""How long the fold may be behind the log's end: facts that keep coming make it so for moments."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/readyz`."""

    ready: bool
    role: Role
    sequence: int
    """The last one folded; 0 before anything was."""
    epoch: int | None = None
    """While it leads."""
    led_by: str | None = None
    """While it stands by, as far as it knows."""
    reasons: tuple[str, ...] = ()
    """Why it is not ready, for people."""


class Judge:
    """Asked at every `/readyz`, with where the log ends at that moment."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._warm = False
        """Whether the fold has been at the log's end once."""
        self._goal = 0
        self._goal_at = 0.0

    def judge(self, ends: LogState | None, now: float) -> Readiness:
        """`ends` is None if the log did not answer; `now` is monotonic, in seconds."""
        controller = self._controller
        projector = controller.projector
        reasons: list[str] = []
        if ends is None:
            reasons.append("the log does not answer; see `rollbook doctor`")
        if projector is None:
            reasons.append("the newest snapshot is being restored")
        sequence = 0 if projector is None else projector.state.sequence
        if projector is not None and ends is not None and (late := self._late(sequence, ends, now)) is not None:
            reasons.append(late)
        leading = controller.leading
        return Readiness(
            ready=not reasons,
            role="leading" if leading is not None else "standing by" if self._warm else "starting",
            sequence=sequence,
            epoch=None if leading is None else leading.epoch,
            led_by=controller.led_by,
            reasons=tuple(reasons),
        )

    def _late(self, sequence: int, ends: LogState, now: float) -> str | None:
        """Why the fold counts as behind: it has never been at the log's end, or not for too long."""
        self._warm = self._warm or sequence >= ends.last_sequence
        if sequence >= self._goal:
            # Reached, whenever that was between two looks: from here on the next goal counts.
            self._goal, self._goal_at = ends.last_sequence, now
        if self._warm and (sequence >= self._goal or now - self._goal_at < BEHIND_SECONDS):
            return None
        return f"the fold is at {sequence}, the log ends at {ends.last_sequence}"
