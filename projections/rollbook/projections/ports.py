"""What the decisions need from outside, as Protocols, with the few values and errors that cross them.

Every port has two implementations that pass one contract suite: the real one, and the shipped in-memory one in
`adapters/memory` that the simulation runs on.

::

    RollbookError
    ├── LogError                the event log
    │   ├── LogUnavailable      no answer; nothing is known to be stored or not; try again
    │   ├── AppendConflict      the expected last sequence was wrong: somebody else wrote; nothing of it is stored
    │   ├── LogMisconfigured    the stream's settings would lose facts; names the setting
    │   └── HistoryHole         facts that the fold needs are gone; names the sequences and the two ways out
    ├── ProviderError           the worker provider
    │   ├── ProviderUnavailable no answer: unknown, which is never no
    │   ├── UnknownWorker       it answered, and has no such worker
    │   └── WorkerUnreachable   it knows the worker, which is dead or has no address yet
    ├── ProxyUnavailable        the proxy gave no usable answer; what it did is unknown
    └── AlreadyLed              another projector owns the fleet
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from rollbook.events import Draft, RollbookError

# ---------------------------------------------------------------- the log


class LogError(RollbookError):
    """Something is wrong with the event log."""


class LogUnavailable(LogError):
    """No answer from the log: whether an append was stored is unknown. Appending again with the same ids is safe."""


class AppendConflict(LogError):
    """The expected last sequence of a subject was wrong. Nothing of the append is stored."""

    def __init__(self, subject: str, expected: int, found: int | None = None) -> None:
        told = "" if found is None else f", found {found}"
        super().__init__(f"{subject}: expected last sequence {expected}{told}; somebody else wrote to it")
        self.subject = subject
        self.expected = expected
        self.found = found


class LogMisconfigured(LogError):
    """The stream exists with settings that would lose facts. The message names the setting and what it should be."""


class HistoryHole(LogError):
    """Facts that the fold needs are not in the log any more."""

    def __init__(self, first_missing: int, found: str) -> None:
        super().__init__(
            f"the log has no sequence {first_missing} ({found}). The state cannot be folded past it. Two ways out: "
            "`rollbook up --relist` begins anew from what provider and proxies list now and forgets what was lost, or "
            "`rollbook import` restores an archive of the log"
        )
        self.first_missing = first_missing


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One message as the log holds it, whatever its bytes are."""

    sequence: int
    subject: str
    payload: bytes
    stored_at: float = 0.0
    """Seconds since the epoch by the log's clock; for people and latency figures only, never folded."""


class LogState(msgspec.Struct, frozen=True, gc=False):
    """Where the log begins and ends, and which log it is."""

    identity: str
    """Changes when the stream is deleted and made anew."""
    first_sequence: int
    """Of the oldest message still held; `last_sequence + 1` if none is."""
    last_sequence: int
    """0 for a log that never held anything."""


class EventLog(Protocol):
    """The fleet's stream: totally ordered, append-only."""

    async def append(self, drafts: Sequence[Draft], *, expect: Mapping[str, int] | None = None) -> list[int]:
        """Append all drafts, in order, or none; return their sequences.

        `expect` names, per subject, the last sequence that must stand on it before the first of these drafts.
        A draft whose id is already stored is not stored again: its first sequence is returned.
        Raises `AppendConflict` (nothing stored) or `LogUnavailable` (unknown; repeat with the same drafts).
        """
        ...

    def read(self, after: int) -> AsyncGenerator[Sequence[Stored]]:
        """Yield everything with a sequence above `after`, in order, in batches, then go on as facts arrive.

        Reconnects by itself. It may lose messages when something underneath does; so the reader checks that sequences
        are contiguous and calls `read` anew from the last one it applied. Raises `LogUnavailable` when it gives up.
        """
        ...

    async def state(self) -> LogState:
        """Ends and identity of the log now. Raises `LogUnavailable`."""
        ...

    async def get(self, sequence: int) -> Stored | None:
        """The message at `sequence`, or None if the log does not hold it (any more). Raises `LogUnavailable`."""
        ...

    async def last(self, subject: str) -> Stored | None:
        """The newest message on `subject`, or None. Raises `LogUnavailable`."""
        ...


# ---------------------------------------------------------------- the provider


class HostAndPort(msgspec.Struct, frozen=True, gc=False):
    """An address. `str()` gives `host:port`, with brackets around IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Identity(msgspec.Struct, frozen=True, gc=False):
    """How a worker says who it is, so that a stranger on a reused port is not taken for it.

    Exactly one of `header` (of the answer to the readiness probe) and `path` with `field` (a key of the JSON object
    that GET `path` answers, such as `/server_info` and `worker_id`).
    """

    value: str
    """What it must say."""
    header: str | None = None
    path: str | None = None
    field: str | None = None


class Located(msgspec.Struct, frozen=True, gc=False):
    """Where a worker is now, and which life of it answered."""

    addresses: dict[str, HostAndPort]
    """By name; `primary` is the one that takes requests."""
    incarnation: int
    """0 when the provider cannot tell (a static file): then it matches any."""
    alive: bool = True
    identity: Identity | None = None
    """None for a worker that cannot tell who it is."""


class ProviderWorker(msgspec.Struct, frozen=True, gc=False):
    """One line of a provider's listing."""

    name: str
    incarnation: int
    alive: bool
    serving: bool = True


class ProviderError(RollbookError):
    """Something is wrong with a worker's address."""


class ProviderUnavailable(ProviderError):
    """The provider gave no answer within its deadline."""


class UnknownWorker(ProviderError):
    """The provider answered, and has no such worker."""


class WorkerUnreachable(ProviderError):
    """The provider knows the worker, which is dead or has no address yet."""


class WorkerProvider(Protocol):
    """Resolves a worker's address at the moment of the call. Caches nothing."""

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker`, `WorkerUnreachable` or `ProviderUnavailable`."""
        ...

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out. Raises `ProviderUnavailable`."""
        ...

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows. Raises `ProviderUnavailable`."""
        ...


# ---------------------------------------------------------------- proxies

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


class Readiness(Protocol):
    """Asks a worker whether it can take requests, before it is added anywhere."""

    async def check(self, url: str, path: str, identity: Identity | None = None) -> str | None:
        """None if GET `path` on `url` answers 200 and the worker is the one that `identity` says.

        Otherwise the reason, for people. Never raises for a sick worker.
        """
        ...


# ---------------------------------------------------------------- time, chance, memory, leadership


class Clock(Protocol):
    """Time for the loops. The fold has none."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch: for people."""
        ...

    def monotonic(self) -> float:
        """Seconds from some origin, never backwards: for deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after at least `seconds` of `monotonic`."""
        ...


class Ids(Protocol):
    """Ids of facts."""

    def new(self) -> str:
        """A UUIDv7 that was never returned before."""
        ...


class Snapshot(msgspec.Struct, frozen=True):
    """The fold at one sequence, with what the log must confirm before it is believed."""

    identity: str
    """Of the log it was folded from."""
    schema: int
    """The fold's version; another version's snapshots are passed over."""
    sequence: int
    fact_id: str
    """Digest or id of the message at `sequence`, so that a log restored from an older backup is noticed."""
    digest: str
    """SHA-256 of `body`, hexadecimal."""
    body: bytes


class SnapshotStore(Protocol):
    """Keeps a limited number of snapshots: those that `keeping` says."""

    async def save(self, snapshot: Snapshot) -> None:
        """Keep it; what is least needed beyond the store's limit goes. Raises `LogUnavailable`."""
        ...

    def newest_first(self, at_most: int | None = None) -> AsyncIterator[Snapshot]:
        """All that can be read, newest first; unreadable ones are skipped with a warning. Raises `LogUnavailable`.

        With `at_most`, only those up to that sequence.
        """
        ...


class AlreadyLed(RollbookError):
    """Another projector owns the fleet."""

    def __init__(self, fleet: str, owner: str, since: str) -> None:
        super().__init__(
            f"fleet {fleet!r} is led by {owner} since {since}. A fleet has one controller: stop that one first, or "
            "wait until its claim runs out if it is gone"
        )
        self.owner = owner


class Leadership(Protocol):
    """The right to act for a fleet, held by one process at a time."""

    async def acquire(self, owner: str) -> int:
        """Take it and return the epoch, higher than every earlier one. Raises `AlreadyLed` or `LogUnavailable`."""
        ...

    def left(self) -> float:
        """Seconds for which it is certainly still held [I7]; 0 or less if it is not."""
        ...

    async def free(self) -> None:
        """Wait until it may be had: given back or run out. Somebody else may still be faster. For standbys."""
        ...

    async def lost(self) -> str:
        """Wait until it is lost without having been released; return why."""
        ...

    async def release(self) -> bool:
        """Give it back; return whether it was held and is free now. Does nothing if it is not held. Never raises."""
        ...
