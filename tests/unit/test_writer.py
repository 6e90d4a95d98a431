"""The fenced writer of one proxy's subject: in order, once, and only as long as nobody else writes there."""

import asyncio
import math

import pytest
from support.core import CODEC, FLEET
from support.fleet import Fleet, on_virtual_time

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.faults import LogFaults
from rollbook.events import Draft, LeadershipTaken, ProxyReachable
from rollbook.events.subjects import proxy_subject
from rollbook.projections.log.authority import Deposed, LeadershipLost
from rollbook.projections.log.projector import Projector
from rollbook.projections.log.writer import MOST_IN_A_BATCH, FencedWriter
from rollbook.projections.resources import Resources

FOLDING = []
"""Tasks that nobody else keeps; they end with their loop."""


class Always:
    """A lease without an end."""

    def left(self):
        return math.inf


def writer(fleet, owner="one", proxy="a", leadership=None):
    resources = Resources(
        log=fleet.log,
        snapshots=fleet.snapshots,
        leadership=leadership or Always(),
        provider=fleet.provider,
        readiness=fleet.readiness,
        clock=fleet.clock,
        ids=fleet.ids,
        rng=fleet.rng,
        owner=owner,
    )
    projector = Projector(fleet.log, CODEC, fleet.clock)
    FOLDING.append(asyncio.get_running_loop().create_task(projector.run()))
    return FencedWriter(proxy, FLEET, projector, resources)


def fact(number):
    return ProxyReachable(proxy="a", version=str(number))


def versions(fleet):
    return [int(found.version) for found in fleet.facts(ProxyReachable)]


def count_appends(fleet):
    """How many drafts each append had."""
    sizes, append = [], fleet.log.append

    async def counted(drafts, *, expect=None):
        sizes.append(len(drafts))
        return await append(drafts, expect=expect)

    fleet.log.append = counted
    return sizes


@on_virtual_time
async def test_facts_of_many_go_in_order_and_together_while_an_append_is_under_way():
    fleet = Fleet()
    fleet.log.faults = LogFaults(slowest_append=0.1)
    one = writer(fleet)
    await one.take_over("one", 1)
    sizes = count_appends(fleet)
    sequences = await asyncio.gather(*(one.write(fact(number)) for number in range(MOST_IN_A_BATCH + 100)))
    assert versions(fleet) == list(range(MOST_IN_A_BATCH + 100))
    assert sequences == list(range(2, MOST_IN_A_BATCH + 102))
    assert sizes == [MOST_IN_A_BATCH, 100]


@on_virtual_time
async def test_several_facts_at_once_give_the_last_ones_sequence():
    fleet = Fleet()
    one = writer(fleet)
    assert await one.take_over("one", 1) == 1
    assert await one.write(fact(1), fact(2), fact(3)) == 4


@on_virtual_time
async def test_what_is_unknown_is_appended_again_and_stored_once():
    """[I5]."""
    fleet = Fleet()
    one = writer(fleet)
    await one.take_over("one", 1)
    fleet.log.faults = LogFaults(refuse=0.3, lose_answer=0.3, store_late=0.2, latest=2, slowest_append=0.2)
    await asyncio.gather(*(one.write(fact(number)) for number in range(20)))
    for number in range(20, 30):
        await one.write(fact(number))
    fleet.log.faults = LogFaults()
    await asyncio.sleep(10)
    assert versions(fleet) == list(range(30))


@on_virtual_time
async def test_it_waits_while_the_log_is_away():
    fleet = Fleet()
    one = writer(fleet)
    await one.take_over("one", 1)
    fleet.log.cut_off()
    writing = asyncio.create_task(one.write(fact(1)))
    await asyncio.sleep(60)
    assert not writing.done()
    fleet.log.available = True
    assert await writing == 2


@on_virtual_time
async def test_everyone_who_waits_learns_that_somebody_else_writes():
    """[I7]: and nothing of it is stored."""
    fleet = Fleet()
    one, two = writer(fleet, "one"), writer(fleet, "two")
    await one.take_over("one", 1)
    await one.write(fact(1))
    await two.take_over("two", 2)
    ended = await asyncio.gather(*(one.write(fact(number)) for number in range(5)), return_exceptions=True)
    assert [type(exc) for exc in ended] == [Deposed] * 5
    assert await two.write(fact(7)) == 4
    assert versions(fleet) == [1, 7]
    with pytest.raises(Deposed):
        await one.write(fact(8))


@on_virtual_time
async def test_taking_over_goes_on_until_it_has_the_last_word():
    """Its predecessor still writes, and answers are lost."""
    fleet = Fleet()
    one, two = writer(fleet, "one"), writer(fleet, "two")
    await one.take_over("one", 1)
    fleet.log.faults = LogFaults(slowest_append=0.05, lose_answer=0.3)

    async def predecessor():
        for number in range(1000):
            await one.write(fact(number))

    writing = asyncio.create_task(predecessor())
    await asyncio.sleep(1)
    await two.take_over("two", 2)
    with pytest.raises(Deposed):
        await writing
    fleet.log.faults = LogFaults()
    taken = next(r.sequence for r in fleet.recorded() if isinstance(r.fact, LeadershipTaken) and r.fact.owner == "two")
    assert await two.write(fact(5000)) == len(fleet.log.messages)
    assert {r.source for r in fleet.recorded() if r.sequence > taken} == {f"rollbook://{FLEET}/two"}


@on_virtual_time
async def test_proxies_do_not_disturb_each_other():
    fleet = Fleet()
    one, other = writer(fleet), writer(fleet, proxy="b")
    await one.take_over("one", 1)
    await other.take_over("one", 1)
    for number in range(3):
        await one.write(fact(number))
        await other.write(ProxyReachable(proxy="b"))
    assert [stored.fact.proxy for stored in fleet.recorded()] == ["a", "b"] * 4


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), KeyError("another")])
@on_virtual_time
async def test_an_error_of_the_log_that_is_not_ours_reaches_everyone_who_waits(error):
    fleet = Fleet()
    one = writer(fleet)
    await one.take_over("one", 1)

    async def broken(drafts, *, expect=None):
        raise error

    fleet.log.append = broken
    ended = await asyncio.gather(*(one.write(fact(number)) for number in range(3)), return_exceptions=True)
    assert ended == [error] * 3


@on_virtual_time
async def test_closing_leaves_what_was_not_appended():
    fleet = Fleet()
    one = writer(fleet)
    await one.take_over("one", 1)
    fleet.log.cut_off()
    writing = asyncio.create_task(one.write(fact(1)))
    await asyncio.sleep(1)
    writing.cancel()
    await one.close()
    fleet.log.available = True
    await asyncio.sleep(10)
    assert versions(fleet) == []


@on_virtual_time
async def test_i9_garbage_on_its_subject_deposes_nobody():
    fleet = Fleet()
    one = writer(fleet)
    await one.take_over("one", 1)
    await one.write(fact(1))
    await fleet.log.append([Draft(proxy_subject(FLEET, "a"), "not-an-id", b"garbage")])
    await fleet.log.append([Draft(proxy_subject(FLEET, "a"), "nor-this", b"{}")])
    await asyncio.gather(*(one.write(fact(number)) for number in range(2, 5)))
    assert versions(fleet) == [1, 2, 3, 4]


@on_virtual_time
async def test_who_is_deposed_writes_no_second_fact_either():
    """[I7] By then it has looked up what its successor wrote last, and the log alone would not refuse it."""
    fleet = Fleet()
    one, two = writer(fleet, "one"), writer(fleet, "two")
    await one.take_over("one", 1)
    await two.take_over("two", 2)
    for number in (1, 2):
        with pytest.raises(Deposed):
            await one.write(fact(number))
    assert versions(fleet) == []


@pytest.mark.parametrize("seed", range(150))
def test_i7_of_two_takeovers_at_once_the_higher_epoch_has_the_last_word(seed):
    """Whoever begins first, whatever is slow or lost: the other one is deposed and writes nothing more."""

    async def take(fleet, one, epoch, pause):
        await asyncio.sleep(pause)
        try:
            await one.take_over(f"owner-{epoch}", epoch)
            for number in range(5):
                await one.write(fact(10 * epoch + number))
                await asyncio.sleep(fleet.rng.uniform(0, 0.05))
        except Deposed:
            return False
        return True

    async def main():
        fleet = Fleet()
        fleet.rng.seed(seed)
        fleet.log.faults = LogFaults(
            slowest_append=0.1, slowest_delivery=0.1, lose_answer=0.2, refuse=0.1, store_late=0.1, latest=0.3
        )
        writers = {epoch: writer(fleet, f"owner-{epoch}") for epoch in (1, 2, 3)}
        pauses = {epoch: fleet.rng.uniform(0, 0.3) for epoch in writers}
        kept = dict(
            zip(
                writers,
                await asyncio.gather(*(take(fleet, one, epoch, pauses[epoch]) for epoch, one in writers.items())),
                strict=True,
            )
        )
        fleet.log.faults = LogFaults()
        await asyncio.sleep(5)
        assert kept[3]
        for epoch in (1, 2):
            with pytest.raises(Deposed):
                await writers[epoch].write(fact(99))
        assert await writers[3].write(fact(100)) == len(fleet.log.messages)
        leader = 0
        for recorded in fleet.recorded():
            if isinstance(recorded.fact, LeadershipTaken):
                assert recorded.fact.epoch > leader
                leader = recorded.fact.epoch
            else:
                assert recorded.source.endswith(f"owner-{leader}")
        assert leader == 3
        assert [version for version in versions(fleet) if version >= 30] == [30, 31, 32, 33, 34, 100]

    virtual.run(main())


@on_virtual_time
async def test_i7_nothing_is_appended_once_the_lease_is_over():
    class Lease:
        seconds = 1.0

        def left(self):
            return self.seconds

    fleet, lease = Fleet(), Lease()
    one, two = writer(fleet, leadership=lease), writer(fleet, proxy="b", leadership=lease)
    await one.take_over("one", 1)
    await one.write(fact(1))
    lease.seconds = 0.0
    with pytest.raises(LeadershipLost, match="the lease is over; this controller stands down"):
        await one.write(fact(2))
    with pytest.raises(LeadershipLost):
        await two.take_over("one", 1)
    assert len(fleet.log.messages) == 2
