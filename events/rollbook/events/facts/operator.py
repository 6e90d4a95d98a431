"""The operator family: what a person decided; each fact says who and why."""

from __future__ import annotations

from typing import ClassVar

from rollbook.events.facts.base import Fact, Name


class OperatorFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the family."""

    FAMILY: ClassVar[str] = "operator"
    PUBLISHED_BY: ClassVar[str] = "`rollbook` on the command line, and programs on behalf of a person"

    by: str
    """Who decided."""
    why: str
    """Why, for people."""


class OperatorWorkerFact(OperatorFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A decision about one worker, known or not."""

    worker: Name
    """Its name."""


class WorkerCordoned(OperatorWorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Keep it out of every proxy, in this life and in later ones."""


class WorkerUncordoned(OperatorWorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It may be registered again."""


class WorkerForgotten(OperatorWorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Strike it off the roster; only a higher incarnation returns."""


class DrainRequested(OperatorWorkerFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Take its current life out of rotation, letting running requests end."""

    deadline_seconds: float | None = None
    """Seconds that running requests get. Left out: what the proxy's configuration says."""


class OperatorProxyFact(OperatorFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A decision about reconciliation: of one proxy, or of all (`proxy` left out)."""

    proxy: Name | None = None
    """Its name in the configuration. Left out: all of them."""


class ReconcileHeld(OperatorProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Make no admin calls until released."""


class ReconcileReleased(OperatorProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Admin calls are made again."""
