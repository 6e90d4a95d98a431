"""Any callable as a check: what its answers and failures mean, and that one that hangs uses up no threads."""

import asyncio
import threading

import msgspec
import pytest
from support.process import no_thread_left

from rollbook.adapters.health import OK, Finding, Outcome, Subject, called
from rollbook.projections.ports import Located

SUBJECT = Subject("rollout-0-0", 1, "rollout", "http://h:1", Located({}, 1), deep=False, due=0.0)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, Outcome.OK),
        (True, Outcome.OK),
        (OK, Outcome.OK),
        (False, Outcome.UNHEALTHY),
        ("out of memory", Outcome.UNHEALTHY),
        (0, Outcome.UNHEALTHY),
        (Finding(Outcome.BUSY, "full"), Outcome.BUSY),
    ],
)
async def test_what_it_answers(answer, outcome):
    async def asynchronous(_):
        return answer

    assert (await called(lambda _: answer)(SUBJECT)).outcome is outcome
    assert (await called(asynchronous)(SUBJECT)).outcome is outcome


async def test_an_object_with_an_async_call_is_awaited():
    class Check:
        async def __call__(self, subject):
            return subject.name

    assert await called(Check())(SUBJECT) == Finding(Outcome.UNHEALTHY, "rollout-0-0")


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (None, OK),
        ("out of memory", Finding(Outcome.UNHEALTHY, "out of memory")),
        (ConnectionRefusedError("nobody"), Finding(Outcome.REFUSED, "nobody")),
    ],
)
async def test_a_plain_one_that_calls_an_async_one_is_awaited(answer, finding):
    """It would count as an unhealthy worker otherwise: each of the pool would be down for it."""

    async def asynchronous(_, path):
        assert path == "/health"
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await called(lambda subject: asynchronous(subject, "/health"))(SUBJECT) == finding


async def test_nobody_there():
    async def asynchronous(_):
        raise ConnectionRefusedError("nobody")

    def plain(_):
        raise ConnectionRefusedError("nobody")

    for check in (called(plain), called(asynchronous)):
        assert await check(SUBJECT) == Finding(Outcome.REFUSED, "nobody")


async def test_anything_else_is_raised_for_the_monitor_to_count():
    def broken(_):
        raise KeyError("x")

    with pytest.raises(KeyError):
        await called(broken)(SUBJECT)


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt(), StopIteration("none left"), GeneratorExit()])
async def test_what_ends_a_program_or_a_loop_ends_no_monitor(exc):
    def broken(_):
        raise exc

    with pytest.raises(RuntimeError, match=type(exc).__name__):
        async with asyncio.timeout(5):
            await called(broken)(SUBJECT)


async def test_nor_does_an_async_one_that_exits():
    async def leaving(_):
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await called(leaving)(SUBJECT)


async def test_one_that_hangs_is_slow_and_is_called_once():
    import asyncio

    release, calls = threading.Event(), []

    def hangs(subject):
        calls.append(subject.name)
        release.wait(60)

    check = called(hangs)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await check(SUBJECT)
    for _ in range(3):
        assert (await check(SUBJECT)).outcome is Outcome.SLOW
    assert len(calls) == 1
    release.set()
    async with asyncio.timeout(30):
        while (await check(SUBJECT)).outcome is Outcome.SLOW:  # noqa: ASYNC110 - a thread ends when it ends
            await asyncio.sleep(0.01)
    assert len(calls) == 2


async def test_i3_a_call_that_hangs_says_nothing_of_the_next_life():
    release = threading.Event()

    def hangs(subject):
        if subject.incarnation == 1:
            release.wait(60)

    check = called(hangs)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await check(SUBJECT)
    assert (await check(SUBJECT)).outcome is Outcome.SLOW
    assert await check(msgspec.structs.replace(SUBJECT, incarnation=2)) == OK
    release.set()


async def test_a_monitor_without_a_thread_to_ask_on_shoots_nobody():
    check = called(lambda _: "ill")
    with no_thread_left():
        finding = await check(SUBJECT)
    assert finding == Finding(Outcome.UNKNOWN, "no thread to ask on: can't start new thread")
    assert (await check(SUBJECT)).outcome is Outcome.UNHEALTHY
