"""What a demo run leaves behind: everything that the report is judged from, and nothing that is judged already.

Moments are seconds since the epoch. The programs of a demo run on one machine, so the log's clock (`Stored.stored_at`)
and the demo's own can be compared.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rollbook.projections.policy import Policy
from rollbook.projections.ports import Stored

How = Literal["killed", "actor killed", "hung", "node died"]
"""killed: its process got SIGKILL. actor killed: by Ray. hung: its process got SIGSTOP, and never SIGCONT. node died:
the Ray node that it was on."""


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One life that was ended."""

    worker: str
    incarnation: int
    pid: int | None
    """Of the process that served; None if it was not asked for."""
    at: float
    port_taken: bool
    """Whether somebody else took its port at once, so that the next life had to listen elsewhere."""
    how: How = "killed"


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a part that is no worker, or to a worker without ending its life."""

    what: str
    """Such as `router paused`."""
    whom: str
    """Which part, for people."""
    at: float
    until: float | None
    """When the part did its work again: it answered, or what has to follow its start was seen. None: not in time."""


class Fall(msgspec.Struct, frozen=True, kw_only=True):
    """One of Rollbook's programs ended although nobody had killed it. It was started again."""

    program: str
    at: float
    code: int
    said: str
    """Its last words."""


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that the demo itself put into the router, beside Rollbook [I11]."""

    url: str
    listed: bool
    """Whether the router listed it at the end."""
    served: int
    """Requests that it answered; they are not among the run's."""


class RouterRestart(msgspec.Struct, frozen=True, kw_only=True):
    """The router was killed, and started again on the same port with an empty list."""

    at: float
    answered: float
    """When it answered again."""


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request through the router."""

    sent: float
    done: float
    worker: str | None = None
    """Who answered, by its own word; None if nobody did."""
    incarnation: int | None = None
    pid: int | None = None
    failure: str | None = None
    """Why it failed, in a few constant words to count by; None if it was served."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the router's own list at the end, and who answers there."""

    url: str
    worker: str | None = None
    """By the entry's label."""
    incarnation: int | None = None
    """By the entry's label."""
    answers: tuple[str, int] | None = None
    """Worker and incarnation by the word of whoever answers at `url`; None if nobody does."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    policy: Policy
    proxy: str
    seed: int
    workers: tuple[str, ...]
    began: float
    """When the traffic began."""
    ended: float
    """When the last thing that is judged here was read."""
    kills_wanted: int
    kills: tuple[Kill, ...]
    restarts: tuple[RouterRestart, ...]
    requests: tuple[Request, ...]
    log: tuple[Stored, ...]
    """The fleet's whole log, read anew at the end."""
    live_sequence: int
    """Up to where the controller had folded at the end."""
    live_digest: str
    """Digest of the controller's state there."""
    listed: tuple[Listed, ...]
    """Without the foreign entry."""
    faults_wanted: int = 0
    """Disturbances that were planned."""
    disturbances: tuple[Disturbance, ...] = ()
    falls: tuple[Fall, ...] = ()
    foreign: Foreign | None = None
