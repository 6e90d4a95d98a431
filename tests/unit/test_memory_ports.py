"""The small parts in memory: provider, readiness, ids, and the seat that is lost."""

import asyncio
import random

import pytest

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.ids import SeededIds
from rollbook.adapters.memory.leadership import MemoryLeadership, Seat
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.projections.ports import (
    AlreadyLed,
    HostAndPort,
    Located,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerUnreachable,
)

HERE = HostAndPort("10.0.0.1", 8000)


def test_the_provider_answers_what_is_true_when_it_answers():
    async def main():
        provider = MemoryProvider(LoopClock())
        with pytest.raises(UnknownWorker):
            await provider.get_addr("w")
        assert await provider.locate(["w"]) == {}
        provider.place("w", incarnation=3, addresses={"primary": HERE}, serving=False)
        assert await provider.get_addr("w") == HERE
        assert await provider.list_workers() == [ProviderWorker("w", 3, alive=True, serving=False)]
        provider.seconds = 2.0
        asking = asyncio.create_task(provider.locate(["w", "x"]))
        await asyncio.sleep(1)
        provider.kill("w")
        assert await asking == {"w": Located({"primary": HERE}, 3, alive=False)}
        with pytest.raises(WorkerUnreachable, match="is dead"):
            await provider.get_addr("w")
        provider.place("w", incarnation=4, addresses={})
        with pytest.raises(WorkerUnreachable, match="has no address now"):
            await provider.get_addr("w")
        provider.available = False
        for call in (provider.get_addr("w"), provider.locate(["w"]), provider.list_workers()):
            with pytest.raises(ProviderUnavailable):
                await call
        provider.available = True
        provider.forget("w")
        assert await provider.list_workers() == []

    virtual.run(main())


def test_readiness_answers_what_is_true_when_it_answers():
    async def main():
        readiness = MemoryReadiness(LoopClock(), seconds=1.0)
        readiness.serve("http://a")
        asking = asyncio.create_task(readiness.check("http://a", "/health"))
        await asyncio.sleep(0.5)
        readiness.serve("http://a", "503 busy")
        assert await asking == "503 busy"

    virtual.run(main())


def test_ids_are_the_same_for_the_same_seed_only():
    one, same, other = SeededIds(random.Random(1)), SeededIds(random.Random(1)), SeededIds(random.Random(2))
    made = [one.new() for _ in range(1000)]
    assert made == [same.new() for _ in range(1000)]
    assert not set(made) & {other.new() for _ in range(1000)}


def test_a_seat_outlives_its_holder_until_it_is_vacated():
    async def main():
        clock, seat = LoopClock(), Seat("math-rl")
        first, second = MemoryLeadership(seat, clock), MemoryLeadership(seat, clock)
        assert await first.acquire("a") == 1
        with pytest.raises(AlreadyLed, match="led by a since"):
            await second.acquire("b")
        losing = asyncio.create_task(first.lost())
        await asyncio.sleep(1)
        assert not losing.done()
        seat.vacate("its process is gone")
        assert await losing == "its process is gone"
        assert await second.acquire("b") == 2
        await first.release()
        assert seat.owner == "b", "who does not hold it cannot give it back"
        await second.release()
        assert await first.acquire("a") == 3

    virtual.run(main())
