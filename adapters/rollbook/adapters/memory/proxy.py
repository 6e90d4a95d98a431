"""A router in memory that behaves as badly as real ones: it promises, forgets, lies, stalls and loses its answers.

Modelled on sglang-router. An add is accepted at once and carried out by a job of the router's own, which waits for the
worker to answer; a removal does not cancel it, so the entry may appear later: a ghost. Jobs share a few slots. A second
add of a listed URL fails, and the entry keeps its tags. A restart forgets everything, and no handle of before means
anything after it.

Its capabilities say which kind it is: one that tells its URLs and nothing else (`tag` False), that adds only (`remove`
False), that lets running requests end (`drain`), or that shows nothing at all (`list` False: a second add of a URL is
done already, and a removal takes the URL away).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import msgspec

from rollbook.adapters.memory.faults import NO_FAULTS, Chance, ProxyFaults
from rollbook.adapters.memory.jobs import Jobs
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.projections.ports import (
    Answer,
    Capabilities,
    Clock,
    Done,
    Entry,
    Failed,
    Listing,
    Pending,
    ProxyUnavailable,
    Target,
    Unsupported,
)

T = TypeVar("T")

Verb = Literal["add", "drain", "remove"]
Effect = Literal["listed", "removed", "lost"]
"""`lost`: not by an admin call."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One admin call, as it arrived."""

    at: float
    """Seconds on the clock's `monotonic`."""
    verb: Literal["list", "add", "drain", "remove", "outcome"]
    what: Target | Entry | Pending | None
    """What it was about; None for a listing."""


AS_SGLANG: Final = Capabilities(async_add=True, probes_on_add=True)
INTERVAL: Final = 1.0
"""Seconds between two looks at a worker that is to be added and does not answer."""
SYNCHRONOUS_LOOK: Final = 0.01
"""Seconds between two looks of a synchronous add at its job."""


class MemoryProxy:
    """A router of `fleet`. Use it from one event loop.

    `answers` says whether something listens at a URL now; an add waits `patience` seconds for it. With `async_add`
    False in `capabilities`, `add` itself waits for its job. Two hooks let a simulation assert what must be true at a
    moment: `on_call(verb, target or entry)` when an add, drain or removal is asked for, before anything else happens,
    and `on_effect(effect, entry)` when the listing has changed. What a hook raises goes to whoever called, if anybody
    did, and stands in `broken` in any case.
    """

    def __init__(
        self,
        name: str,
        fleet: str,
        clock: Clock,
        rng: random.Random,
        *,
        faults: ProxyFaults = NO_FAULTS,
        capabilities: Capabilities = AS_SGLANG,
        answers: Callable[[str], bool] = lambda _: True,
        patience: float = 6.0,
    ) -> None:
        self.faults = faults
        """May be replaced at any moment."""
        self.available = True
        """False: every call raises `ProxyUnavailable` and has no effect."""
        self.stalled = False
        """True: calls that arrive are never answered and have no effect."""
        self.calls: list[Call] = []
        self.on_call: Callable[[Verb, Target | Entry], None] | None = None
        self.on_effect: Callable[[Effect, Entry], None] | None = None
        self.broken: list[BaseException] = []
        """What the hooks and the router's own jobs raised."""
        self._name = name
        self._fleet = fleet
        self._clock = clock
        self._chance = Chance(rng)
        self._capabilities = capabilities
        self._answers = answers
        self._patience = patience
        self._context = contextvars.copy_context()
        self._handles = 0
        self._boot()

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self._name

    @property
    def kind(self) -> str:
        """`memory`."""
        return "memory"

    @property
    def capabilities(self) -> Capabilities:
        """What it was made with."""
        return self._capabilities

    @property
    def listed(self) -> tuple[Entry, ...]:
        """What it lists now, without a call."""
        return tuple(self._entries.values())

    def canonical_url(self, url: str) -> str:
        """The spelling under which it lists `url`. Raises `UnusableURL`, a `ValueError`."""
        return canonical_url(url)

    # -------------------------------------------------------------- the port

    async def list(self) -> Listing:
        """What it lists, at some moment between the call and the answer. Raises `ProxyUnavailable`."""
        self._note("list", None)
        if not self._capabilities.list:
            raise ProxyUnavailable(f"{self._name}: this router has no listing")
        return await self._call(lambda: Listing(self.listed, version="memory"))

    async def add(self, target: Target) -> Answer:
        """Accept the add; its job decides. Raises `ProxyUnavailable`."""
        self._note("add", target)
        self._hook(self.on_call, "add", target)
        pending = await self._call(lambda: self._accept(target), changes=True)
        if self._capabilities.async_add:
            return pending
        while isinstance(answer := self._outcomes.get(pending.handle), Pending):
            await self._clock.sleep(SYNCHRONOUS_LOOK)
        if answer is None:
            raise ProxyUnavailable(f"{self._name}: restarted before it answered")
        return answer

    async def drain(self, entry: Entry) -> Answer:
        """Send the entry nothing new; what runs there ends some time later. Raises `ProxyUnavailable`."""
        self._note("drain", entry)
        if not self._capabilities.drain:
            return Unsupported("this router cannot drain")
        self._hook(self.on_call, "drain", entry)
        await self._call(lambda: self._quieten(entry.handle), changes=True)
        return Done()

    async def remove(self, entry: Entry) -> Answer:
        """Accept the removal of the entry with that handle; one that is gone is no error. Raises `ProxyUnavailable`."""
        self._note("remove", entry)
        if not self._capabilities.remove:
            return Unsupported("this router has no removal")
        self._hook(self.on_call, "remove", entry)
        await self._call(lambda: self._discard(entry.handle), changes=True)
        return Done()

    async def outcome(self, pending: Pending) -> Answer:
        """What became of an add; `Pending` also after a restart, which forgets it. Raises `ProxyUnavailable`."""
        self._note("outcome", pending)
        return await self._call(lambda: self._outcomes.get(pending.handle, pending))

    async def close(self) -> None:
        """End its jobs, so that no task is left."""
        await self._jobs.close()

    # -------------------------------------------------------------- what happens to a router

    def restart(self) -> None:
        """Forget everything, as a process that starts anew."""
        lost = self.listed
        self._jobs.cancel()
        self._boot()
        for entry in lost:
            self._tell("lost", entry)

    def put(
        self, url: str, *, fleet: str | None = None, worker: str | None = None, incarnation: int | None = None
    ) -> Entry:
        """Somebody else adds an entry, whatever is there already."""
        entry = Entry(url=url, handle=self._handle(), fleet=fleet, worker=worker, incarnation=incarnation, healthy=True)
        self._entries[entry.handle] = entry
        self._tell("listed", entry)
        return entry

    def load(self, entry: Entry, running: int) -> None:
        """From now on it works on so many requests of the entry, of which its listing tells if it can drain."""
        self._entries[entry.handle] = msgspec.structs.replace(self._entries[entry.handle], running=running)

    def drop(self, entry: Entry) -> None:
        """The router loses an entry by itself."""
        if self._entries.pop(entry.handle, None) is not None:
            self._tell("lost", entry)

    # -------------------------------------------------------------- inside

    def _boot(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._outcomes: dict[str, Answer] = {}
        self._jobs = Jobs(self._context, self.broken)

    def _handle(self) -> str:
        self._handles += 1
        return f"{self._name}-{self._handles}"

    def _note(
        self, verb: Literal["list", "add", "drain", "remove", "outcome"], what: Target | Entry | Pending | None
    ) -> None:
        self.calls.append(Call(self._clock.monotonic(), verb, what))

    def _tell(self, effect: Effect, entry: Entry) -> None:
        self._hook(self.on_effect, effect, entry)

    def _hook(self, hook: Callable[..., None] | None, *about: object) -> None:
        if hook is None:
            return
        try:
            hook(*about)
        except BaseException as exc:
            self.broken.append(exc)
            raise

    async def _call(self, act: Callable[[], T], *, changes: bool = False) -> T:
        """The way of a call: to the router, its effect, and back; each part can fail."""
        if self.stalled:
            await asyncio.Event().wait()
        faults, chance = self.faults, self._chance
        await self._clock.sleep(chance.up_to(faults.slowest_call / 2))
        if not self.available or chance.hits(faults.refuse):
            raise ProxyUnavailable(f"{self._name}: no connection")
        if changes and chance.hits(faults.act_late):
            self._jobs.start(self._later(chance.up_to(faults.latest), act))
            raise ProxyUnavailable(f"{self._name}: no answer; the call is still under way")
        result = act()
        await self._clock.sleep(chance.up_to(faults.slowest_call / 2))
        if chance.hits(faults.lose_answer):
            raise ProxyUnavailable(f"{self._name}: the answer was lost")
        return result

    async def _later(self, seconds: float, act: Callable[[], object]) -> None:
        await self._clock.sleep(seconds)
        act()

    def _accept(self, target: Target) -> Pending:
        pending = Pending(self._handle() if self._capabilities.list else target.url)
        self._outcomes[pending.handle] = pending
        if not self._chance.hits(self.faults.lie):
            self._jobs.start(self._register(pending.handle, target))
        return pending

    def _quieten(self, handle: str) -> None:
        if handle in self._entries and not self._chance.hits(self.faults.lie):
            self._entries[handle] = msgspec.structs.replace(self._entries[handle], in_rotation=False)
            self._jobs.start(self._finish(handle))

    async def _finish(self, handle: str) -> None:
        await self._clock.sleep(self._chance.up_to(self.faults.longest_request))
        if handle in self._entries:
            self.load(self._entries[handle], 0)

    def _discard(self, handle: str) -> None:
        if handle in self._entries and not self._chance.hits(self.faults.lie):
            self._jobs.start(self._unregister(handle))

    async def _register(self, handle: str, target: Target) -> None:
        async with self._jobs.slots:
            await self._clock.sleep(self._chance.up_to(self.faults.slowest_job))
            failure = await self._probe(target.url)
            if failure is None and handle not in self._entries and self._has(target.url):
                failure = Failed(f"{target.url} already exists")
            self._outcomes[handle] = failure or Done()
            if failure is None:
                entry = Entry(
                    url=target.url, handle=handle, healthy=True, running=0 if self._capabilities.drain else None
                )
                if self._capabilities.tag:
                    entry = msgspec.structs.replace(
                        entry, fleet=self._fleet, worker=target.worker, incarnation=target.incarnation
                    )
                self._entries[handle] = entry
                self._tell("listed", entry)

    def _has(self, url: str) -> bool:
        return any(entry.url == url for entry in self._entries.values())

    async def _probe(self, url: str) -> Failed | None:
        if self._chance.hits(self.faults.fail_job):
            return Failed("the router's job failed")
        if not self._capabilities.probes_on_add:
            return None
        until = self._clock.monotonic() + self._patience
        while not self._answers(url):
            if self._clock.monotonic() >= until:
                return Failed(f"{url} did not answer within {self._patience:g} s")
            await self._clock.sleep(INTERVAL)
        return None

    async def _unregister(self, handle: str) -> None:
        async with self._jobs.slots:
            await self._clock.sleep(self._chance.up_to(self.faults.slowest_job))
            entry = self._entries.pop(handle, None)
            if entry is not None:
                self._outcomes.pop(handle, None)
                self._tell("removed", entry)
