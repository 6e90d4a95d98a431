"""The admin API of a router: what can be asked of it, what it lists, and what it may answer."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from rollbook.events import RollbookError

Role = Literal["regular", "prefill", "decode"]
"""What a worker does of a request; the two halves exist where prefill and decode are disaggregated."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a kind of proxy can do, as data that the plan reads."""

    list: bool = True
    remove: bool = True
    tag: bool = True
    """Whether fleet, worker and incarnation can be stored with an entry and read back."""
    drain: bool = False
    """Whether an entry can be kept from new requests while its running ones end."""
    async_add: bool = False
    """Whether an accepted add is only a promise."""
    probes_on_add: bool = False
    """Whether the proxy itself contacts the worker before it lists it."""
    adds_in_flight: int = 4


class Target(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is to be registered."""

    worker: str
    incarnation: int
    url: str
    """Canonical."""
    pool: str | None = None
    role: Role = "regular"
    bootstrap_port: int | None = None
    """Of a prefill worker: where decode workers fetch what it computed."""
    model: str | None = None
    """The model id that the proxy files it under; None leaves it to the proxy."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker as a proxy lists it."""

    url: str
    """Canonical."""
    handle: str
    """How the proxy names it now (sglang: a uuid; elsewhere the URL). Valid until the proxy restarts."""
    fleet: str | None = None
    worker: str | None = None
    incarnation: int | None = None
    """The three tags, None where the entry has none. A fleet of `""` is said of what is surely no fleet's: unlike an
    entry without tags, it is nobody's whatever the log says of its URL."""
    healthy: bool | None = None
    running: int | None = None
    """Requests that it is working on, where the proxy tells."""
    in_rotation: bool = True
    """False if the proxy itself is told to send it nothing new: an add that was cut short, a drain, maintenance."""


class Listing(msgspec.Struct, frozen=True, gc=False):
    """All that a proxy lists at one moment."""

    entries: tuple[Entry, ...]
    version: str | None = None


class Done(msgspec.Struct, frozen=True, gc=False):
    """The proxy says it is done; reading back decides."""


class Pending(msgspec.Struct, frozen=True, gc=False):
    """Accepted; `handle` asks for the outcome."""

    handle: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The proxy said no."""

    reason: str
    retryable: bool = True


class Unsupported(msgspec.Struct, frozen=True, gc=False):
    """This kind of proxy cannot do it; shown, never retried."""

    reason: str


Answer = Done | Pending | Failed | Unsupported
"""What an admin call answered, read from the body and not only from the status code."""


class ProxyUnavailable(RollbookError):
    """The proxy gave no usable answer: unreachable, timed out, or not the API it should be. What it did is unknown."""


class Proxy(Protocol):
    """The admin API of one router. Calls have no deadline of their own beyond the caller's."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def kind(self) -> str:
        """`sglang`, `vllm`, ..."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    def canonical_url(self, url: str) -> str:
        """The spelling under which this proxy lists `url`. Raises `ValueError` for what cannot be a worker's URL."""
        ...

    async def list(self) -> Listing:
        """What it lists now. Raises `ProxyUnavailable`."""
        ...

    async def add(self, target: Target) -> Answer:
        """Ask it to add `target`. Raises `ProxyUnavailable`: then it may have been added or may be later."""
        ...

    async def drain(self, entry: Entry) -> Answer:
        """Ask it to send `entry` nothing new; `Entry.running` tells when it is empty. Raises `ProxyUnavailable`.

        `Unsupported` where `capabilities.drain` is False.
        """
        ...

    async def remove(self, entry: Entry) -> Answer:
        """Ask it to remove exactly `entry` now, never whatever else has its URL. Raises `ProxyUnavailable`."""
        ...

    async def outcome(self, pending: Pending) -> Answer:
        """What became of a pending add: `Pending` while unknown. Raises `ProxyUnavailable`."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
