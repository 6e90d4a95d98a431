"""Runs one seed from beginning to end and says what was wrong."""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Iterator

import msgspec
from simulation.chaos import Chaos
from simulation.world import World, Wrong

from rollbook.adapters.memory import virtual
from rollbook.projections.state.fold import State

SETTLE_SECONDS = 90.0
"""Virtual seconds within which all must be right once facts and faults have stopped."""
QUIET_SECONDS = 10.0
"""Virtual seconds of nothing that must follow."""
SHOWN_LINES = 150


class Result(msgspec.Struct):
    """What a run did."""

    seed: int
    counts: Counter
    trace: list[str]
    digest: str
    states: set[int]
    """Hashes of the distinct states that it went through."""


def simulate(seed: int) -> Result:
    """Run one seed. Raises `Wrong` with the command that runs it again."""
    trace: list[str] = []

    async def main() -> Result:
        world = World(seed)
        world.loop.set_exception_handler(lambda _, context: world.wrong(_told(context)))
        try:
            return await _run(world)
        finally:
            trace.extend(world.trace)

    try:
        with _uncollected():
            return virtual.run(main())
    except Exception as exc:
        told = "\n".join(trace[-SHOWN_LINES:])
        msg = (
            f"seed {seed}: {exc}\n\nThe last {SHOWN_LINES} lines of its trace:\n{told}\n\n"
            f"Run it again, with the whole trace:\n    PYTHONPATH=tests python -m simulation {seed}"
        )
        raise Wrong(msg) from exc


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No collection of garbage in between: what complains while it is collected would do so at any moment."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _told(context: dict) -> str:
    where = context.get("task") or context.get("future")
    return f"{context['message']}: {context.get('exception')!r} in {where}"


async def _run(world: World) -> Result:
    background = [asyncio.create_task(author.run()) for author in world.fleet.authors.values()]
    background.append(asyncio.create_task(world.controllers.supervise()))
    if world.kept is not None:
        background += [asyncio.create_task(part) for part in world.kept.background()]
    acting = [asyncio.create_task(director) for director in world.fleet.directors()]
    acting += [asyncio.create_task(source) for source in Chaos(world).sources()]
    try:
        await _for(world, acting, world.weather.seconds)
        world.stopping = True
        await _until_done(world, acting)
        world.calm()
        await world.fleet.finish()
        await _settle(world)
        await _quiet(world)
        _account(world)
        gc.collect()
        _check(world)
    finally:
        for task in [*background, *acting]:
            task.cancel()
        if world.kept is not None:
            world.kept.end()
    _check(world)
    return Result(world.seed, world.counts, list(world.trace), world.witness.journal.fold().digest(), world.states.seen)


def _check(world: World) -> None:
    if world.kept is not None:
        world.kept.custody.read()
    for router in world.routers.values():
        world.problems += [f"{router.name}: {exc!r}" for exc in router.broken]
    if world.problems:
        raise Wrong("\n".join(world.problems))


async def _for(world: World, tasks: list[asyncio.Task], seconds: float) -> None:
    until = world.loop.time() + seconds
    while world.loop.time() < until:
        await asyncio.sleep(0.5)
        _check(world)
        for task in tasks:
            if task.done():
                task.result()


async def _until_done(world: World, tasks: list[asyncio.Task]) -> None:
    deadline = world.loop.time() + 200
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.5)
        _check(world)
        if world.loop.time() > deadline:
            raise Wrong("the simulation itself does not come to an end")
    for task in tasks:
        task.result()


async def _settle(world: World) -> None:
    """[I1] all comes right within a time that does not depend on what was wrong before."""
    deadline = world.loop.time() + SETTLE_SECONDS
    # What was sent before the faults ended may still arrive.
    await asyncio.sleep(8)
    while True:
        _check(world)
        state = world.witness.journal.follow()
        if not (differences := _unsettled(world, state) + _restless(world, state) + world.verdict.differences(state)):
            world.note("settled")
            return
        if world.loop.time() > deadline:
            raise Wrong(f"{SETTLE_SECONDS:g} s after all has stopped:\n" + "\n".join(differences))
        await asyncio.sleep(0.5)


def _unsettled(world: World, state: State) -> list[str]:
    """Which controllers are not where they should be: one leads, the others stand by with a warm roster."""
    running = world.controllers.running
    if len(running) < world.weather.writers or world.controllers.leader is None:
        return [f"running are {[str(each) for each in running]}, the leader is {world.controllers.leader}"]
    return [
        f"{each} has folded {each.controller.projector.state.sequence}, the log ends at {state.sequence}"
        for each in running
        if each.controller.projector.state.sequence != state.sequence
    ]


def _restless(world: World, state: State) -> list[str]:
    return [] if world.kept is None else world.kept.custody.unsettled(state)


async def _quiet(world: World) -> None:
    """Once all is right, nothing is called and nothing is written."""
    end, calls = world.log.messages[-1].sequence, _calls(world)
    await asyncio.sleep(QUIET_SECONDS)
    _check(world)
    if world.log.messages[-1].sequence != end:
        raise Wrong(f"all was right, yet facts were written after sequence {end}")
    if _calls(world) != calls:
        raise Wrong("all was right, yet admin calls were made")


def _calls(world: World) -> int:
    return sum(world.counts[verb] for verb in ("add", "drain", "remove"))


def _account(world: World) -> None:
    """What must be true of log, roster and fleet when all is quiet."""
    state, verdict = world.witness.journal.fold(), world.verdict
    problems = [
        *verdict.differences(state),
        *verdict.accounts(state),
        *verdict.replayed(state),
        *verdict.truth(state),
        *verdict.kept(),
        *_restless(world, state),
        *([] if world.kept is None else world.kept.custody.replayed(state)),
    ]
    if problems:
        raise Wrong("\n".join(problems))
