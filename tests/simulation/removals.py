"""Two rules about removals, watched at the moment of the call: the budget [I12], and drain before a planned one."""

import asyncio
import math
from collections import Counter, defaultdict, deque

from simulation.rules import inferred, leaves, planned, wanted

from rollbook.projections.ports import Target

WINDOW = 60.0
"""Seconds of the removal budget."""


class BudgetWatch:
    """[I12] inferred removals of one term of one leader, per router and pool, against the largest listing.

    It counts what the router truly listed, which is never less than what the controller saw; so its budget is never
    smaller than the controller's.
    """

    def __init__(self, world) -> None:
        self._world = world
        self._sizes: dict[tuple[str, str], deque[tuple[float, int]]] = defaultdict(deque)
        self._gone: dict[tuple[str, int, str, str], dict[tuple[str, int], float]] = defaultdict(dict)
        self._provider: set[tuple[str, int]] = set()
        """(owner, epoch) → leaderships in which the provider has given a complete listing."""
        self.forced: set[str] = set()
        """Routers at which an operator had the budget exceeded."""

    def listed(self, router, owners: list[Target | None]) -> None:
        """A router's listing has changed."""
        now = self._world.loop.time()
        sizes = Counter(self._pool(owner.worker) for owner in owners if owner is not None)
        for pool in self._world.policy.pools:
            self._sizes[router.name, pool].append((now, sizes[pool]))

    def provider_listed(self, running) -> None:
        """The provider has given a controller a complete listing."""
        self._provider.add((running.owner, running.epoch))

    def _pool(self, worker: str) -> str:
        return worker.split("-", 1)[0]

    def _largest(self, router: str, pool: str) -> int:
        """Of the window, and of the moment at which it began."""
        sizes, since = self._sizes[router, pool], self._world.loop.time() - WINDOW
        while len(sizes) > 1 and sizes[1][0] <= since:
            sizes.popleft()
        return max((size for _, size in sizes), default=0)

    def removes(self, running, router, target: Target, roster, probe: str | None) -> None:
        """An entry of ours is about to be removed; `probe` is the last answer of its URL in this step, "" for ready.

        Whoever was drained in this step because somebody meant it leaves, whatever is thought of it meanwhile.
        """
        world, now = self._world, self._world.loop.time()
        belongs = wanted(roster, world.policy, router.name, target.worker) == target.incarnation
        if belongs or not inferred(roster, world.policy, router.name, target.worker, target.incarnation):
            return
        world.counts["inferred removals"] += 1
        pool, life = self._pool(target.worker), (target.worker, target.incarnation)
        if (running.owner, running.epoch) not in self._provider and router.name not in self.forced:
            world.wrong(f"[I12] {router.name}: {target} was removed before the provider was listed once")
        gone = self._gone[running.owner, running.epoch, router.name, pool]
        for one in [one for one, moment in gone.items() if moment < now - WINDOW]:
            del gone[one]
        budget = world.policy.proxies[router.name].removal_budget
        allowed = 0 if budget == 0 else max(1, math.ceil(budget * self._largest(router.name, pool) - 1e-9))
        if probe:
            world.counts["removed beyond the budget"] += 1
        elif life in gone or len(gone) < allowed or router.name in self.forced:
            gone[life] = now
        else:
            asked = "was not asked" if probe is None else "answered"
            world.wrong(
                f"[I12] {router.name}: {target} was removed beyond the budget of {allowed}, and {asked}; gone: {gone}"
            )


class DrainWatch:
    """Who is meant to leave is drained first where the router can; who is dead is not."""

    def __init__(self, world) -> None:
        self._world = world
        self._since: dict[tuple[str, str], float] = {}
        self._steps: set[tuple[asyncio.Task, str, str]] = set()

    def drains(self, router, entry, target: Target, state) -> None:
        """An entry is about to be drained."""
        self._since.setdefault((router.name, entry.handle), self._world.loop.time())
        self._steps.add((asyncio.current_task(), router.name, entry.handle))
        policy, roster = self._world.policy, state.roster
        old = wanted(roster, policy, router.name, target.worker) == target.incarnation
        if not planned(roster, policy, router.name, target.worker, target.incarnation) and not (
            old and leaves(state, policy, router.name, target.worker)
        ):
            self._world.wrong(f"{router.name}: {target} was drained, and nobody meant it to leave")

    def drained_here(self, router, entry) -> bool:
        """Whether this very step has drained it."""
        return (asyncio.current_task(), router.name, entry.handle) in self._steps

    def removes(self, router, entry, target: Target, roster) -> None:
        """An entry is about to be removed."""
        world = self._world
        truth = next((each for each in router.listed if each.handle == entry.handle), None)
        if truth is None or not truth.running or not router.capabilities.drain:
            return
        worker = roster.workers.get(target.worker)
        if worker is None or worker.phase == "down":
            return  # a recovery is a plan, and the process is gone
        if not planned(roster, world.policy, router.name, target.worker, target.incarnation):
            return
        deadline = world.policy.proxies[router.name].drain_deadline
        since = self._since.get((router.name, entry.handle))
        if since is None or world.loop.time() - since < deadline - 1e-6:
            world.wrong(f"{router.name}: {target} was removed with {truth.running} running requests, drained: {since}")
        else:
            world.counts["drain deadlines"] += 1
