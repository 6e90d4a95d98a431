"""What every `Clock` must do, asked of the machine's, on a real loop, and of the loop's own, on virtual time."""

import asyncio

import pytest

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import LoopClock

YEAR_2020 = 1_577_836_800


@pytest.fixture(params=["loop", "system"])
def on_clock(request):
    """Runs a test's `main(clock)` on the loop that the clock is for."""
    if request.param == "loop":
        return lambda main: virtual.run(main(LoopClock()))
    return lambda main: asyncio.run(main(SystemClock()))


def test_now_is_in_seconds_since_the_epoch(on_clock):
    async def main(clock):
        return clock.now()

    assert YEAR_2020 < on_clock(main) < 2 * YEAR_2020


def test_monotonic_never_goes_backwards(on_clock):
    async def main(clock):
        read = []
        for number in range(100):
            read.append(clock.monotonic())
            await clock.sleep(0.001 * (number % 3))
        return read

    read = on_clock(main)
    assert read == sorted(read)


@pytest.mark.parametrize("seconds", [0.0001, 0.001, 0.0137, 0.1])
def test_a_sleep_is_never_short(on_clock, seconds):
    async def main(clock):
        for _ in range(10):
            until = clock.monotonic() + seconds
            await clock.sleep(seconds)
            assert clock.monotonic() >= until

    on_clock(main)


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_sleep_of_nothing_lets_the_others_run_and_returns(on_clock, seconds):
    async def main(clock):
        ran = []
        other = asyncio.create_task(clock.sleep(0))
        other.add_done_callback(lambda _: ran.append("other"))
        while not ran:
            await clock.sleep(seconds)
        return ran

    assert on_clock(main) == ["other"]


def test_sleeps_end_in_the_order_of_their_lengths(on_clock):
    async def main(clock):
        ended = []

        async def sleep(seconds):
            await clock.sleep(seconds)
            ended.append(seconds)

        await asyncio.gather(sleep(0.3), sleep(0.05), sleep(0.15))
        return ended

    assert on_clock(main) == [0.05, 0.15, 0.3]


def test_a_sleep_can_be_cancelled(on_clock):
    async def main(clock):
        sleeping = asyncio.create_task(clock.sleep(1_000_000))
        await clock.sleep(0.01)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping

    on_clock(main)
