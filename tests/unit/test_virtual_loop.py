"""The loop on virtual time: time jumps, schedules repeat, what hangs is named, and a killed process runs no further."""

import asyncio
import gc
import itertools

import pytest

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import EPOCH, LoopClock
from rollbook.adapters.memory.virtual import Deadlock, Livelock


def test_time_jumps_to_the_next_timer_and_starts_where_it_is_told():
    async def main():
        clock = LoopClock()
        before = clock.monotonic()
        await clock.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return before, clock.monotonic(), clock.now()

    assert virtual.run(main()) == (0.0, 3660.0, EPOCH + 3660.0)
    assert virtual.run(main(), start=5.0) == (5.0, 3665.0, EPOCH + 3665.0)


def test_timers_fire_in_the_order_of_their_times_and_cancelled_ones_do_not():
    async def main():
        order = []
        loop = asyncio.get_running_loop()
        for seconds in (3.0, 1.0, 2.0, 1.5):
            handle = loop.call_later(seconds, order.append, (seconds))
            if seconds == 1.5:
                handle.cancel()
        await asyncio.sleep(10)
        return order, loop.time()

    assert virtual.run(main()) == ([1.0, 2.0, 3.0], 10.0)


def test_a_deadlock_names_who_waits_and_where():
    async def main():
        async def wait_for_nobody():
            await asyncio.Event().wait()

        await asyncio.create_task(wait_for_nobody(), name="the lonely one")

    with pytest.raises(Deadlock, match=r"(?s)at 0.0.* no timer is set.*the lonely one: .* in Event.wait"):
        virtual.run(main())


def test_a_livelock_ends(monkeypatch):
    monkeypatch.setattr(virtual, "MOST_ROUNDS_AT_ONE_MOMENT", 1000)

    async def main():
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="without time going on"):
        virtual.run(main())


def test_what_main_leaves_behind_is_cancelled():
    ended = []

    async def background():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append("finally")

    async def main():
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        return task

    assert virtual.run(main()).cancelled()
    assert ended == ["finally"]


def test_sets_of_tasks_are_walked_in_the_order_of_their_making():
    async def main():
        order = []

        async def note(number):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                order.append(number)
                raise

        async def fail():
            msg = "enough"
            raise ValueError(msg)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(note(number))
                group.create_task(fail())
        except ExceptionGroup:
            return order
        return None

    orders = [virtual.run(main()) for _ in range(3)]
    assert orders[0] == orders[1] == orders[2]


async def work(log, name):
    """Notes every second, and what a polite end would note."""
    try:
        for number in itertools.count():
            log.append((name, number))
            await asyncio.sleep(1)
    finally:
        log.append((name, "finally"))
        await asyncio.sleep(1)


def test_a_killed_process_runs_not_one_more_line_and_its_siblings_do():
    async def main():
        loop = asyncio.get_running_loop()
        log = []

        async def parent(name):
            async with asyncio.TaskGroup() as group:
                group.create_task(work(log, name))
                group.create_task(work(log, name + "'"))

        victim, _ = loop.spawn("victim", parent("v"))
        loop.spawn("other", parent("o"))
        await asyncio.sleep(1.5)
        victim.kill()
        await asyncio.sleep(2)
        gc.collect()
        return list(log)

    log = virtual.run(main())
    assert [entry for entry in log if entry[0][0] == "v"] == [("v", 0), ("v'", 0), ("v", 1), ("v'", 1)]
    assert ("o", 3) in log


@pytest.mark.parametrize("rounds", range(12))
def test_a_process_can_be_killed_between_any_two_steps(rounds):
    async def main():
        loop = asyncio.get_running_loop()
        steps = []

        async def stepping():
            for number in itertools.count():
                steps.append(number)
                await asyncio.sleep(0)

        process, _ = loop.spawn("stepping", stepping())
        for _ in range(rounds):
            await asyncio.sleep(0)
        done = len(steps)
        process.kill()
        await asyncio.sleep(1)
        return done, steps

    done, steps = virtual.run(main())
    assert steps == list(range(done))
    assert done == rounds


def test_what_others_hand_to_a_killed_process_is_not_taken():
    async def main():
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        taken = []

        async def waiting():
            taken.append(await answer)

        process, _ = loop.spawn("waiting", waiting())
        await asyncio.sleep(1)
        process.kill()
        answer.set_result("too late")
        await asyncio.sleep(1)
        return taken

    assert virtual.run(main()) == []


@pytest.mark.filterwarnings("error")
def test_a_killed_process_leaves_no_warnings(recwarn, capfd):
    async def generate():
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            await asyncio.sleep(1)

    async def reading():
        numbers = generate()
        try:
            async for _ in numbers:
                await asyncio.sleep(0.1)
        finally:
            await numbers.aclose()
            await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))

    async def main():
        loop = asyncio.get_running_loop()
        for seconds in (0.5, 1.05, 1.5):
            process, _ = loop.spawn("reading", reading())
            await asyncio.sleep(seconds)
            process.kill()

    for _ in range(3):
        virtual.run(main())
        gc.collect()
    assert not list(recwarn)
    assert capfd.readouterr().err == ""
