"""Asking workers how they are: over HTTP, by a Ray actor's method, by any callable; and the monitor as one runs it.

Belongs here: what an answer, or none, means in terms of `Outcome`, and the parts put together around the monitor of
`projections.health`. Never here: how often and how many times; when somebody is down.
"""

from rollbook.adapters.health.calling import called
from rollbook.adapters.health.monitoring import HealthMonitor, MonitorThread
from rollbook.projections.health.monitor import Check, Subject
from rollbook.projections.health.verdict import OK, Finding, Outcome
from rollbook.projections.policy import HealthPolicy

__all__ = [
    "OK",
    "Check",
    "Finding",
    "HealthMonitor",
    "HealthPolicy",
    "MonitorThread",
    "Outcome",
    "Subject",
    "called",
]
