"""All or none: a step of several workers ends with the last of them, or with the first that fails."""

import asyncio

import pytest

from rollbook.adapters.ray.barrier import first, together, unless


class Steps:
    """Steps that tell what became of them."""

    def __init__(self):
        self.told = []

    async def wait(self, name, event=None):
        try:
            await (event or asyncio.Event()).wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.told.append(f"{name} ended")
            raise
        self.told.append(f"{name} done")
        return name

    async def fail(self, name, error):
        self.told.append(f"{name} fails")
        raise error


@pytest.fixture
def steps():
    return Steps()


async def test_nobody_goes_on_before_all_are_there(steps):
    event = asyncio.Event()
    passing = asyncio.create_task(together({"a": steps.wait("a", event), "b": asyncio.sleep(0, "b")}))
    await asyncio.sleep(0.01)
    assert not passing.done()
    event.set()
    assert await passing == {"a": "a", "b": "b"}


async def test_the_first_failure_ends_the_others_before_it_is_raised(steps):
    with pytest.raises(ValueError, match="no"):
        await together({"a": steps.wait("a"), "b": steps.fail("b", ValueError("no")), "c": steps.wait("c")})
    assert steps.told[0] == "b fails"
    assert sorted(steps.told[1:]) == ["a ended", "c ended"]


async def test_of_several_failures_it_is_the_first_in_order(steps):
    with pytest.raises(ValueError, match="first"):
        await together({"a": steps.fail("a", ValueError("first")), "b": steps.fail("b", KeyError("second"))})


async def test_a_cancelled_barrier_leaves_no_step_behind(steps):
    passing = asyncio.create_task(together({"a": steps.wait("a"), "b": steps.wait("b")}))
    await asyncio.sleep(0.01)
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert sorted(steps.told) == ["a ended", "b ended"]


async def test_no_step_at_all_is_passed():
    assert await together({}) == {}


async def test_work_goes_on_unless_death_comes(steps):
    death = asyncio.get_running_loop().create_future()
    assert await unless(death, asyncio.sleep(0, 5)) == 5
    with pytest.raises(ValueError, match="no"):
        await unless(death, steps.fail("a", ValueError("no")))
    working = asyncio.create_task(unless(death, steps.wait("b")))
    await asyncio.sleep(0.01)
    death.set_result("over")
    assert await working is None
    assert steps.told[-1] == "b ended"


async def test_who_is_done_first():
    loop = asyncio.get_running_loop()
    one, two = loop.create_future(), loop.create_future()
    waiting = asyncio.create_task(first(one, two))
    await asyncio.sleep(0)
    two.set_result("two")
    assert await waiting == "two"
