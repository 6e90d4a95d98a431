"""Asking a worker's actor: a method of it, by its name, looked up anew for every probe.

Only the cluster's word makes an actor dead. A Ray that cannot be asked says nothing about any worker.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from rollbook.adapters.health.calling import finding_of
from rollbook.adapters.ray.border import (
    AGAIN_SECONDS,
    NAMESPACE,
    ActorBroken,
    ActorGone,
    ActorSilent,
    RayThread,
    aside,
    call,
    find,
    own_words,
)
from rollbook.projections.health.monitor import Subject
from rollbook.projections.health.verdict import Finding, Outcome
from rollbook.projections.policy import HealthPolicy

_PART: Final = 0.9
"""Of the timeout: so that Ray's own words arrive before it is over."""
_ENOUGH: Final = 0.2
"""Of the timeout: an actor that had less, because Ray was slow to look it up, is not called slow."""


class RayCheck:
    """The `Check` of one pool. `namespace` is that of its actors.

    Before any actor of the pool has answered, one that is not there under its name is not taken for dead, and one
    without the method not for ill: the name may be wrong.
    """

    def __init__(self, policy: HealthPolicy, namespace: str | None = None) -> None:
        self._policy = policy
        self._namespace = namespace or NAMESPACE
        self._threads = RayThread()
        self._met = False

    async def __call__(self, subject: Subject) -> Finding:
        """One call of the method."""
        name = self._policy.actor.format(worker=subject.name)
        until = time.monotonic() + self._policy.timeout * _PART
        while True:
            finding = await self._ask(name, until)
            # Ray keeps look-ups, so right after a crash the handle may be of the actor before.
            if finding.outcome is not Outcome.GONE or time.monotonic() + AGAIN_SECONDS > until:
                break
            await asyncio.sleep(AGAIN_SECONDS)
        if finding.outcome is Outcome.GONE and not self._met:
            return Finding(Outcome.UNKNOWN, finding.reason)
        return finding

    async def _ask(self, name: str, until: float) -> Finding:
        asked = f"actor {name!r} (namespace {self._namespace!r})"
        try:
            actor: Any = await aside(
                self._threads, lambda: find(name, self._namespace), until - time.monotonic(), f"looking up {asked}"
            )
        except ActorGone as exc:
            return Finding(Outcome.GONE, str(exc))
        except ActorSilent as exc:
            return Finding(Outcome.UNKNOWN, str(exc))
        left = until - time.monotonic()
        try:
            answer = await call(own_words(getattr(actor, self._policy.method).remote(), asked), left, asked)
        except ActorGone as exc:
            return Finding(Outcome.GONE, str(exc))
        except ActorSilent as exc:
            if left < self._policy.timeout * _ENOUGH:
                return Finding(Outcome.UNKNOWN, f"{exc}: looking it up had taken too long")
            return Finding(Outcome.SLOW, str(exc))
        except ActorBroken as exc:
            return Finding(Outcome.UNHEALTHY, str(exc))
        except AttributeError:
            return Finding(
                Outcome.UNHEALTHY if self._met else Outcome.UNKNOWN,
                f"{asked} has no method {self._policy.method!r}; is health.method right?",
            )
        self._met = True
        return finding_of(answer)
