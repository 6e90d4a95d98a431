"""The proxy family: what the leading controller intended, did and saw at one proxy. Only it writes there, fenced."""

from __future__ import annotations

from typing import ClassVar, Literal

from rollbook.events.facts.base import Count, Fact, Incarnation, Name, Sequence, Url


class ProxyFact(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the family."""

    FAMILY: ClassVar[str] = "proxy"
    PUBLISHED_BY: ClassVar[str] = "the leading controller"

    proxy: Name
    """Its name in the configuration."""


class RegistrationFact(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """About one life of one worker at one proxy."""

    worker: Name
    """Its name."""
    incarnation: Incarnation
    """Which life of it."""
    url: Url
    """Canonical: scheme, lower-case host, no default port, no trailing slash."""
    cause: Sequence = 0
    """The fact that led here: the worker's last for an intent, the intent for an outcome."""


class Registering(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Intent, before the admin call that adds."""

    reason: str = ""
    """Why, for people."""


class Registered(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The proxy was seen to list it."""


class Deregistering(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Intent, before the admin call that removes; `reason` is the gate that failed."""

    reason: str = ""
    """The gate that failed, for people."""
    drain_seconds: float | None = None
    """For so long at most its running requests are waited for first, while it gets no new ones. None: no drain."""


class Deregistered(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The proxy was seen not to list it any more."""


class RegistrationFailed(RegistrationFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The admin call failed, or its success was not seen in time. What the proxy holds is then read again."""

    action: Literal["register", "deregister"]
    """What was tried."""
    reason: str
    """What the proxy answered, or what was not seen, for people."""
    retryable: bool = True
    """False: the proxy cannot do it at all; it is shown, not retried."""
    called: bool = True
    """False: no admin call was made, so nothing can have changed."""
    retry_seconds: float | None = None
    """After which it is tried again, if nothing else asks for it sooner. None: at once, or never."""


class DriftFound(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The listing differs from what the log says; written on change only."""

    missing: tuple[Name, ...] = ()
    """Workers whose registration the proxy lost."""
    unexpected: tuple[Name, ...] = ()
    """Workers of ours that it lists without a registration in the log."""
    foreign: tuple[str, ...] = ()
    """URLs that Rollbook did not put there."""


class RemovalWithheld(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Inferred removals went beyond the budget; these workers answered a probe and stay. Written on change only."""

    VERSION: ClassVar[int] = 2

    pool: Name | None = None
    """Left out: workers of no known pool. (Version 1 said `-`.)"""
    workers: tuple[Name, ...]
    """None of them: nobody of this pool is withheld any more."""
    budget: Count
    """How many of the pool may go within a minute without being asked."""


class ForeignFact(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """About an entry that Rollbook did not make, at a proxy that is configured to hold no others."""

    url: Url
    """Canonical."""
    cause: Sequence = 0
    """Of an outcome: its intent."""


class ForeignRemoving(ForeignFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Intent, before the admin call that removes it; the tags that it carries say whose it is, if it has any."""

    fleet: str | None = None
    """The tag; left out if it has none."""
    worker: str | None = None
    """The tag; left out if it has none."""
    incarnation: Incarnation | None = None
    """The tag; left out if it has none."""


class ForeignRemoved(ForeignFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The proxy was seen not to list it any more."""


class ForeignRemovalFailed(ForeignFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The admin call failed or was not made, or its success was not seen in time."""

    reason: str
    """What the proxy answered, or what was not seen, for people."""


class ProxyUnreachable(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Its admin API did not give a usable answer; written on change only."""

    reason: str
    """What was answered, or not, for people."""


class ProxyReachable(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """It answers again, or for the first time."""

    version: str | None = None
    """Of the router, where it tells."""


class LeadershipTaken(ProxyFact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A projector became this proxy's only writer; moving the subject's sequence fences its predecessor."""

    owner: str
    """The controller, as in the envelope's source."""
    epoch: Count
    """Of its leadership; a later one has a higher number."""
