"""The proxy family: what the reconciler intended, did and saw at one proxy. Only the leader writes it, fenced."""

from __future__ import annotations

from typing import ClassVar, Literal

from rollbook.events.facts.base import Count, Fact, Incarnation, Name, Sequence, Url


class ProxyFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the family."""

    FAMILY: ClassVar[str] = "proxy"

    proxy: Name


class RegistrationFact(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """About one life of one worker at one proxy."""

    worker: Name
    incarnation: Incarnation
    url: Url
    """Canonical: scheme, lower-case host, no default port, no trailing slash."""
    cause: Sequence = 0
    """The fact that led here: the worker's last for an intent, the intent for an outcome."""


class Registering(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Intent, before the admin call that adds."""

    reason: str = ""


class Registered(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The proxy was seen to list it."""


class Deregistering(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Intent, before the admin call that removes; `reason` is the gate that failed."""

    reason: str = ""


class Deregistered(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The proxy was seen not to list it any more."""


class RegistrationFailed(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The admin call failed, or its success was not seen in time. What the proxy holds is then read again."""

    action: Literal["register", "deregister"]
    reason: str
    retryable: bool = True
    """False: the proxy cannot do it at all; it is shown, not retried."""


class DriftFound(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The listing differs from what the log says; written on change only."""

    missing: tuple[Name, ...] = ()
    """Workers whose registration the proxy lost."""
    unexpected: tuple[Name, ...] = ()
    """Workers of ours that it lists without a registration in the log."""
    foreign: tuple[str, ...] = ()
    """URLs that Rollbook did not put there."""


class RemovalWithheld(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Inferred removals went beyond the budget; these workers answered a probe and stay."""

    pool: Name
    workers: tuple[Name, ...]
    budget: Count


class ProxyUnreachable(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Its admin API did not give a usable answer; written on change only."""

    reason: str


class ProxyReachable(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It answers again, or for the first time."""

    version: str | None = None


class LeadershipTaken(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A projector became this proxy's only writer; moving the subject's sequence fences its predecessor."""

    owner: str
    epoch: Count
