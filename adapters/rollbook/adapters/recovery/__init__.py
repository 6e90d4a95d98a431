"""Restarting what is down, and stopping what is to go, as one runs them.

    recovery = WorkerRecovery("math-rl", "nats://log.example:4222", provider.cells(), pools)
    await recovery.run()

    await planned_stop("rollout-3-0", fleet="math-rl", connection=..., manager=provider.cells(), reason="scale down")

Belongs here: the connection to the log. The decisions are in `projections/recovery`, and how a process is started and
killed is a `WorkerManager`'s business.
"""

from rollbook.adapters.recovery.recovering import RecoveryMisconfigured, WorkerRecovery
from rollbook.adapters.recovery.stopping import planned_stop
from rollbook.projections.policy import RecoveryPolicy
from rollbook.projections.recovery.planned import Stopped
from rollbook.projections.recovery.ports import ManagedWorker, ManagerError, Termination, WorkerManager

__all__ = [
    "ManagedWorker",
    "ManagerError",
    "RecoveryMisconfigured",
    "RecoveryPolicy",
    "Stopped",
    "Termination",
    "WorkerManager",
    "WorkerRecovery",
    "planned_stop",
]
