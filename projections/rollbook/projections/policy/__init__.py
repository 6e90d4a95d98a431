"""What the operator decided in advance: which pools there are, who serves them, how they are watched and restarted.

Plain data without a default that could surprise; `rollbook.toml` is read into it by the adapters.
"""

from __future__ import annotations

from rollbook.projections.policy.fleet import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy, SnapshotPolicy, Stale
from rollbook.projections.policy.health import HealthPolicy
from rollbook.projections.policy.recovery import RecoveryPolicy

__all__ = [
    "HealthPolicy",
    "Policy",
    "PoolPolicy",
    "ProxyPolicy",
    "ReconcilePolicy",
    "RecoveryPolicy",
    "SnapshotPolicy",
    "Stale",
]
