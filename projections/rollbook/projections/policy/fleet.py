"""What the operator decided in advance: which pools there are and which proxy serves which of them."""

from __future__ import annotations

from typing import Literal

import msgspec

from rollbook.projections.policy.health import HealthPolicy
from rollbook.projections.policy.recovery import RecoveryPolicy
from rollbook.projections.ports import Role

Stale = Literal["keep", "replace", "remove"]
"""What becomes of registered workers whose weights are not good enough any more."""


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How workers of one pool are registered."""

    url: str = "http://{primary}"
    """What is registered: a template over the worker's named addresses, each `host:port`."""
    ready_path: str | None = "/health"
    """GET on the worker that must answer 200 before it is added; None (in the file `""`) asks nothing."""
    requires_proxy: bool = True
    """Start-up fails, and says so, if no proxy serves this pool."""
    deregister_suspended: bool = True
    """Whether a suspended worker leaves the proxies; False for routers that understand sleeping workers."""
    role: Role = "regular"
    """`prefill` or `decode` where the two are disaggregated; said to routers that ask for it."""
    bootstrap: str | None = None
    """Name of the worker's address whose port decode workers fetch from; for pools with the role `prefill`."""
    model: str | None = None
    """Model id under which sglang and routed API proxies file this pool's workers; other kinds are not told it. It is
    also the one that `verify` asks for. None leaves it to the proxy."""
    paired_with: str | None = None
    """The pool that a request also needs, such as `decode` for `prefill`: as long as a proxy that serves both has no
    worker of the one that could take requests, no worker of the other is added there. Nobody is removed for it. One of
    the two names the other."""
    require_weights: bool = True
    """Whether a worker must hold the published version of the weights to be added, from the first one that is published
    for this pool on. Until it does it is shown as `pending_weights`."""
    max_lag: int = 0
    """By how much its version may be lower than the published one."""
    stale: Stale = "keep"
    """What becomes of a registered worker whose version is not good enough any more, since a new one was published.
    `keep` lets it serve on until it is down, `replace` removes one for each worker of the pool that holds the new
    version and is registered at that proxy, so that at least half of them always stay; `remove` removes all at once."""
    health: HealthPolicy = HealthPolicy()
    """How `rollbook monitor` watches this pool."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """How `rollbook recover` restarts what is down of it."""


class ProxyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one proxy serves."""

    name: str
    pools: tuple[str, ...]
    exclusive: bool = False
    """Whether entries that Rollbook did not make are removed [I11]; otherwise they are only reported."""
    removal_budget: float = 0.5
    """The part of the largest listing of the last minute that may be removed on inferred evidence without asking the
    workers themselves [I12]; from 0 to 1."""
    drain_deadline: float = 30.0
    """Seconds that running requests have to end in before a planned removal; for proxies that can drain."""
    call_deadline: float | None = None
    """Seconds for one admin call to this proxy; None takes that of `reconcile`."""


class ReconcilePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and paces of a lane. Times are in seconds."""

    resync: float = 5.0
    """Between two full read-backs when nothing happens: what a proxy lost by itself is repaired within this time."""
    call_deadline: float = 3.0
    """For one admin call, one listing, one look-up at the provider. No admin call begins with less than this left of
    the lease, so it is well below `leadership.lease`."""
    confirm_deadline: float = 10.0
    """For an accepted change to be seen in the listing."""
    backoff_first: float = 0.2
    """Upper bound of the first retry's random delay; doubles with each failure in a row."""
    backoff_most: float = 15.0
    """Upper bound of any retry's random delay."""
    removals_in_flight: int = 8
    """Concurrent removals at one proxy. Adds are bounded by the proxy's own capability."""


class SnapshotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When the leader keeps the fold, so that a start and a look back need not read the whole log.

    One is also taken at a clean stop.
    """

    every_facts: int = 10_000
    """Facts after which one is taken. A start reads at most so many, a fraction of a second; where they come faster
    than snapshots can be kept, at most a twentieth of the time goes into them."""
    every_seconds: float = 600.0
    """Seconds after which one is taken, if there was any fact at all."""
    keep: int = 64
    """How many are kept, from 2 to 1000: the newest three, and of the others as many as fit, spread evenly over the log
    so that a look back at any moment begins near it. With 64 no two are further apart than a thirtieth of the log. One
    of 10,000 workers takes about 3 MB."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the gates and the plan need to know about the fleet's configuration."""

    fleet: str
    pools: dict[str, PoolPolicy]
    proxies: dict[str, ProxyPolicy]
    reconcile: ReconcilePolicy = ReconcilePolicy()
    snapshots: SnapshotPolicy = SnapshotPolicy()

    def call_seconds(self, proxy: ProxyPolicy) -> float:
        """The deadline of one admin call to `proxy`, or of one listing."""
        return self.reconcile.call_deadline if proxy.call_deadline is None else proxy.call_deadline

    def pool(self, name: str | None) -> PoolPolicy:
        """The policy of a pool; a pool that the file does not name has the defaults."""
        return self.pools.get(name or "", _DEFAULT_POOL)

    def partner(self, pool: str | None) -> str | None:
        """The pool without which workers of `pool` are not added; whichever of the two names the other."""
        named = self.pool(pool).paired_with
        if named is not None or pool is None:
            return named
        return next((name for name, other in self.pools.items() if other.paired_with == pool), None)


_DEFAULT_POOL = PoolPolicy(requires_proxy=False)
