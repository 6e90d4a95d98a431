"""[I3] of managers: whoever launches, restarts, dies and lets go when, a cell has one keeper."""

import asyncio
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import on_virtual_time

from rollbook.adapters.ray.claims import Claims, Holder, KeptElsewhere

CELLS = ("a/0", "a/1", "b//w")


def claims(cells):
    """Each of these has one worker, named as it is."""
    return [f"{kind} {cell}" for cell in cells for kind in ("cell", "worker")]


class World:
    """A store that is a dictionary, and managers that come and go."""

    def __init__(self, seed=0):
        self.values = {}
        self.managers = []
        self.after_delete = None
        """What happens between the first deletion of a key and the next one."""
        self.random = random.Random(seed)

    def get(self, key):
        return self.values.get(key)

    def put(self, key, value, *, overwrite):
        written = key not in self.values
        if overwrite or written:
            self.values[key] = value
        return written and self.random.random() < 0.9

    def keys(self, prefix):
        return [key for key in self.values if key.startswith(prefix)]

    def delete(self, key):
        self.values.pop(key, None)

    async def run(self, job, asked):
        await self.pass_time()
        answer = job()
        if job.func == self.delete and (then := self.after_delete) is not None:
            self.after_delete = None
            await then()
        # Who asked may be dead before the answer comes.
        await self.pass_time()
        return answer

    async def pass_time(self):
        await asyncio.sleep(self.random.choice([0.0, 0.001, 0.002, 0.01]))

    async def is_gone(self, holder):
        await self.pass_time()
        return not any(one.me == holder and one.alive for one in self.managers)

    def launch(self, name="one"):
        self.managers.append(Manager(self, name))
        return self.managers[-1]

    def sound(self):
        for cell in CELLS:
            keeping = [one.me for one in self.managers if one.alive and cell in one.has]
            assert len(keeping) <= 1, (cell, keeping)


class Manager:
    """One, and what it believes to have."""

    def __init__(self, world, name):
        self.world = world
        self.me = Holder(f"id-{len(world.managers)}", name, "rollbook")
        self.claims = Claims("f", self.me, world, world.run, world.is_gone)
        self.has = set()
        self.processes = []
        self.one_at_a_time = asyncio.Lock()

    @property
    def alive(self):
        return all(process.alive for process in self.processes)

    def begin(self, work):
        process, task = asyncio.get_running_loop().spawn(self.me.id, work)
        self.processes.append(process)
        return task

    def kill(self):
        for process in self.processes:
            process.kill()

    async def take(self, cells):
        async with self.one_at_a_time:
            cells = [cell for cell in cells if cell not in self.has]
            try:
                await self.claims.take(claims(cells))
            except KeptElsewhere:
                return False
            self.has |= set(cells)
            return True

    async def inherit(self, left=CELLS):
        async def is_left(cell):
            await self.world.pass_time()
            return cell.removeprefix("cell ") in left

        async with self.one_at_a_time:
            mine = await self.claims.inherit({f"cell {cell}": [f"worker {cell}"] for cell in CELLS}, is_left)
            self.has |= {cell.removeprefix("cell ") for cell in mine}

    async def release(self, cells):
        async with self.one_at_a_time:
            cells = self.has & set(cells)
            self.has -= cells
            await self.claims.release(claims(cells))


@on_virtual_time
async def test_the_second_is_told_who_has_it_and_gets_nothing_of_what_it_asked_for():
    world = World()
    one, two = world.launch("one"), world.launch("two")
    assert await one.take(["a/0", "a/1"])
    told = (
        "manager 'two' cannot keep worker a/1 and 1 more of fleet 'f': manager 'one' (namespace 'rollbook') keeps it. "
    )
    with pytest.raises(KeptElsewhere, match=re.escape(told + "Launch these workers under that name, or stop")):
        await two.claims.take(claims(CELLS))
    # Nor a cell by another name with the same worker, nor another worker in the same cell.
    for claim in ("worker a/0", "cell a/0"):
        with pytest.raises(KeptElsewhere, match=f"cannot keep {claim} of fleet"):
            await two.claims.take(["cell c/0", "worker other", claim])
    assert await world.launch("three").take(["b//w"])
    assert world.keys(b"keeper/f/cell c/0") == world.keys(b"keeper/f/worker other") == []


@on_virtual_time
async def test_what_was_let_go_of_and_what_the_dead_had_is_free_and_nothing_is_left_behind():
    world = World()
    for name in ("one", "two", "one", "three"):
        manager = world.launch(name)
        assert await manager.take(CELLS)
        manager.begin(asyncio.sleep(0))
        manager.kill()
    last = world.launch("four")
    assert await last.take(CELLS)
    await last.release(CELLS)
    assert world.values == {}


@on_virtual_time
async def test_who_gets_but_a_part_of_what_is_left_keeps_none_of_it():
    world = World()
    one, two = world.launch("one"), world.launch("two")
    await one.claims.take(["cell a/0"])
    await two.inherit(left=CELLS[:1])
    assert two.has == set()
    assert len(world.values) == 1


@on_virtual_time
async def test_who_comes_between_two_steps_of_letting_go_keeps_what_he_gets():
    world = World()
    former, last, two, three = (world.launch(name) for name in ("former", "last", "two", "three"))
    await former.take(CELLS[:1])
    former.begin(asyncio.sleep(0))
    former.kill()
    await last.take(CELLS[:1])

    async def come():
        await two.take(CELLS[:1])

    world.after_delete = come
    await last.release(CELLS)
    assert await two.take(CELLS[:1])
    assert not await three.take(CELLS[:1])


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_of_two_that_want_the_same_at_one_moment_one_gets_it(seed, dead):
    @on_virtual_time
    async def run():
        world = World(seed)
        if dead:
            former = world.launch("former")
            await former.take(CELLS)
            former.begin(asyncio.sleep(0))
            former.kill()
        one, two = world.launch("one"), world.launch("two")
        begun = [one.begin(one.take(CELLS)), two.begin(two.take(CELLS[:2]))]
        all_of_it, most_of_it = [await task for task in begun]
        assert all_of_it is not most_of_it
        third = world.launch("three")
        assert not await third.take(CELLS[1:2])
        assert await third.take(CELLS[2:]) is most_of_it

    run()


@pytest.mark.parametrize("seed", range(80))
def test_what_is_let_go_of_while_others_ask_for_it_goes_to_one(seed):
    @on_virtual_time
    async def run():
        world = World(seed)
        former = world.launch("former")
        await former.take(CELLS[:1])
        former.begin(asyncio.sleep(0))
        former.kill()
        last = world.launch("last")
        await last.take(CELLS[:1])

        async def insist(manager):
            while not await manager.take(CELLS[:1]) and not any(one.has for one in others):
                await world.pass_time()

        others = [world.launch(name) for name in ("one", "two", "three")]
        begun = [one.begin(insist(one)) for one in others]
        begun.append(last.begin(last.release(CELLS)))
        await asyncio.gather(*begun)
        assert sorted(len(one.has) for one in others) == [0, 0, 1]

    run()


@pytest.mark.parametrize("seed", range(40))
def test_what_the_dead_left_goes_to_one_heir_who_can_then_launch(seed):
    @on_virtual_time
    async def run():
        world = World(seed)
        former = world.launch("former")
        await former.take(CELLS)
        former.begin(asyncio.sleep(0))
        former.kill()

        async def launch(manager):
            await world.pass_time()
            await manager.inherit(left=CELLS[1:])
            return await manager.take(CELLS)

        begun = [one.begin(launch(one)) for one in (world.launch("one"), world.launch("two"), world.launch("three"))]
        assert sorted([await task for task in begun]) == [False, False, True]
        assert sorted(len(one.has) for one in world.managers if one.alive) == [0, 0, 3]

    run()


DEEDS = st.tuples(
    st.sampled_from(["launch", "take", "take", "inherit", "release", "kill"]),
    st.integers(0, 5),
    st.sets(st.sampled_from(CELLS), min_size=1),
    st.sampled_from([0.0, 0.001, 0.003, 0.02]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(DEEDS, max_size=25), st.integers(0, 99))
def test_no_schedule_gives_a_cell_two_keepers(deeds, seed):
    @on_virtual_time
    async def run():
        world = World(seed)
        begun = []
        for deed, number, cells, pause in deeds:
            living = [one for one in world.managers if one.alive] or [world.launch()]
            manager = living[number % len(living)]
            if deed == "launch":
                world.launch(f"m-{number}")
            elif deed == "kill":
                manager.begin(asyncio.sleep(0))
                manager.kill()
            else:
                work = {"take": manager.take, "inherit": manager.inherit, "release": manager.release}[deed]
                begun.append(manager.begin(work(cells)))
            await asyncio.sleep(pause)
            world.sound()
        await asyncio.sleep(10)
        world.sound()
        for task in begun:
            assert not task.done() or task.result() in {None, True, False}
        for manager in world.managers:
            manager.begin(asyncio.sleep(0))
            manager.kill()
        assert await world.launch("last").take(CELLS)

    run()
