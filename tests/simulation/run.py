"""Runs one seed from beginning to end and says what was wrong."""

import asyncio
from collections import Counter

import msgspec
from simulation.chaos import Chaos
from simulation.weather import Weather
from simulation.world import QUIET_SECONDS, SETTLE_SECONDS, World, Wrong

from rollbook.adapters.memory import virtual

SHOWN_LINES = 150


class Result(msgspec.Struct):
    """What a run did."""

    seed: int
    counts: Counter
    trace: list[str]
    digest: str


def simulate(seed: int, weather: Weather | None = None) -> Result:
    """Run one seed. Raises `Wrong` with the command that runs it again."""
    trace: list[str] = []

    async def main() -> Result:
        world = World(seed, weather)
        try:
            return await _run(world)
        finally:
            trace.extend(world.trace)

    try:
        return virtual.run(main())
    except Exception as exc:
        told = "\n".join(trace[-SHOWN_LINES:])
        msg = (
            f"seed {seed}: {exc}\n\nThe last {SHOWN_LINES} lines of its trace:\n{told}\n\n"
            f"Run it again, with the whole trace:\n    PYTHONPATH=tests python -m simulation {seed}"
        )
        raise Wrong(msg) from exc


async def _run(world: World) -> Result:
    errors: list[str] = []
    world.loop.set_exception_handler(
        lambda _, context: errors.append(f"{context['message']}: {context.get('exception')!r}")
    )
    background = [asyncio.create_task(author.run()) for author in world.fleet.authors.values()]
    background.append(asyncio.create_task(world.supervise()))
    acting = [asyncio.create_task(director) for director in world.fleet.directors()]
    acting += [asyncio.create_task(source) for source in Chaos(world).sources()]
    try:
        await _for(world, acting, world.weather.seconds)
        world.stopping = True
        await _until_done(world, acting)
        world.at_line = None
        world.calm()
        await world.fleet.finish()
        await _settle(world)
        await _quiet(world)
        _account(world)
    finally:
        for task in [*background, *acting]:
            task.cancel()
    _check(world)
    if errors:
        raise Wrong("\n".join(errors))
    return Result(world.seed, world.counts, list(world.trace), world.witness.fold().digest())


def _check(world: World) -> None:
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
        state = world.witness.follow()
        differences = world.witness.differences(state)
        if len(world.running) != 1 or world.leader is None:
            differences.append(f"running are {[str(each) for each in world.running]}, the leader is {world.leader}")
        elif (folded := world.leader.controller.projector.state.sequence) != state.sequence:
            differences.append(f"{world.leader} has folded {folded}, the log ends at {state.sequence}")
        if not differences:
            world.note("settled")
            return
        if world.loop.time() > deadline:
            raise Wrong(f"{SETTLE_SECONDS:g} s after all has stopped:\n" + "\n".join(differences))
        await asyncio.sleep(0.5)


async def _quiet(world: World) -> None:
    """Once all is right, nothing is called and nothing is written."""
    end, calls = world.log.messages[-1].sequence, world.counts["add"] + world.counts["remove"]
    await asyncio.sleep(QUIET_SECONDS)
    _check(world)
    if world.log.messages[-1].sequence != end:
        raise Wrong(f"all was right, yet facts were written after sequence {end}")
    if world.counts["add"] + world.counts["remove"] != calls:
        raise Wrong("all was right, yet admin calls were made")


def _account(world: World) -> None:
    """What must be true of log, roster and fleet when all is quiet."""
    state = world.witness.fold()
    problems = world.witness.differences(state) + world.witness.accounts(state)
    live = world.leader.controller.projector.state
    if live.digest() != state.digest():
        problems.append("[I5] folding the log again gives another state than the controller has")
    for name, worker in world.fleet.workers.items():
        known = state.roster.workers.get(name)
        serving = known is not None and known.phase == "serving" and known.incarnation == worker.incarnation
        if worker.unreported:
            continue
        earlier = world.witness.began.get((name, worker.incarnation), 0) < world.witness.run_began
        if serving != (worker.alive and worker.serving and not earlier):
            problems.append(
                f"[truth] {name} {worker.incarnation}: alive {worker.alive}, serving {worker.serving}; roster {known}"
            )
        if (name in state.roster.cordons) != worker.cordoned:
            problems.append(f"[truth] {name}: cordoned {worker.cordoned}, the roster says otherwise")
        if serving and (known.suspension is not None) != worker.suspended:
            problems.append(f"[truth] {name}: suspended {worker.suspended}, the roster says {known.suspension}")
    for author in world.fleet.authors.values():
        problems += _kept(world, author)
    if problems:
        raise Wrong("\n".join(problems))


def _kept(world: World, author) -> list[str]:
    """[I8] every accepted fact is in the log, and those about one worker in the order of their acceptance."""
    found = []
    last: dict[str, int] = {}
    for worker, fact_id in author.accepted:
        sequence = world.witness.ids.get(fact_id)
        if sequence is None:
            found.append(f"[I8] {author.name}: {fact_id} about {worker!r} is not in the log")
        elif sequence < last.get(worker, 0):
            found.append(f"[I8] {author.name}: {fact_id} about {worker!r} was overtaken")
        else:
            last[worker] = sequence
    return found
