"""[I7] who may act at this moment, by the seat itself and not by what a controller believes."""

from rollbook.events import Draft


class LeaseWatch:
    """Watches the seat of one world."""

    def __init__(self, world) -> None:
        self._world = world
        self._robbed: set[tuple[str, int]] = set()
        """(owner, epoch) → leaderships that somebody took away by hand: their owners cannot know it at once."""

    def rob(self, owner: str | None) -> None:
        """Somebody deletes the claim of `owner`, who goes on until told."""
        if owner is not None:
            self._robbed.add((owner, self._world.seat.epoch))

    def robbed(self, running) -> bool:
        """Whether the leadership that this controller believes in was taken away by hand."""
        return (running.owner, running.epoch) in self._robbed

    def holds(self, running, seconds: float = 0.0) -> bool:
        """Whether this controller has the seat for that long, if nothing happens."""
        seat, now = self._world.seat, self._world.loop.time()
        return seat.owner == running.owner and seat.epoch == running.epoch and seat.until - now >= seconds

    def calls(self, running, router: str, verb: str) -> None:
        """A controller is about to make an admin call: it has the seat for as long as the call may take."""
        world = self._world
        deadline = world.policy.proxies[router].call_deadline or world.policy.reconcile.call_deadline
        if self.holds(running, deadline):
            return
        if self.robbed(running):
            world.counts["slipped"] += 1
        else:
            world.wrong(
                f"[I7] {running} calls {router}.{verb} with less than {deadline:g} s of its lease left: "
                f"the seat is {world.seat.owner}'s until {world.seat.until:.3f}"
            )

    def appends(self, running, drafts: list[Draft]) -> None:
        """A controller is about to write: it has the seat."""
        if not self.holds(running) and not self.robbed(running):
            told = ", ".join(draft.subject for draft in drafts)
            self._world.wrong(f"[I7] {running} writes to {told}, and the seat is {self._world.seat.owner}'s")
