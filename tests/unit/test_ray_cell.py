"""A cell lives and dies as one, whoever dies when, the manager included, with chosen and random faults.

What the keeper asks Ray and the log is answered from lists, on virtual time. On a real Ray: test_ray_manager_cells.
"""

import asyncio
import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fleet import on_virtual_time
from support.ray_cell import STEPS, World, stories

from rollbook.adapters.ray.border import ActorSilent
from rollbook.adapters.ray.spec import decode_states, encode_states
from rollbook.events import RecoveryFailed, RecoveryStarted, WorkerDown, WorkerStarted, WorkerUp
from rollbook.projections.ending import end
from rollbook.projections.recovery.ports import NotStarted, Termination

LONG = 200.0


def world(seed=0, size=2, **fields):
    made = World(asyncio.get_running_loop(), seed, size, **fields)
    made.manage()
    return made


async def until(seen, seconds=LONG):
    async with asyncio.timeout(seconds):
        while not seen():  # noqa: ASYNC110 - time is a number
            await asyncio.sleep(0.01)


def serves(made, *lives):
    return lambda: [(s.stage, s.incarnation) for s in made.keeper.states] == [("serving", life) for life in lives]


def sound(made):
    """What holds at every moment of every schedule."""
    for name, lives in stories(made).items():
        for life in lives:
            # A manager that takes over may say again what the one before it said last.
            assert re.fullmatch("SU*D*", life), (name, lives)
    assert all(all(listening) for listening in made.up_while), "an Up before all of the cell were ready"
    for spec in made.specs:
        assert len(made.living(spec.name)) <= 1, "two processes of one worker"
    of_cell = {}
    for fact in made.facts:
        if isinstance(fact, WorkerUp):
            of_cell.setdefault((fact.worker, fact.cell_incarnation or fact.incarnation), set()).add(fact.incarnation)
    assert all(len(lives) == 1 for lives in of_cell.values()), "two lives of a worker in one life of its cell"


def empty(made):
    """Nothing is left: no process, no room, and the log was told of every end."""
    assert made.living() == []
    assert made.rooms == 0
    for name, lives in stories(made).items():
        assert all(life.endswith("D") for life in lives[-1:]), (name, lives)


async def shut(made):
    await end(made.task)
    await made.keeper.stop("over")


@on_virtual_time
async def test_all_ranks_come_up_together_under_one_number():
    made = world(size=3)
    await until(serves(made, 1, 1, 1))
    assert {(fact.cell_size, fact.cell_incarnation) for fact in made.facts} == {(3, 1)}
    seats = sorted((one.seat for one in made.living()), key=lambda seat: seat.rank)
    assert [(seat.rank, seat.cell_size, seat.rank0) for seat in seats] == [(rank, 3, "w-0-0") for rank in range(3)]
    assert all(seat.workers.keys() == {"w-0-0", "w-0-1", "w-0-2"} for seat in seats)
    assert made.rooms == 1
    await shut(made)
    empty(made)
    assert [fact.evidence for fact in made.facts if isinstance(fact, WorkerDown)] == ["planned"] * 3


@on_virtual_time
async def test_a_reason_of_any_length_and_letters_hides_nobodys_state():  # I10
    made = world()
    await until(serves(made, 1, 1))
    made.living()[0].end("\udcff" * 1_000_000)
    await until(lambda: any(state.stage == "down" for state in made.keeper.states))
    states = decode_states(encode_states(made.keeper.states))
    assert all(len(state.reason) < 600 for state in states.values())
    await until(serves(made, 2, 2))
    await shut(made)
    empty(made)


@on_virtual_time
async def test_a_cell_of_one_says_nothing_of_cells():
    made = world(size=1)
    await until(serves(made, 1))
    assert {(fact.cell_size, fact.cell_incarnation) for fact in made.facts} == {(1, None)}


@on_virtual_time
async def test_a_death_ends_all_and_says_whose_it_was():
    made = world()
    await until(serves(made, 1, 1))
    made.living("w-0-1")[0].end()
    await until(serves(made, 2, 2))
    sound(made)
    downs = {fact.worker: fact for fact in made.facts if isinstance(fact, WorkerDown)}
    assert (downs["w-0-1"].evidence, downs["w-0-0"].evidence) == ("actor_dead", "exited")
    assert downs["w-0-0"].reason.startswith("w-0-1 of its cell ended: ")
    assert [fact.worker for fact in made.facts if isinstance(fact, RecoveryStarted)] == ["w-0-0"]
    assert [fact.cell_incarnation for fact in made.facts if isinstance(fact, WorkerUp)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("step", "how"),
    [*itertools.product(STEPS, ["die", "hang", "silent"]), ("reserve", "fail"), ("begin", "fail"), ("ready", "never")],
)
def test_whatever_step_of_one_rank_fails_nothing_is_left_of_any(step, how):
    @on_virtual_time
    async def run():
        made = world(max_restarts=1)
        made.failing["w-0-1", step] = how
        await until(lambda: all(state.stage == "given_up" for state in made.keeper.states))
        sound(made)
        empty(made)
        assert not any(isinstance(fact, WorkerUp) for fact in made.facts)
        assert all("w-0-1" in state.reason or state.name == "w-0-1" for state in made.keeper.states)
        unplaced = all("; Ray was asked for too much" in state.reason for state in made.keeper.states)
        assert unplaced is (step == "identity" and how != "die"), "only where a process may never have been made"
        assert sum(isinstance(fact, RecoveryFailed) for fact in made.facts) == (step != "identity")
        # Launched again, or told to start, it gets another chance.
        made.failing.clear()
        assert await made.keeper.start()
        await until(lambda: all(state.stage == "serving" for state in made.keeper.states))

    run()


@on_virtual_time
async def test_a_manager_that_comes_back_goes_on_with_a_whole_cell_and_ends_a_broken_one():
    made = world()
    await until(serves(made, 1, 1))
    before = [one.pid for one in made.living()]
    made.process.kill()
    made.manage()
    await until(serves(made, 1, 1))
    assert [one.pid for one in made.living()] == before
    made.process.kill()
    made.living("w-0-1")[0].end()
    made.manage()
    await until(serves(made, 2, 2))
    sound(made)
    assert stories(made)["w-0-0"][0].endswith("D")


@on_virtual_time
async def test_a_process_that_dies_while_its_manager_comes_back_is_down_in_the_log():
    """Ray may still name an actor that is dead: then its manager has a handle, and never an answer."""
    made = world(restart="recoverer")
    await until(serves(made, 1, 1))
    made.process.kill()
    find, dead = made.find, made.living("w-0-1")[0]

    async def stale(name):
        return dead if name == dead.name else await find(name)

    dead.end()
    made.find = stale
    made.manage()
    await until(lambda: all(state.stage == "down" for state in made.keeper.states))
    assert stories(made) == {"w-0-0": ["SUD"], "w-0-1": ["SUD"]}


@pytest.mark.parametrize("served", [True, False])
def test_who_served_and_hangs_when_a_manager_comes_back_is_given_up_soon_and_who_is_being_made_is_not(served):
    @on_virtual_time
    async def run():
        made = world(restart="recoverer", process_seconds=300.0)
        if not served:
            made.failing["w-0-0", "begin"] = "hang"
        await until(lambda: {state.stage for state in made.keeper.states} == {"serving" if served else "starting"})
        await asyncio.sleep(1)
        made.failing["w-0-1", "identity"] = "hang"
        for _ in range(2):  # and again with a further one
            made.process.kill()
            made.manage()
            await asyncio.sleep(15)
            assert [state.stage for state in made.keeper.states] == ["creating", "creating"]
        began = asyncio.get_running_loop().time()
        await until(lambda: all(state.stage == "down" for state in made.keeper.states), 400)
        spent = asyncio.get_running_loop().time() - began
        assert spent < 10 if served else 250 < spent < 300
        sound(made)
        assert [fact.evidence for fact in made.facts if isinstance(fact, WorkerDown)] == ["exited", "exited"]
        # Its next life is being made.
        made.failing.clear()
        made.failing["w-0-1", "identity"] = "hang"
        starting = asyncio.create_task(made.keeper.start())
        await asyncio.sleep(200)
        assert len(made.living()) == 2
        made.failing.clear()
        await end(starting)

    run()


@on_virtual_time
async def test_a_planned_stop_holds_over_a_manager_and_interrupts_a_start():
    made = world()
    made.failing["w-0-0", "begin"] = "hang"
    await until(lambda: made.keeper.states[0].stage == "starting")
    await made.keeper.halt("scale down")
    empty(made)
    made.failing.clear()
    made.process.kill()
    made.manage()
    await asyncio.sleep(LONG)
    assert [state.stage for state in made.keeper.states] == ["stopped", "stopped"]
    assert made.living() == []
    await made.keeper.start()
    await until(serves(made, 2, 2))
    assert stories(made)["w-0-0"] == ["SD", "SU"]


@on_virtual_time
async def test_i3_who_cannot_be_killed_now_is_not_taken_for_the_next_life():
    """As while Ray's head does not answer: what it was told to end would be up again under the number of its end."""
    made = world()
    await until(serves(made, 1, 1))
    for spec in made.specs:
        made.failing[spec.name, "end"] = "silent"
    terminating = asyncio.ensure_future(made.keeper.terminate("w-0-0", 1))
    await asyncio.sleep(LONG)
    assert not terminating.done()
    assert stories(made) == {"w-0-0": ["SUD"], "w-0-1": ["SUD"]}
    made.failing.clear()
    assert await terminating is Termination.TERMINATED
    await until(serves(made, 2, 2))
    sound(made)
    assert stories(made) == {"w-0-0": ["SUD", "SU"], "w-0-1": ["SUD", "SU"]}
    made.process.kill()


@on_virtual_time
async def test_a_keeper_that_stumbled_over_an_end_can_be_told_to_begin():  # I10
    made = world(size=1, restart="recoverer")
    await until(serves(made, 1))
    keeper, crew = made.keeper, made.keeper.crew
    told = crew.say_over

    def stumbles(over):
        crew.say_over = told
        raise KeyError("of nobody's making")

    crew.say_over = stumbles
    made.living()[0].end()
    with pytest.raises(KeyError):
        await made.task
    made.task = asyncio.ensure_future(keeper.run())  # as the manager does
    async with asyncio.timeout(LONG):
        assert await keeper.start()
    await until(serves(made, 2))
    assert stories(made)["w-0-0"] == ["SUD", "SU"]
    await end(made.task)


@on_virtual_time
async def test_i3_only_the_life_that_was_meant_is_terminated():
    made = world(restart="recoverer")
    await until(serves(made, 1, 1))
    assert await made.keeper.terminate("w-0-1", 2) is Termination.ALREADY_GONE
    assert await made.keeper.terminate("w-0-1", 1) is Termination.TERMINATED
    assert made.living() == []
    assert await made.keeper.terminate("w-0-0", 1) is Termination.ALREADY_GONE
    await asyncio.sleep(LONG)
    assert made.living() == [], "a recoverer begins its next life"
    await asyncio.gather(made.keeper.start(), made.keeper.start())
    await until(serves(made, 2, 2))
    assert await made.keeper.terminate("w-0-1", 1) is Termination.STALE
    assert len(made.living()) == 2
    made.failing["w-0-0", "identity"] = "die"
    await made.keeper.terminate("w-0-0", 2)
    with pytest.raises(NotStarted, match="did not begin a life"):
        await made.keeper.start()


@pytest.mark.parametrize("how", ["death", "stop", "end of its manager"])
def test_i8_an_end_that_the_log_did_not_hear_of_is_told_by_the_next_manager(how):
    """The log is away, and what it was to be told dies with the manager."""

    @on_virtual_time
    async def run():
        made = world(restart="recoverer")
        await until(serves(made, 1, 1))
        made.log_is_away = True
        if how == "stop":
            await made.keeper.halt("scale down")
        else:
            made.living("w-0-1")[0].end()
        if how == "end of its manager":
            made.process.kill()
            made.manage()
        await until(lambda: made.living() == [] and made.record.over)
        await asyncio.sleep(LONG)
        assert stories(made) == {"w-0-0": ["SU"], "w-0-1": ["SU"]}
        made.process.kill()
        made.manage()  # and again one that cannot say it
        await asyncio.sleep(LONG)
        made.process.kill()
        made.log_is_away = False
        for _ in range(2):
            made.manage()
            await asyncio.sleep(LONG)
            assert stories(made) == {"w-0-0": ["SUD"], "w-0-1": ["SUD"]}
            made.process.kill()
        downs = [fact.evidence for fact in made.facts if isinstance(fact, WorkerDown)]
        assert downs == ["planned" if how == "stop" else "exited"] * 2

    run()


@pytest.mark.parametrize("restart", ["manager", "recoverer"])
@pytest.mark.parametrize("ending", [False, True])
def test_a_planned_stop_after_the_end_of_a_life_holds_over_a_manager(restart, ending):
    @on_virtual_time
    async def run():
        made = world(restart=restart)
        made.failing["w-0-1", "begin"] = "fail"
        if ending:
            made.failing["w-0-0", "end"] = "silent"
        await until(lambda: all(state.stage == "down" for state in made.keeper.states))
        await until(lambda: ending or made.living() == [])
        halting = asyncio.create_task(made.keeper.halt("scale down"))
        await asyncio.sleep(1)
        assert halting.done() is not ending
        made.failing.pop(("w-0-0", "end"), None)
        await halting
        assert [state.stage for state in made.keeper.states] == ["stopped", "stopped"]
        made.failing.clear()
        made.process.kill()
        made.manage()
        await asyncio.sleep(LONG)
        assert [state.stage for state in made.keeper.states] == ["stopped", "stopped"]
        empty(made)
        assert await made.keeper.start()
        await until(lambda: all(state.stage == "serving" for state in made.keeper.states))

    run()


@on_virtual_time
async def test_of_a_start_and_a_stop_at_one_moment_the_later_one_holds_and_both_end():
    made = world()
    await until(serves(made, 1, 1))
    await made.keeper.halt("scale down")
    async with asyncio.timeout(LONG):
        started, stopped = await asyncio.gather(
            made.keeper.start(), made.keeper.halt("no, stay down"), return_exceptions=True
        )
    assert isinstance(started, NotStarted)
    assert stopped is None
    await asyncio.sleep(LONG)
    assert [state.stage for state in made.keeper.states] == ["stopped", "stopped"]
    empty(made)
    assert await made.keeper.start()
    await until(serves(made, 2, 2))


@on_virtual_time
async def test_i2_a_fleet_whose_manager_dies_while_it_is_being_stopped_does_not_begin_again():
    made = world()
    await until(serves(made, 1, 1))
    await end(made.task)
    for spec in made.specs:
        made.failing[spec.name, "end"] = "silent"
        made.failing[spec.name, "halt"] = "silent"
    stopping = asyncio.create_task(made.keeper.stop("the run is over"))
    await until(lambda: any(isinstance(fact, WorkerDown) for fact in made.facts))
    await asyncio.sleep(1)
    await end(stopping)  # as its process would
    made.failing.clear()
    made.manage()
    await asyncio.sleep(LONG)
    assert [state.stage for state in made.keeper.states] == ["stopped", "stopped"]
    assert stories(made) == {"w-0-0": ["SUD"], "w-0-1": ["SUD"]}
    empty(made)


@on_virtual_time
async def test_i3_who_has_not_said_yet_which_life_it_is_is_neither_said_to_be_gone_nor_to_be_dead():
    """After its manager came back: it may be the very life that is to end."""
    made = world(restart="recoverer")
    await until(serves(made, 1, 1))
    made.process.kill()
    made.failing["w-0-1", "identity"] = "silent"
    made.manage()
    await until(lambda: made.keeper.states[0].pid is not None)
    told = decode_states(encode_states(made.keeper.states)).values()
    assert all(state.unsure and "has not said yet which life it is" in state.reason for state in told)
    terminating = asyncio.create_task(made.keeper.terminate("w-0-0", 1))
    await asyncio.sleep(1)
    assert not terminating.done()
    assert len(made.living()) == 2
    made.failing.clear()
    assert await terminating is Termination.TERMINATED
    assert made.living() == []
    assert stories(made) == {"w-0-0": ["SUD"], "w-0-1": ["SUD"]}
    assert not any(state.unsure for state in made.keeper.states)


@on_virtual_time
async def test_a_cell_of_which_the_log_knows_no_life_is_tried_again_though_a_recoverer_restarts_it():
    """Nobody else could: a recoverer restarts what is down in the log."""
    made = world(restart="recoverer", process_seconds=5.0)
    made.failing["w-0-1", "identity"] = "hang"
    await until(lambda: "no answer within 5 s" in made.keeper.states[1].reason)
    assert made.facts == []
    made.process.kill()  # and another manager knows no more of it
    made.manage()
    await asyncio.sleep(60)
    made.failing.clear()
    made.failing["w-0-1", "begin"] = "fail"
    await until(lambda: made.facts)
    await asyncio.sleep(LONG)
    assert [state.stage for state in made.keeper.states] == ["down", "down"]
    assert stories(made) == {"w-0-0": ["SD"], "w-0-1": ["SD"]}
    assert {type(fact) for fact in made.facts} == {WorkerStarted, WorkerDown}, "attempts are the recoverer's"


@on_virtual_time
async def test_no_time_to_start_goes_by_before_all_of_a_cell_have_numbers():
    """The log may go away between the first number and the last; nobody is declared dead for it."""
    made = world(start_seconds=10.0)
    scribe = made.keeper.ranks[1].scribe
    begin = scribe.begin

    async def slow(*args, **fields):
        await asyncio.sleep(100)
        return await begin(*args, **fields)

    scribe.begin = slow
    await until(serves(made, 1, 1))
    assert stories(made) == {"w-0-0": ["SU"], "w-0-1": ["SU"]}


@on_virtual_time
async def test_a_room_that_cannot_be_freed_now_is_freed_later():
    """A cell that stays down would keep its GPUs for ever."""
    made = world()
    await until(serves(made, 1, 1))
    free = made.free_room

    async def silent(specs):
        await made.pass_time()
        raise ActorSilent("Ray's head does not answer")

    made.free_room = silent
    halting = asyncio.create_task(made.keeper.halt("scale down"))
    await asyncio.sleep(LONG)
    assert made.living() == []
    made.free_room = free
    await halting
    empty(made)


def end_processes(made, name, reason):
    for process in made.living(name):
        process.end(reason)
    return []


def crash(made):
    made.process.kill()
    made.manage()
    return []


def fail(made, name, number):
    made.failing[name, STEPS[number]] = ("die", "hang", "silent")[number]
    return []


def ask(question):
    return [asyncio.create_task(question)]


DO = {
    "kill": lambda made, _, name: end_processes(made, name, None),
    "end": lambda made, _, name: end_processes(made, name, "it has ended"),
    "lost": lambda made, _, name: made.keeper.lost(name) or [],
    "crash": lambda made, *_: crash(made),
    "fail": lambda made, number, name: fail(made, name, number),
    "wait": lambda *_: [],
    "heal": lambda made, *_: made.failing.clear() or [],
    "halt": lambda made, *_: ask(made.keeper.halt("planned")),
    "start": lambda made, *_: ask(made.keeper.start()),
    "terminate": lambda made, number, name: ask(
        made.keeper.terminate(name, made.keeper.states[number % len(made.specs)].incarnation)
    ),
}
"""What can happen: returns what was asked of the manager and is not answered yet."""
DEEDS = st.tuples(
    st.sampled_from([*DO, "kill"]),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.003, 0.05, 0.3, 3.0, 30.0]),
)


@settings(max_examples=100, deadline=None)
@example([("wait", 0, 3.0), ("crash", 0, 0.0), ("halt", 0, 0.0)], 1, "manager", 1)
@example([("lost", 0, 0.3), ("crash", 0, 0.003)], 1, "manager", 28)
@given(st.lists(DEEDS, max_size=12), st.integers(1, 3), st.sampled_from(["manager", "recoverer"]), st.integers(0, 99))
def test_no_schedule_of_faults_leaves_half_a_cell(deeds, size, restart, seed):
    @on_virtual_time
    async def run():
        made = world(seed, size, restart=restart)
        asked = []
        for deed, number, pause in deeds:
            await asyncio.sleep(pause)
            sound(made)
            asked += DO[deed](made, number, f"w-0-{number % size}")
            if deed == "crash":
                await end(*asked)
                asked = []
        # Whatever happened: told to, it comes up whole.
        made.failing.clear()
        await asyncio.sleep(LONG)
        sound(made)
        await end(*asked)
        stages = {state.stage for state in made.keeper.states}
        assert len(stages) == 1
        assert stages <= {"serving", "down", "stopped"}
        if stages != {"serving"}:
            empty(made)
            await made.keeper.start()
        await until(lambda: all(state.stage == "serving" for state in made.keeper.states))
        await asyncio.sleep(1)
        assert len(made.living()) == size
        sound(made)
        await shut(made)
        sound(made)
        empty(made)

    run()
