"""`end` ends a task that loses cancellations, gives one that cleans up its time, and lets no failure out."""

import asyncio

import pytest
from support.fleet import on_virtual_time

from rollbook.projections.ending import PATIENCE_SECONDS, apart, end, in_turn


async def loses(cancellations):
    """As `wait_for` does when what it waited for comes in the same moment."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not cancellations:
                raise
            cancellations -= 1


async def started(*works):
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("cancellations", [0, 1, 3])
@on_virtual_time
async def test_a_task_that_loses_cancellations_is_ended(cancellations):
    loop = asyncio.get_running_loop()
    [task] = await started(loses(cancellations))
    begin = loop.time()
    await end(task, patience=2.0)
    assert task.cancelled()
    assert loop.time() - begin == 2.0 * cancellations


@on_virtual_time
async def test_who_cleans_up_is_not_cut_short():
    cleaned = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(PATIENCE_SECONDS - 1)
            cleaned.append(True)

    await end(*await started(work(), work()))
    assert cleaned == [True, True]


@on_virtual_time
async def test_what_has_ended_or_fails_is_nobodys_failure():
    async def fail(first):
        try:
            await asyncio.sleep(first)
        finally:
            raise ZeroDivisionError

    tasks = await started(fail(0), fail(1), loses(1))
    await asyncio.sleep(0.5)
    await end(*tasks)
    await end(*tasks)
    await end()
    assert all(task.done() for task in tasks)


@on_virtual_time
async def test_who_is_cancelled_while_it_ends_others_is_so_afterwards():
    """[I7] Otherwise leadership would be given back while some of what acted under it still runs."""
    cleaned = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append(True)

    async def give_back():
        try:
            await asyncio.Event().wait()
        finally:
            await end(*working)
            cleaned.append("given back")

    working = await started(work(), work())
    [ending] = await started(give_back())
    ending.cancel()
    await asyncio.sleep(1)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert cleaned == [True, True]
    assert all(task.done() for task in working)


@pytest.mark.parametrize("interrupted", [0.5, 1.5, 2.5])
@on_virtual_time
async def test_who_is_cancelled_between_several_endings_leaves_none_out(interrupted):
    """[I7] What is left running would act when its process leads again, on what was true before."""

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)

    working = await started(work(), work(), work())
    [ending] = await started(in_turn(*(lambda task=task: end(task) for task in working)))
    await asyncio.sleep(interrupted)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert all(task.done() for task in working)


@on_virtual_time
async def test_a_deadline_in_what_cleans_up_is_one():
    """Python 3.11.2, which Debian has, makes a cancellation of it where the task has been cancelled."""
    cleaned = []

    async def clean_up():
        try:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        except TimeoutError:
            cleaned.append("late")
        cleaned.append("done")

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await apart(clean_up())

    await end(*await started(work()))
    assert cleaned == ["late", "done"]
