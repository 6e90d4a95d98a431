"""Whether this process may act for the fleet at this moment [I7], asked immediately before it does.

A router knows no epoch, so an admin call cannot be fenced. It is kept from overlapping with a successor's instead: none
begins that might still be under way when the lease ends. A process that is stopped between this look and the sending
lets one call slip; its successor lists again one call deadline after taking over, which heals it.
"""

from __future__ import annotations

from rollbook.events import RollbookError
from rollbook.projections.ports import Leadership


class StandsDown(RollbookError):
    """This process does not lead the fleet any more. It may stand by and lead again."""


class LeadershipLost(StandsDown):
    """The lease is over, or somebody else's."""

    def __init__(self, fleet: str, reason: str) -> None:
        super().__init__(f"leadership of fleet {fleet!r} is lost: {reason}; this controller stands down")


class Deposed(StandsDown):
    """Another process took a proxy over."""

    def __init__(self, proxy: str, owner: str | None) -> None:
        super().__init__(f"{owner} has taken over proxy {proxy!r}, and outranks this controller, which stands down")


class Authority:
    """Looks at the lease. Its answers are good for the line of code that asked, and for no await after it."""

    def __init__(self, leadership: Leadership, fleet: str) -> None:
        self._leadership = leadership
        self._fleet = fleet

    def missing(self, seconds: float) -> str | None:
        """Why no call that may take `seconds` can begin now; None if it can."""
        left = self._leadership.left()
        if left >= seconds:
            return None
        return f"{max(left, 0):.1f} s of the lease are left, and the call may take {seconds:g} s"

    def require(self) -> None:
        """Raise `LeadershipLost` if the lease is over: nothing is written any more."""
        if self._leadership.left() <= 0:
            raise LeadershipLost(self._fleet, "the lease is over")
