"""The log in memory misbehaves as it is told, and in no other way."""

import asyncio
import random

import pytest

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.faults import LogFaults
from rollbook.adapters.memory.log import MemoryLog
from rollbook.events import Draft
from rollbook.projections.ports import AppendConflict, LogUnavailable


def draft(number, subject="s"):
    return Draft(subject, f"id-{number}", str(number).encode())


def on_a_log(test, **options):
    """Run `test(log)` on virtual time."""

    async def main():
        return await test(MemoryLog(LoopClock(), random.Random(1), **options))

    return virtual.run(main())


def read_until(log, last, *, restarts):
    """Read as a careful reader does, checking that nothing is missing; count how often it had to begin anew."""

    async def reading():
        position = 0
        while position < last:
            batches = log.read(position)
            try:
                async for batch in batches:
                    for stored in batch:
                        if stored.sequence != position + 1:
                            break
                        position += 1
                    else:
                        if position == last:
                            return
                        continue
                    break
            except LogUnavailable:
                pass
            finally:
                await batches.aclose()
            restarts.append(position)

    return reading()


def test_a_lost_answer_is_found_by_trying_again():
    async def test(log):
        with pytest.raises(LogUnavailable):
            await log.append([draft(1)])
        log.faults = LogFaults()
        assert await log.append([draft(1)]) == [1]
        assert len(log.messages) == 1

    on_a_log(test, faults=LogFaults(lose_answer=1.0))


def test_a_refused_append_is_not_stored():
    async def test(log):
        with pytest.raises(LogUnavailable):
            await log.append([draft(1)])
        assert len(log.messages) == 0

    on_a_log(test, faults=LogFaults(refuse=1.0))


def test_a_late_append_is_stored_after_its_author_gave_up_and_even_died():
    async def test(log):
        loop = asyncio.get_running_loop()

        async def author():
            await log.append([draft(1)])

        process, task = loop.spawn("author", author())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.kill()
        task.cancel()
        assert len(log.messages) == 0
        await asyncio.sleep(5)
        assert [stored.payload for stored in log.messages] == [b"1"]

    on_a_log(test, faults=LogFaults(store_late=1.0, latest=5.0))


def test_a_late_append_respects_what_happened_since():
    async def test(log):
        with pytest.raises(LogUnavailable):
            await log.append([draft(1)], expect={"s": 0})
        log.faults = LogFaults()
        assert await log.append([draft(2)], expect={"s": 0}) == [1]
        await asyncio.sleep(10)
        assert [stored.payload for stored in log.messages] == [b"2"]

    on_a_log(test, faults=LogFaults(store_late=1.0, latest=5.0))


def test_an_id_is_remembered_within_the_window_and_beyond_it_by_what_was_expected():
    async def test(log):
        await log.append([draft(0)])
        assert await log.append([draft(1)], expect={"s": 1}) == [2]
        await asyncio.sleep(9)
        assert await log.append([draft(1)]) == [2]
        await asyncio.sleep(2)
        assert await log.append([draft(1)], expect={"s": 1}) == [2], "its own message stands after what it expected"
        assert await log.append([draft(1)]) == [3], "without that, it is a new message"
        with pytest.raises(AppendConflict):
            await log.append([draft(9)], expect={"s": 2})

    on_a_log(test, window=10.0)


def test_a_dropped_batch_is_a_gap_or_a_missed_heartbeat():
    async def test(log):
        for number in range(1, 31):
            await log.append([draft(number)])
        restarts = []
        log.faults = LogFaults(drop_batch=0.5, most_in_a_batch=3, heartbeat=1.0)
        async with asyncio.timeout(600):
            await read_until(log, 30, restarts=restarts)
        assert restarts, "batches were dropped"

    on_a_log(test)


def test_reading_can_end_at_any_batch():
    async def test(log):
        for number in range(1, 31):
            await log.append([draft(number)])
        restarts = []
        log.faults = LogFaults(end_reading=0.3, most_in_a_batch=3)
        await read_until(log, 30, restarts=restarts)
        assert restarts

    on_a_log(test)


def test_an_outage_cuts_readers_off_and_ends():
    async def test(log):
        await log.append([draft(1)])

        async def read():
            async for _ in log.read(0):
                pass

        reading = asyncio.create_task(read())
        await asyncio.sleep(1)
        log.cut_off()
        with pytest.raises(LogUnavailable):
            await reading
        for call in (log.append([draft(2)]), log.state(), log.get(1), log.last("s")):
            with pytest.raises(LogUnavailable):
                await call
        log.available = True
        assert await log.append([draft(2)]) == [2]

    on_a_log(test)


def test_losing_head_and_tail():
    async def test(log):
        for number in range(1, 6):
            await log.append([draft(number)])
        log.lose_tail(4)
        log.lose_head(3)
        ends = await log.state()
        assert (ends.first_sequence, ends.last_sequence) == (3, 4)
        assert await log.get(2) is None
        assert await log.get(5) is None
        assert (await log.last("s")).sequence == 4
        assert await log.append([draft(5)], expect={"s": 4}) == [5], "it is not remembered that this id was there"
        async for batch in log.read(0):
            assert [stored.sequence for stored in batch] == [3, 4, 5]
            break

    on_a_log(test)


def test_the_same_seed_misbehaves_in_the_same_way():
    async def test(log):
        outcomes = []
        for number in range(50):
            try:
                outcomes.append(await log.append([draft(number)]))
            except LogUnavailable as exc:
                outcomes.append(str(exc))
        return outcomes, asyncio.get_running_loop().time()

    faults = LogFaults(slowest_append=1.0, refuse=0.2, lose_answer=0.2, store_late=0.2)
    assert on_a_log(test, faults=faults) == on_a_log(test, faults=faults)
