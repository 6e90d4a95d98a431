"""Which states of the whole a schedule went through, without names and times.

A state is: for every worker, its phase, its marks and, at every router, what the log says of its present and its
earlier lives and what the router truly lists of them; of every router, its kind, whether it answers and how many
strangers it holds; and of the controllers, how many stand by and what the leader is up to. Workers and routers are
sorted, so that two states that differ by names only are one.
"""

import hashlib
from collections import Counter


class States:
    """Those of one world."""

    def __init__(self, world) -> None:
        self._world = world
        self.seen: set[int] = set()
        """64 bits of a hash of each."""

    def look(self) -> None:
        """Count the present state."""
        told = repr(self._present()).encode()
        self.seen.add(int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big"))

    def _present(self) -> tuple:
        world = self._world
        state = world.witness.journal.follow()
        listed = {name: self._listed(router) for name, router in world.routers.items()}
        workers = sorted(self._worker(state, worker, listed) for worker in state.roster.workers.values())
        return workers, sorted(map(self._router, world.routers.values())), self._leadership(), state.roster.ended

    def _listed(self, router) -> Counter:
        owners = [
            (world_owner, entry) for entry in router.listed if (world_owner := self._world.witness.owner(router, entry))
        ]
        return Counter((owner.worker, owner.incarnation, entry.in_rotation) for owner, entry in owners)

    def _worker(self, state, worker, listed: dict[str, Counter]) -> tuple:
        places = []
        for name, counted in listed.items():
            lives = state.ledger.look(name).registrations.get(worker.name, {})
            earlier = sorted(life.told for number, life in lives.items() if number != worker.incarnation)
            now = lives.get(worker.incarnation)
            entries = sorted(
                (
                    number - worker.incarnation if number > worker.incarnation else number == worker.incarnation,
                    fine,
                    many,
                )
                for (owner, number, fine), many in counted.items()
                if owner == worker.name
            )
            places.append((self._world.kinds[name], now.told if now else "", earlier, entries))
        marks = (worker.suspension is not None, worker.name in state.roster.cordons, worker.evidence or "")
        return str(worker.phase), worker.pool or "", worker.rank, marks, sorted(places)

    def _router(self, router) -> tuple:
        world = self._world
        held = bool(world.witness.journal.follow().roster.held.keys() & {"", router.name})
        strangers = min(len(world.witness.strangers[router.name]), 2)
        return world.kinds[router.name], router.available, router.stalled, held, strangers

    def _leadership(self) -> tuple:
        world = self._world
        seat = world.seat
        up_to = sorted(
            (running.paused, running.controller.started.is_set(), seat.owner == running.owner)
            for running in world.controllers.running
        )
        return world.log.available, seat.available, seat.owner is not None, up_to
