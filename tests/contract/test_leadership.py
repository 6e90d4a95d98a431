"""What every `Leadership` must do, asked of the one in memory and of JetStream's key-value store on a real server."""

import asyncio

import pytest
from support.nats import DEADLINE

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.memory.leadership import MemoryLeadership, Seat
from rollbook.projections.ports import AlreadyLed


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.integration)])
async def contender(request, fleet, nats_server):
    """Makes contenders for one fleet."""
    if request.param == "memory":
        seat = Seat(fleet)
        yield lambda: MemoryLeadership(seat, SystemClock())
        return
    client = await connect(Connection(url=nats_server.url), name="tests", timeout=DEADLINE)
    made = []

    def make():
        made.append(JetStreamLeadership(client, fleet, lease=DEADLINE))
        return made[-1]

    yield make
    for one in made:
        await one.release()
    await client.close()


async def is_waiting(task):
    """Whether it is still not done after the loop had every chance to run it."""
    done, _ = await asyncio.wait({task}, timeout=0.1)
    return not done


async def test_one_takes_it(contender):
    assert await contender().acquire("first") >= 1


async def test_a_second_is_refused_and_told_who_and_since_when(contender, fleet):
    """I7: at most one acts."""
    one, two = contender(), contender()
    await one.acquire("first-owner")
    with pytest.raises(AlreadyLed, match=r"is led by first-owner since 2\d\d\d-") as refused:
        await two.acquire("second-owner")
    assert refused.value.owner == "first-owner"
    assert fleet in str(refused.value)


async def test_it_is_free_at_once_after_a_release(contender):
    one, two = contender(), contender()
    await one.acquire("first")
    await one.release()
    await two.acquire("second")
    with pytest.raises(AlreadyLed, match="second"):
        await one.acquire("first")


async def test_every_epoch_is_higher_than_the_one_before(contender):
    """I7: whoever comes later outranks."""
    epochs = []
    for number in range(5):
        one = contender()
        epochs.append(await one.acquire(f"owner-{number}"))
        await one.release()
    assert epochs == sorted(set(epochs))


async def test_of_those_who_try_together_one_wins(contender):
    contenders = [contender() for _ in range(8)]
    results = await asyncio.gather(
        *(one.acquire(f"owner-{number}") for number, one in enumerate(contenders)), return_exceptions=True
    )
    assert len([result for result in results if isinstance(result, int)]) == 1
    assert len([result for result in results if isinstance(result, AlreadyLed)]) == 7


async def test_a_release_is_no_loss(contender):
    one = contender()
    await one.acquire("first")
    lost = asyncio.create_task(one.lost())
    await one.release()
    assert await is_waiting(lost)
    lost.cancel()


async def test_releasing_what_is_not_held_changes_nothing(contender):
    one, two = contender(), contender()
    await one.acquire("first")
    await two.release()
    with pytest.raises(AlreadyLed):
        await contender().acquire("third")
    await one.release()
    await one.release()
    await two.acquire("second")
    await one.release()
    with pytest.raises(AlreadyLed, match="second"):
        await contender().acquire("third")


async def test_something_is_left_of_it_as_long_as_it_is_held(contender):
    """I7: no call begins with less than its own deadline left."""
    one, two = contender(), contender()
    assert one.left() <= 0
    await one.acquire("first")
    assert one.left() > 0
    with pytest.raises(AlreadyLed):
        await two.acquire("second")
    assert two.left() <= 0
    await one.release()
    assert one.left() <= 0
    await two.acquire("second")
    assert one.left() <= 0 < two.left()


async def test_who_waits_learns_that_it_was_given_back(contender):
    one, two = contender(), contender()
    async with asyncio.timeout(DEADLINE):
        await two.free()
    await one.acquire("first")
    waiting = asyncio.create_task(two.free())
    assert await is_waiting(waiting)
    await one.release()
    async with asyncio.timeout(DEADLINE):
        await waiting
    await two.acquire("second")
