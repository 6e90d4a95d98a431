"""A full pass that finds nothing to do: what it costs to plan, against a plain loop over the same entries.

10,000 and 100,000 workers, each listed by four proxies in memory. The plain loop makes two dictionary look-ups and one
comparison for each entry, which is the least that a comparison of a listing with a record could do.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from bench.figures import Figure, ms, p50
from bench.stage import FLEET
from rollbook.events import Fact, Recorded, Registered, WorkerUp
from rollbook.projections.deciding.settled import Settled
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.ports import Capabilities, Entry, Listing
from rollbook.projections.state.fold import State

COUNTS = (10_000, 100_000)
PROXIES = tuple(f"router-{letter}" for letter in "abcd")
ROUNDS = 15


async def measure() -> list[Figure]:
    """Both sizes, in turns with the plain loop."""
    return [await asyncio.to_thread(_measure, count) for count in COUNTS]


def _measure(count: int) -> Figure:
    served = {name: ProxyPolicy(name=name, pools=("rollout",)) for name in PROXIES}
    policy = Policy(fleet=FLEET, pools={"rollout": PoolPolicy()}, proxies=served)
    state = _state(count)
    listings = {name: _listing(name, count) for name in PROXIES}
    indexes = {name: Settled(policy, served[name], Capabilities(), lambda _: "rollout") for name in PROXIES}

    def planned() -> None:
        for name in PROXIES:
            made = indexes[name].plan(state, listings[name], None, {})
            if made.plan.actions or made.sizes != {"rollout": count}:
                raise AssertionError(f"the pass at {name} found something to do")

    incarnations = {name: worker.incarnation for name, worker in state.roster.workers.items()}
    urls = {name: _url(name) for name in incarnations}

    def plain() -> None:
        for proxy in PROXIES:
            for entry in listings[proxy].entries:
                name = entry.worker or ""
                if incarnations[name] != entry.incarnation or name not in urls:
                    raise AssertionError(f"{proxy} lists what is not registered")

    planned()
    ours, theirs = _in_turns(planned, plain)
    note = f"{count:,} workers x {len(PROXIES)} proxies: {ms(ours)} against {ms(theirs)}; medians of {ROUNDS} in turns"
    name = f"planning a pass with nothing to do, {count:,} workers"
    return Figure(name=name, value=ours / theirs, target=5.0, better="lower", unit="x a plain loop", note=note)


def _in_turns(*calls: Callable[[], None]) -> list[float]:
    """The median of each, in seconds."""
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, samples, strict=True):
            gc.collect()
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [p50(taken) for taken in samples]


def _state(count: int) -> State:
    """Every worker up, and registered at every proxy."""
    state = State()
    for worker in map(_name, range(count)):
        state.roster.apply(_recorded(state, WorkerUp(worker=worker, incarnation=1)))
        for proxy in PROXIES:
            fact = Registered(proxy=proxy, worker=worker, incarnation=1, url=_url(worker))
            state.ledger.apply(_recorded(state, fact))
    return state


def _recorded(state: State, fact: Fact) -> Recorded:
    state.sequence += 1
    return Recorded(state.sequence, str(state.sequence), "2026-01-01T00:00:00Z", "bench", fact)


def _listing(proxy: str, count: int) -> Listing:
    """New objects, as a router's answer is each time."""
    return Listing(
        tuple(
            Entry(url=_url(worker), handle=f"{proxy}/{worker}", fleet=FLEET, worker=worker, incarnation=1)
            for worker in map(_name, range(count))
        )
    )


def _name(number: int) -> str:
    return f"rollout-{number}-0"


def _url(worker: str) -> str:
    number = int(worker.split("-")[1])
    return f"http://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000"
